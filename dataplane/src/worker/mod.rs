//! A worker: one core's share of the switch.
//!
//! ```text
//! mailbox (snapshot, ports) ─▶ receive from each port ─▶ graph ─▶ send ─▶ other workers' rings
//! ```
//!
//! A worker owns its ports, its graph and its snapshot. Between two vectors it reads its mailbox;
//! within a vector nothing changes, so no packet is evaluated by parts of two snapshots.
//!
//! A port may be this worker's alone, or have parts with several (see `exchange`).

mod commands;
mod handoff;
mod receive;
mod slots;
mod transmit;

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use crate::exchange::{Exchange, Handoff};
use crate::housekeeper::Task;
use crate::mailbox::Mailbox;
use crate::port::Port;
use crate::session::Sessions;
use crate::{
    Counters, Frame, FreeList, Graph, Memory, Now, Packet, Snapshot, StagedDecision, VECTOR,
};
use slots::Slots;

/// Inspects packets with an outcome before they leave.
pub trait Inspect: Send {
    /// Whether inspection is on.
    fn is_wanted(&self) -> bool {
        true
    }

    /// A packet is held in the switch; it is done later, in the same frame.
    fn waits(&mut self, packet: &Packet) {
        let _ = packet;
    }

    /// One packet is done. What its headers were is in it; its frame may hold the switch's reply by now, or have a
    /// tunnel's headers in front.
    fn done(&mut self, packet: &Packet, snapshot: &Snapshot);

    /// Staged ACLs decide otherwise about the connection that a packet opens, or would have opened. The packet
    /// is done as well.
    fn differs(&mut self, packet: &Packet, staged: &StagedDecision, snapshot: &Snapshot) {
        let _ = (packet, staged, snapshot);
    }
}

/// Fewest frames that a round receives from a busy port before it polls the next one; the most is a vector. TCP is half
/// as fast again in vectors as in bursts of 64, but where many ports are busy each waits for all others.
const BURST: usize = 64;
/// Frames of a round, divided among the ports that were busy in the last one.
const ROUND: usize = 4 * VECTOR;
/// A port that had nothing for so many rounds is silent: a busy worker polls it every few rounds
/// only. There may be hundreds of them.
const UNTIL_SILENT: u32 = 64;
const SILENT_EVERY: u32 = 4;
/// Interval of reading the ports' statistics.
const STATISTICS: Duration = Duration::from_secs(1);
/// Places of the session table looked at in a millisecond, by all workers together: a million take three seconds and
/// eight million twenty, at a negligible share of a polling worker's time.
const SWEPT_IN_MS: u32 = 400;
/// The interval, short because packets wait meanwhile, and the most that is swept at a time after a
/// sleep.
const SWEEP_EVERY: Duration = Duration::from_micros(320);
const MOST_SWEPT: u32 = 2048;

/// One worker of a switch.
pub struct Worker {
    number: usize,
    memory: Arc<Memory>,
    free: FreeList,
    sessions: Arc<Sessions>,
    snapshot: Arc<Snapshot>,
    graph: Graph,
    counters: Arc<Counters>,
    slots: Slots,
    mailbox: Arc<Mailbox>,
    exchange: Arc<Exchange>,
    /// Closes removed ports; without one the worker does.
    housekeeper: Option<Sender<Task>>,
    inspect: Option<Box<dyn Inspect>>,
    packets: Vec<Packet>,
    frames: Vec<Frame>,
    /// Packets for other workers, by their numbers.
    outgoing: Vec<Vec<Handoff>>,
    /// Workers with hand-offs since they were last woken.
    to_wake: Vec<usize>,
    swept: Now,
    first_slot: usize,
    rounds: u32,
    /// Whether the last round had a burst of packets.
    is_busy: bool,
    /// Ports that had packets in the last round.
    busy_ports: usize,
    statistics_due: Now,
    /// Time of the last packets that were not copies.
    arrived: Now,
}

/// The parts of a worker.
pub(crate) struct Parts {
    pub(crate) number: usize,
    pub(crate) memory: Arc<Memory>,
    pub(crate) free: FreeList,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) exchange: Arc<Exchange>,
    pub(crate) housekeeper: Option<Sender<Task>>,
    pub(crate) inspect: Option<Box<dyn Inspect>>,
}

