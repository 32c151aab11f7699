//! A worker: one core's share of the switch.
//!
//! ```text
//! orders (snapshot, ports) ─▶ receive from each port ─▶ graph ─▶ send ─▶ other workers' rings
//! ```
//!
//! A worker owns its ports, its graph and the snapshot it decides by. Between two vectors it
//! looks whether the control side has left orders; within a vector nothing changes, so no
//! packet is judged by half of two snapshots.

use std::sync::Arc;
use std::time::Duration;

use crate::counters::PortCounters;
use crate::exchange::{Exchange, Handoff, Refused};
use crate::orders::{Order, Orders};
use crate::port::{Lent, Port};
use crate::session::Sessions;
use crate::{
    Counters, Frame, FreeList, Graph, Memory, Now, Outcome, Packet, PortId, Snapshot, VECTOR,
};

/// Looks at packets whose outcome is known, before they leave.
pub trait Inspect: Send {
    /// Whether anybody is interested right now.
    fn is_wanted(&self) -> bool {
        true
    }

    /// A packet waits in the switch for others; it is done later, in the same frame.
    fn waits(&mut self, packet: &Packet) {
        let _ = packet;
    }

    /// One packet is done.
    fn done(&mut self, packet: &Packet, memory: &Memory, snapshot: &Snapshot);
}

/// Frames taken from one port before the next has its turn.
const BURST: usize = 64;
/// How often ports are asked what they missed.
const STATISTICS: Duration = Duration::from_secs(1);
/// Sessions looked at for idleness at a time, and how often: a million takes three seconds, and a
/// worker that polls spends next to nothing on it.
const SWEEP: u32 = 2048;
const SWEEP_EVERY: Duration = Duration::from_millis(5);

struct Slot {
    id: PortId,
    port: Box<dyn Port>,
    counters: Arc<PortCounters>,
    /// Frames that leave with this vector.
    leaving: Vec<Frame>,
    /// [`Port::takes_open_sums`].
    takes_open_sums: bool,
}

impl Slot {
    #[inline]
    fn leave(&mut self, mut frame: Frame, memory: &Memory) {
        if !self.takes_open_sums {
            memory.close_sum(&mut frame);
        }
        self.leaving.push(frame);
    }
}

/// One worker of a switch.
pub struct Worker {
    number: usize,
    memory: Arc<Memory>,
    free: FreeList,
    sessions: Arc<Sessions>,
    snapshot: Arc<Snapshot>,
    graph: Graph,
    counters: Arc<Counters>,
    slots: Vec<Slot>,
    /// Place in `slots` of each port served here.
    places: Vec<u16>,
    orders: Arc<Orders>,
    exchange: Arc<Exchange>,
    inspect: Option<Box<dyn Inspect>>,
    packets: Vec<Packet>,
    frames: Vec<Frame>,
    sweep_at: u32,
    sweep_due: Now,
    first_slot: usize,
    statistics_due: Now,
}

/// What a worker is made of.
pub(crate) struct Parts {
    pub(crate) number: usize,
    pub(crate) memory: Arc<Memory>,
    pub(crate) free: FreeList,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) orders: Arc<Orders>,
    pub(crate) exchange: Arc<Exchange>,
    pub(crate) inspect: Option<Box<dyn Inspect>>,
}

impl Worker {
    pub(crate) fn new(parts: Parts) -> Self {
        let mut graph = Graph::default();
        graph.fit(parts.memory.count() as usize);
        Self {
            number: parts.number,
            memory: parts.memory,
            free: parts.free,
            sessions: parts.sessions,
            snapshot: Arc::default(),
            graph,
            counters: parts.counters,
            slots: Vec::new(),
            places: Vec::new(),
            orders: parts.orders,
            exchange: parts.exchange,
            inspect: parts.inspect,
            packets: Vec::with_capacity(VECTOR),
            frames: Vec::with_capacity(VECTOR),
            sweep_at: 0,
            sweep_due: Now::default(),
            first_slot: 0,
            statistics_due: Now::default(),
        }
    }

    /// A worker that is a switch of its own: one core, no rings to others.
    pub fn alone(
        memory: Arc<Memory>,
        frames: Vec<Frame>,
        sessions: Arc<Sessions>,
        inspect: Option<Box<dyn Inspect>>,
    ) -> Self {
        Self::new(Parts {
            number: 0,
            free: FreeList::new(&memory, frames),
            memory,
            sessions,
            counters: Arc::default(),
            orders: Orders::new(),
            exchange: Exchange::new(1, 0),
            inspect,
        })
    }

