//! Frames that a round takes of each port and of other workers.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::PortId;
use crate::exchange::{self, Handoff, HandoffKind};
use crate::mailbox::Command;
use crate::port::{Buffers, PortGone};
use crate::session::Timeouts;

/// A port that always has packets, or copies of packets that were forwarded already. It stores the number of packets
/// of its worker's last request.
#[derive(Default)]
struct Endless {
    asked: Arc<AtomicUsize>,
    has_copies: bool,
}

impl Port for Endless {
    fn receive(
        &mut self,
        buffers: &mut Buffers<'_>,
        most: usize,
        frames: &mut Vec<Frame>,
    ) -> Result<(), PortGone> {
        self.asked.store(most, Ordering::Relaxed);
        buffers.free.take_many(most, frames);
        if self.has_copies {
            frames.iter_mut().for_each(|frame| *frame = frame.take().copied());
        }
        Ok(())
    }

    fn send(&mut self, buffers: &mut Buffers<'_>, frames: &mut Vec<Frame>) -> Result<(), PortGone> {
        buffers.free.put_all(frames);
        Ok(())
    }

    fn close(self: Box<Self>, _buffers: &mut Buffers<'_>) {}
}

/// A port whose end waits for those of three others, for a while. It counts those that are being closed, and the
/// most there were.
struct Together(Arc<(AtomicUsize, AtomicUsize)>);

impl Port for Together {
    fn receive(
        &mut self,
        _: &mut Buffers<'_>,
        _: usize,
        _: &mut Vec<Frame>,
    ) -> Result<(), PortGone> {
        Ok(())
    }

    fn send(&mut self, _: &mut Buffers<'_>, _: &mut Vec<Frame>) -> Result<(), PortGone> {
        Ok(())
    }