impl Worker {
    pub(crate) fn new(parts: Parts) -> Self {
        let mut graph = Graph::default();
        graph.waiting.fit(parts.memory.count() as usize);
        let outgoing = (0..parts.exchange.workers()).map(|_| Vec::new()).collect();
        Self {
            number: parts.number,
            memory: parts.memory,
            free: parts.free,
            sessions: parts.sessions,
            snapshot: Arc::default(),
            graph,
            counters: parts.counters,
            slots: Slots::default(),
            mailbox: parts.mailbox,
            exchange: parts.exchange,
            housekeeper: parts.housekeeper,
            inspect: parts.inspect,
            packets: Vec::with_capacity(VECTOR),
            frames: Vec::with_capacity(VECTOR),
            outgoing,
            to_wake: Vec::new(),
            swept: Now::default(),
            first_slot: 0,
            rounds: 0,
            is_busy: false,
            busy_ports: 0,
            statistics_due: Now::default(),
            arrived: Now::default(),
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
            mailbox: Mailbox::new(),
            exchange: Exchange::new(1, 0),
            housekeeper: None,
            inspect,
        })
    }

    /// The mailbox of this worker.
    pub fn mailbox(&self) -> &Arc<Mailbox> {
        &self.mailbox
    }

    /// This worker's counters.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// The session table.
    pub fn sessions(&self) -> &Arc<Sessions> {
        &self.sessions
    }

    /// Free frames that this worker can take.
    pub fn free_frames(&self) -> usize {
        self.free.len() + self.graph.spare_frames()
    }

    /// The snapshot in use.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// Runs one round: the mailbox, then a burst from every port. Returns the packets handled.
    pub fn round(&mut self, now: Now) -> usize {
        self.run_commands();
        self.graph.waiting.expire(now);
        let mut handled = self.take_handoffs(now);
        let ports = self.slots.len();
        self.first_slot = if self.first_slot + 1 < ports { self.first_slot + 1 } else { 0 };
        self.rounds = self.rounds.wrapping_add(1);
        let burst = (ROUND / self.busy_ports.max(1)).clamp(BURST, VECTOR);
        self.busy_ports = 0;
        // Each round starts at another port, so that a busy one does not starve the others.
        for n in (self.first_slot..ports).chain(0..self.first_slot) {
            let is_due =
                !self.is_busy || self.rounds.wrapping_add(n as u32).is_multiple_of(SILENT_EVERY);
            if is_due || self.slots.at(n).is_none_or(|slot| slot.silent < UNTIL_SILENT) {
                let count = self.serve(n, burst, now);
                self.busy_ports += usize::from(count > 0);
                handled += count;
                // A vector was run. As many packets are taken from other workers, whose rounds have
                // several vectors too.
                if count > 0 && self.packets.is_empty() {
                    handled += self.take_handoffs(now);
                }
            }
        }
        self.run_vector(now);
        self.is_busy = handled >= BURST;
        self.sweep(now);
        if now >= self.statistics_due {
            self.statistics_due = Now(now.0 + STATISTICS);
            self.slots.release_captures();
            self.counters.free.set(self.free.own() as u64);
            self.look_at_ports();
        }
        let round =
            if handled > 0 { &self.counters.busy_rounds } else { &self.counters.idle_rounds };
        round.add(1);
        handled
    }

    /// Reads the ports' statistics, and gives up those that the kernel does not serve any more.
    fn look_at_ports(&mut self) {
        let mut gone = Vec::new();
        for slot in self.slots.iter_mut() {
            slot.counters.missed.set(slot.port.missed());
            match slot.port.look() {
                Ok(frames) => slot.counters.set_ring_frames(frames),
                Err(reason) => gone.push((slot.id, reason)),
            }
        }
        self.give_up(gone);
    }

    /// Runs rounds until one that polled every port had no packet; returns the packets handled. One round leaves
    /// frames behind: more than a burst at a port, and those of silent ports while others are busy.
    pub fn drain(&mut self, now: Now) -> usize {
        let mut all = 0;
        loop {
            let polls_all = !self.is_busy;
            match self.round(now) {
                0 if polls_all => return all,
                handled => all += handled,
            }
        }
    }

    /// Time of the last round with packets that were not forwarded already.
    pub(crate) fn arrived(&self) -> Now {
        self.arrived
    }

    /// Ends idle sessions in the next part of the table.
    #[inline]
    fn sweep(&mut self, now: Now) {
        let workers = self.exchange.workers() as u32;
        let elapsed = now.0.saturating_sub(self.swept.0);
        if elapsed >= SWEEP_EVERY * workers {
            self.swept = now;
            let share = elapsed * SWEPT_IN_MS / workers;
            let count = share.as_millis().min(MOST_SWEPT.into()) as u32;
            self.sessions.sweep(count, now.seconds());
        }
    }

    /// Runs the vector unless it has room for a burst.
    fn make_room(&mut self, now: Now) {
        if self.packets.len() + BURST > VECTOR {
            self.run_vector(now);
        }
    }

    /// Runs the vector through the graph and sends it, and after it the packets that wait no longer.
    fn run_vector(&mut self, now: Now) {
        if !self.packets.is_empty() {
            let Self { graph, packets, free, snapshot, memory, sessions, counters, .. } = self;
            if snapshot.needs_spare_frames() {
                graph.stock_extras(free);
            }
            graph.run(packets, snapshot, memory, sessions, counters, now);
            self.enqueue_vector(now);
        }
        while self.resume(now) {
            self.enqueue_vector(now);
        }
        self.send_extras();
        self.send();
    }

    #[inline]
    fn resume(&mut self, now: Now) -> bool {
        let Self { graph, packets, snapshot, memory, sessions, counters, .. } = self;
        graph.resume(packets, snapshot, memory, sessions, counters, now)
    }

    /// The ports this worker serves.
    pub(crate) fn ports(&self) -> impl Iterator<Item = &dyn Port> {
        self.slots.iter().map(|slot| &*slot.port)
    }

    /// Whether commands or hand-offs are queued.
    pub(crate) fn has_work(&self) -> bool {
        self.mailbox.has_waiting() || self.exchange.has_frames(self.number)
    }
}

#[cfg(test)]
mod tests;