    /// Where the control side leaves orders for this worker.
    pub fn orders(&self) -> &Arc<Orders> {
        &self.orders
    }

    /// This worker's counters.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// The sessions it knows.
    pub fn sessions(&self) -> &Arc<Sessions> {
        &self.sessions
    }

    /// Frames that nothing is in and that it can reach.
    pub fn free_frames(&self) -> usize {
        self.free.len()
    }

    /// The snapshot it decides by.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// One round: orders, then a burst from every port. Returns the packets handled.
    pub fn round(&mut self, now: Now) -> usize {
        self.follow_orders();
        if self.graph.expire(now) {
            self.end_waiting();
        }
        let mut handled = self.take_handoffs();
        let ports = self.slots.len();
        for n in 0..ports {
            // Another port begins each round, so that none waits behind a busy one for ever.
            handled += self.serve((self.first_slot + n) % ports.max(1), now);
        }
        self.first_slot = if ports == 0 { 0 } else { (self.first_slot + 1) % ports };
        self.run_vector(now);
        if now >= self.sweep_due {
            self.sweep_due = Now(now.0 + SWEEP_EVERY);
            self.sweep_at = self.sessions.sweep(self.sweep_at, SWEEP, now.seconds());
        }
        if now >= self.statistics_due {
            self.statistics_due = Now(now.0 + STATISTICS);
            for slot in &self.slots {
                slot.counters.missed.set(slot.port.missed());
            }
        }
        let round =
            if handled > 0 { &self.counters.busy_rounds } else { &self.counters.idle_rounds };
        round.add(1);
        handled
    }

    fn serve(&mut self, slot: usize, now: Now) -> usize {
        let Some(Slot { id, port, counters, .. }) = self.slots.get_mut(slot) else { return 0 };
        let mut lent = Lent { memory: &self.memory, free: &mut self.free };
        let received = port.receive(&mut lent, BURST, &mut self.frames);
        let id = *id;
        let count = self.frames.len();
        if count > 0 {
            counters.received.add(count as u64);
            counters.received_bytes.add(self.frames.iter().map(|frame| frame.len() as u64).sum());
        }
        for frame in self.frames.drain(..) {
            self.packets.push(Packet::new(frame, id));
        }
        if let Err(gone) = received {
            self.orders.report_gone(id, gone);
            self.remove_port(id);
        }
        if self.packets.len() + BURST > VECTOR {
            self.run_vector(now);
        }
        count
    }

    /// Sends the gathered vector through the graph and out, and after it what waited for it.
    fn run_vector(&mut self, now: Now) {
        if !self.packets.is_empty() {
            let Self { graph, packets, snapshot, memory, sessions, counters, .. } = self;
            graph.run(packets, snapshot, memory, sessions, counters, now);
            self.hand_out(now);
            while self.resume(now) {
                self.hand_out(now);
            }
            self.end_waiting();
        }
        self.send();
    }

    fn resume(&mut self, now: Now) -> bool {
        let Self { graph, packets, snapshot, memory, sessions, counters, .. } = self;
        graph.resume(packets, snapshot, memory, sessions, counters, now)
    }

    /// Gives the packets of a vector to their ports, or their frames back.
    fn hand_out(&mut self, now: Now) {
        if let Some(inspect) = self.inspect.as_mut().filter(|inspect| inspect.is_wanted()) {
            for packet in &self.packets {
                match packet.outcome {
                    Some(_) => inspect.done(packet, &self.memory, &self.snapshot),
                    None => inspect.waits(packet),
                }
            }
        }
        for packet in self.packets.drain(..) {
            if !packet.leaves() {
                match packet.outcome {
                    Some(_) => self.free.put(packet.frame),
                    None => self.graph.hold(packet, now),
                }
                continue;
            }
            match place(&self.places, packet.out_port) {
                Some(place) => self.slots[place].leave(packet.frame, &self.memory),
                None => match self.exchange.hand_over(packet.frame, packet.out_port) {
                    Ok(()) => {}
                    Err(Refused::NoWorker(frame)) => {
                        self.free.put(frame);
                        self.counters.count(Outcome::PortGone);
                    }
                    Err(Refused::Full(frame)) => {
                        self.free.put(frame);
                        self.counters.count(Outcome::HandoffFull);
                    }
                },
            }
        }
    }