    fn close(self: Box<Self>, _buffers: &mut Buffers<'_>) {
        let (closing, most) = &*self.0;
        most.fetch_max(closing.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        testkit::eventually("the others", || (most.load(Ordering::SeqCst) == 4).then_some(()));
        closing.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The kernel makes each wait, so that one after the other would take long.
#[test]
fn an_ending_worker_closes_its_ports_at_the_same_time() {
    const PORTS: u16 = 4;
    let (mut worker, _) = worker(0, 64);
    let closing: Arc<(AtomicUsize, AtomicUsize)> = Arc::default();
    worker.exchange = Exchange::new(2, PORTS);
    for n in 0..PORTS {
        let port = Box::new(Together(Arc::clone(&closing)));
        worker.mailbox.send(Command::AddPort(PortId(n), port, Arc::default()));
    }
    worker.round(Now::default());
    assert_eq!(worker.ports().count(), usize::from(PORTS));
    drop(worker);
    assert_eq!(closing.1.load(Ordering::SeqCst), usize::from(PORTS));
}

/// The second of two workers after its first round. It serves `ports` ports that always have packets; with the number
/// that it asked each of them for last.
fn worker(ports: u16, frames: u32) -> (Worker, Vec<Arc<AtomicUsize>>) {
    let (memory, frames) = Memory::heap(2048, frames);
    let exchange = Exchange::new(2, ports);
    (0..ports).for_each(|n| exchange.set_owners(PortId(n), &[1]));
    let mut worker = Worker::new(Parts {
        number: 1,
        free: FreeList::new(&memory, frames),
        memory,
        sessions: Sessions::new(16, ports, Timeouts::default()),
        counters: Arc::default(),
        mailbox: Mailbox::new(),
        exchange,
        housekeeper: None,
        inspect: None,
    });
    let asked: Vec<Arc<AtomicUsize>> = (0..ports).map(|_| Arc::default()).collect();
    for (n, asked) in asked.iter().enumerate() {
        let port = Box::new(Endless { asked: Arc::clone(asked), has_copies: false });
        worker.mailbox.send(Command::AddPort(PortId(n as u16), port, Arc::default()));
    }
    worker.round(Now::default());
    (worker, asked)
}

/// A busy port may fill a vector; where many are busy none of them keeps the others waiting for that
/// long.
#[test]
fn the_more_ports_are_busy_the_fewer_packets_each_has_in_a_round() {
    for (ports, wanted) in [(1, 256), (4, 256), (8, 128), (16, 64), (100, 64)] {
        let (mut worker, asked) = worker(ports, 512);
        let handled = worker.round(Now::default());
        assert_eq!(handled, wanted * usize::from(ports), "of {ports} ports");
        assert!(asked.iter().all(|asked| asked.load(Ordering::Relaxed) == wanted));
    }
}

/// A worker polls for a while after packets have arrived, since more of them may follow.
#[test]
fn a_worker_does_not_stay_awake_for_copies_of_what_was_forwarded() {
    let now = Now(std::time::Duration::from_secs(1));
    let (mut awake, _) = worker(1, 512);
    assert!(awake.round(now) > 0);
    assert_eq!(awake.arrived(), now);
    let (mut worker, _) = worker(0, 512);
    let copies = Box::new(Endless { has_copies: true, ..Endless::default() });
    worker.mailbox.send(Command::AddPort(PortId(0), copies, Arc::default()));
    assert!(worker.round(now) > 0);
    assert_eq!(worker.arrived(), Now::default());
}

/// A round may be several vectors, each of which fills the rings of others.
#[test]
fn as_many_packets_are_taken_from_other_workers_as_from_ports() {
    const PORTS: u16 = 4;
    let (mut worker, _) = worker(PORTS, 4096);
    let wanted = VECTOR * usize::from(PORTS);
    for _ in 0..wanted / exchange::BATCH {
        let mut frames = Vec::new();
        worker.free.take_many(exchange::BATCH, &mut frames);
        let (port, epoch) = (PortId(0), worker.exchange.epoch(PortId(0)));
        let handoff = |frame| Handoff { frame, port, epoch, kind: HandoffKind::Egress };
        worker.exchange.hand_over(1, &mut frames.into_iter().map(handoff).collect());
    }
    assert_eq!(worker.round(Now::default()), 2 * wanted);
    assert!(!worker.exchange.has_frames(1));
    assert_eq!(worker.free.len(), 4096, "all frames are free again");
}

/// A round is to take as long over a large table as over a small one: every session is idle here, so the places that
/// a round looks at are those whose sessions it ends.
#[test]
fn a_sweep_looks_at_as_many_places_in_a_large_table_as_in_a_small_one() {
    let swept = |sessions: u32| {
        let table = Sessions::new(sessions, 1, Timeouts::default());
        for n in 0..sessions {
            let flow = crate::wire::Flow {
                source: acl::Address::from_v4_bits(n),
                destination: acl::Address::from_v4_bits(1),
                source_port: 1,
                destination_port: 1,
                protocol: 17,
            };
            let opening = crate::session::Opening {
                owner: crate::session::Owner::port(PortId(0)),
                adjacency: crate::Adjacency::port(PortId(0)),
                generation: 1,
                tcp_flags: 0,
            };
            table.open(&crate::session::Tuples::plain(flow), &opening, 0).unwrap();
        }
        let (memory, frames) = Memory::heap(2048, 16);
        let mut worker = Worker::alone(memory, frames, table, None);
        let mut now = Duration::from_secs(100);
        let mut round = |pause: Duration| {
            let before = worker.sessions.used();
            now += pause;
            worker.round(Now(now));
            before - worker.sessions.used()
        };
        // After an hour's sleep, then again and again.
        let first = round(Duration::from_secs(3600));
        (first, [(); 100].map(|()| round(SWEEP_EVERY)).iter().sum::<u32>())
    };
    let (first, later) = swept(1 << 14);
    assert!(
        first == MOST_SWEPT && later > 0 && later <= 100 * SWEPT_IN_MS * 8 / 25,
        "{first}, {later}"
    );
    assert_eq!(swept(1 << 17), (first, later));
}