    /// Counts packets that wait no longer, and takes their frames back.
    fn end_waiting(&mut self) {
        while let Some(packet) = self.graph.take_ended() {
            if let Some(outcome) = packet.outcome {
                self.counters.count(outcome);
            }
            if let Some(inspect) = self.inspect.as_mut().filter(|inspect| inspect.is_wanted()) {
                inspect.done(&packet, &self.memory, &self.snapshot);
            }
            self.free.put(packet.frame);
        }
    }

    fn send(&mut self) {
        let mut gone = Vec::new();
        for slot in &mut self.slots {
            if slot.leaving.is_empty() && !slot.port.is_sending() {
                continue;
            }
            let (count, bytes) = (slot.leaving.len(), bytes(&slot.leaving));
            let mut lent = Lent { memory: &self.memory, free: &mut self.free };
            if let Err(reason) = slot.port.send(&mut lent, &mut slot.leaving) {
                gone.push((slot.id, reason));
            }
            let refused = slot.leaving.len();
            slot.counters.sent.add((count - refused) as u64);
            slot.counters.sent_bytes.add(bytes - self::bytes(&slot.leaving));
            for frame in slot.leaving.drain(..) {
                self.free.put(frame);
                self.counters.count(Outcome::TxFull);
                slot.counters.refused.add(1);
            }
        }
        for (id, reason) in gone {
            self.orders.report_gone(id, reason);
            self.remove_port(id);
        }
    }

    /// Takes what other workers left for this one's ports.
    fn take_handoffs(&mut self) -> usize {
        let mut taken = 0;
        while taken < VECTOR
            && let Some(Handoff { frame, out_port }) = self.exchange.take(self.number)
        {
            taken += 1;
            match place(&self.places, out_port) {
                Some(place) => self.slots[place].leave(frame, &self.memory),
                None => {
                    self.free.put(frame);
                    self.counters.count(Outcome::PortGone);
                }
            }
        }
        taken
    }

    fn follow_orders(&mut self) {
        for order in self.orders.take() {
            match order {
                Order::Snapshot(snapshot) => {
                    let old = std::mem::replace(&mut self.snapshot, snapshot);
                    self.orders.in_force(self.snapshot.generation, old);
                }
                Order::AddPort(id, port, counters) => {
                    self.remove_port(id);
                    let leaving = Vec::with_capacity(VECTOR);
                    let takes_open_sums = port.takes_open_sums();
                    self.slots.push(Slot { id, port, counters, leaving, takes_open_sums });
                    self.note_places();
                }
                Order::RemovePort(id) => self.remove_port(id),
                Order::Trace(tracing) => self.graph.follow(self.number as u16, tracing),
                Order::Call(call) => call(),
            }
        }
    }

    fn remove_port(&mut self, id: PortId) {
        if let Some(n) = self.slots.iter().position(|slot| slot.id == id) {
            let slot = self.slots.swap_remove(n);
            self.note_places();
            slot.leaving.into_iter().for_each(|frame| self.free.put(frame));
            slot.port.close(&mut Lent { memory: &self.memory, free: &mut self.free });
            self.graph.forget_port(id);
            self.end_waiting();
        }
    }

    fn note_places(&mut self) {
        self.places.clear();
        for (n, slot) in self.slots.iter().enumerate() {
            let id = usize::from(slot.id.0);
            if self.places.len() <= id {
                self.places.resize(id + 1, NOWHERE);
            }
            self.places[id] = n as u16;
        }
    }

    /// The ports this worker serves.
    pub(crate) fn ports(&self) -> impl Iterator<Item = &dyn Port> {
        self.slots.iter().map(|slot| &*slot.port)
    }

    /// Whether orders or other workers' frames wait.
    pub(crate) fn has_work(&self) -> bool {
        self.orders.has_waiting() || self.exchange.has_frames(self.number)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        for slot in std::mem::take(&mut self.slots) {
            slot.port.close(&mut Lent { memory: &self.memory, free: &mut self.free });
        }
        self.packets.drain(..).for_each(|packet| self.free.put(packet.frame));
        self.graph.take_waiting().for_each(|packet| self.free.put(packet.frame));
    }
}

const NOWHERE: u16 = u16::MAX;

#[inline]
fn place(places: &[u16], id: PortId) -> Option<usize> {
    places.get(usize::from(id.0)).filter(|place| **place != NOWHERE).map(|n| usize::from(*n))
}

fn bytes(frames: &[Frame]) -> u64 {
    frames.iter().map(|frame| frame.len() as u64).sum()
}
