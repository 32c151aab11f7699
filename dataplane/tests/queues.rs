//! Ports whose queues are spread over workers, over memory ports.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use dataplane::port::memory::Wire;
use dataplane::port::{Buffers, Port, PortGone};
use dataplane::switch::Config;
use dataplane::{
    AclBinding, Frame, Memory, Outcome, Parts, PortId, PortKind, PortState, Snapshot, Switch,
};
use testkit::packet::udp;
use testkit::{PATIENCE, eventually};

const FRAMES: usize = 2048;
/// The port with queues, at 10.1.0.2, and one without, at 10.1.0.3.
const MANY: PortId = PortId(0);
const ONE: PortId = PortId(1);

struct Rig {
    switch: Switch,
    queues: Vec<Wire>,
    one: Wire,
}

impl Rig {
    fn new(workers: usize, queues: usize) -> Self {
        let (memory, frames) = Memory::heap(2048, FRAMES as u32);
        let config = Config { workers, ..Config::default() };
        let switch = Switch::start(&config, &memory, frames, |_| None).unwrap();
        let queues: Vec<Wire> = (0..queues).map(|_| Wire::default()).collect();
        let rig = Self { switch, queues, one: Wire::default() };
        rig.add_queues();
        rig.switch.add_port(ONE, rig.one.port());
        rig.publish(1, &[MANY, ONE]);
        rig
    }

    fn add_queues(&self) {
        self.switch.add_queues(MANY, self.queues.iter().map(Wire::port).collect());
    }

    /// Puts a snapshot in force that knows these ports.
    fn publish(&self, generation: u64, known: &[PortId]) {
        let pod = |(id, name, address): (PortId, &str, &str)| {
            let addresses = vec![address.parse::<std::net::IpAddr>().unwrap().into()];
            let (to_pod, from_pod) = (AclBinding::Open, AclBinding::Open);
            let state = PortState::new(name, PortKind::Pod);
            known.contains(&id).then_some(PortState { addresses, to_pod, from_pod, ..state })
        };
        let ports = [(MANY, "default/many", "10.1.0.2"), (ONE, "default/one", "10.1.0.3")];
        let ports = ports.into_iter().map(pod).collect();
        let snapshot = Snapshot::new(Parts { generation, ports, ..Parts::default() });
        self.switch.publish(&Arc::new(snapshot));
        assert!(self.switch.wait_in_force(generation, PATIENCE));
    }

    /// Queues of a port, by the worker that serves them.
    fn spread(&self, id: PortId) -> Vec<(usize, Range<usize>)> {
        let parts = self.switch.parts(id).into_iter().map(|part| (part.worker, part.queues));
        let mut parts: Vec<_> = parts.collect();
        parts.sort_by_key(|(worker, _)| *worker);
        parts
    }

    fn ended_as(&self, outcome: Outcome) -> u64 {
        self.switch.counters().map(|counters| counters.of(outcome)).sum()
    }

    /// Waits until every frame of the memory is free.
    fn assert_no_frame_lost(&self) {
        let hoard = Arc::new(AtomicUsize::new(0));
        let workers = self.switch.counters().count();
        let misers = (0..workers).map(|_| Box::new(Miser::new(&hoard)) as Box<dyn Port>);
        let id = self.switch.free_port_id().unwrap();
        self.switch.add_queues(id, misers.collect());
        assert_eq!(self.switch.parts(id).len(), workers);
        eventually("the return of every frame", || {
            (hoard.load(Ordering::Relaxed) == FRAMES).then_some(())
        });
        self.switch.remove_port(id);
    }
}

/// Keeps every free frame that its worker can reach.
struct Miser {
    kept: Vec<Frame>,
    hoard: Arc<AtomicUsize>,
}

impl Miser {
    fn new(hoard: &Arc<AtomicUsize>) -> Self {
        Self { kept: Vec::new(), hoard: Arc::clone(hoard) }
    }
}

impl Port for Miser {
    fn receive(
        &mut self,
        buffers: &mut Buffers<'_>,
        _most: usize,
        _frames: &mut Vec<Frame>,
    ) -> Result<(), PortGone> {
        while let Some(frame) = buffers.free.take() {
            self.kept.push(frame);
            self.hoard.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn send(
        &mut self,
        _buffers: &mut Buffers<'_>,
        _frames: &mut Vec<Frame>,
    ) -> Result<(), PortGone> {
        Ok(())
    }

    fn close(self: Box<Self>, buffers: &mut Buffers<'_>) {
        self.kept.into_iter().for_each(|frame| buffers.free.put(frame));
    }
}

fn ask(flow: u16, number: u32) -> Vec<u8> {
    let from = format!("10.1.0.2:{}", 1000 + flow);
    udp(&from, "10.1.0.3:53").payload(&number.to_be_bytes()).build()
}

fn answer(flow: u16, number: u32) -> Vec<u8> {
    let to = format!("10.1.0.2:{}", 1000 + flow);
    udp("10.1.0.3:53", &to).payload(&number.to_be_bytes()).build()
}

/// Flow and number of a packet that `ask` (its port stands at 34) or `answer` (at 36) made.
fn read(frame: &[u8], port_at: usize) -> (u16, u32) {
    let port = u16::from_be_bytes([frame[port_at], frame[port_at + 1]]);
    (port - 1000, u32::from_be_bytes(frame[42..46].try_into().unwrap()))
}

#[test]
fn queues_are_spread_over_workers() {
    let spread = |workers, queues| Rig::new(workers, queues).spread(MANY);
    assert_eq!(spread(2, 2), [(0, 0..1), (1, 1..2)]);
    assert_eq!(spread(3, 2), [(0, 0..1), (1, 1..2)]);
    assert_eq!(spread(2, 5), [(0, 0..3), (1, 3..5)]);
    assert_eq!(spread(1, 4), [(0, 0..4)]);
    let rig = Rig::new(3, 2);
    assert_eq!(rig.spread(ONE), [(2, 0..1)], "to the one that served nothing");
    rig.switch.remove_port(MANY);
    assert!(rig.spread(MANY).is_empty());
    // The busiest comes last.
    rig.add_queues();
    assert_eq!(rig.spread(MANY), [(0, 0..1), (1, 1..2)]);
}

/// However queues and workers are in number, every connection's packets arrive in order, in both
/// directions, and those that leave by the port with queues take one of them.
#[test]
fn no_packet_of_a_connection_overtakes_another() {
    const FLOWS: u16 = 24;
    const NUMBERS: u32 = 120;
    for (workers, queues) in [(2, 2), (3, 2), (2, 5), (1, 3)] {
        let rig = Rig::new(workers, queues);
        // Where an interface would put a flow.
        let queue = |flow: u16| &rig.queues[usize::from(flow) % queues];
        let (mut asked, mut answered) = (HashMap::new(), HashMap::new());
        let mut queue_of = HashMap::new();
        let mut take = || {
            while let Some(frame) = rig.one.receive() {
                let (flow, number) = read(&frame, 34);
                let next = asked.entry(flow).or_insert(0);
                assert_eq!(number, *next, "flow {flow}, {workers} workers, {queues} queues");
                *next += 1;
                rig.one.send(answer(flow, number));
            }
            for (n, queue) in rig.queues.iter().enumerate() {
                while let Some(frame) = queue.receive() {
                    let (flow, number) = read(&frame, 36);
                    assert_eq!(*queue_of.entry(flow).or_insert(n), n, "flow {flow}");
                    let next = answered.entry(flow).or_insert(0);
                    assert_eq!(number, *next, "flow {flow}, {workers} workers, {queues} queues");
                    *next += 1;
                }
            }
            answered.values().sum::<u32>()
        };
        for number in 0..NUMBERS {
            (0..FLOWS).for_each(|flow| queue(flow).send(ask(flow, number)));
            take();
        }
        let all = u32::from(FLOWS) * NUMBERS;
        eventually("the last answer", || (take() == all).then_some(()));
        assert_eq!(rig.switch.sessions().used(), u32::from(FLOWS), "one for both workers");
        let received = |part: &dataplane::switch::PortPart| part.counters.received.value();
        let parts = rig.switch.parts(MANY);
        assert_eq!(parts.iter().map(received).sum::<u64>(), u64::from(all));
        assert!(parts.iter().all(|part| received(part) > 0), "every worker had some");
        rig.assert_no_frame_lost();
    }
}

#[test]
fn fragments_find_each_other_whatever_queues_they_come_by() {
    const DATAGRAMS: u16 = 64;
    let rig = Rig::new(2, 2);
    for id in 0..DATAGRAMS {
        let from = format!("10.1.0.2:{}", 1000 + id);
        let packet = udp(&from, "10.1.0.3:53").payload(&[7; 200]).ip_id(id.into());
        let fragments = packet.fragments(104);
        for (n, fragment) in fragments.iter().enumerate() {
            // The first ones by queue 0, the others by queue 1.
            rig.queues[n.min(1)].send(fragment.clone());
        }
        let mut arrived = Vec::new();
        eventually("the last fragment", || {
            let new = std::iter::from_fn(|| rig.one.receive()).map(|frame| frame[34..].to_vec());
            arrived.extend(new);
            (arrived.len() == fragments.len()).then_some(())
        });
        assert!(fragments.iter().all(|it| arrived.contains(&it[34..].to_vec())), "datagram {id}");
    }
    let handled = |n: usize| {
        let counters = rig.switch.counters().nth(n).unwrap();
        counters.node(dataplane::graph::Node::Reassembly).packets.value()
    };
    assert!(handled(0) > 0 && handled(1) > 0, "both workers handle datagrams");
    rig.assert_no_frame_lost();
}

/// Says that it is over, also where an assertion fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Ports come and go while packets pass in both directions, handed from worker to worker.
#[test]
fn a_port_that_is_given_up_under_traffic_keeps_no_frame() {
    const ROUNDS: u64 = 60;
    // The one without queues is the third worker's alone.
    let rig = Rig::new(3, 2);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = End(&over);
        for wire in rig.queues.iter().chain([&rig.one]) {
            let (rig, over) = (&rig, &over);
            scope.spawn(move || {
                for n in 0.. {
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    let flow = (n % 100) as u16;
                    let is_one = std::ptr::eq(wire, &rig.one);
                    match is_one {
                        true => wire.send(answer(flow, n)),
                        false if n % 8 > 0 => wire.send(ask(flow, n)),
                        false => {
                            let packet = udp("10.1.0.2:900", "10.1.0.3:53").payload(&[1; 64]);
                            let fragments = packet.ip_id(n).fragments(32);
                            fragments.into_iter().for_each(|fragment| wire.send(fragment));
                        }
                    }
                    while wire.receive().is_some() {}
                    if n % 64 == 0 {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            });
        }
        for round in 1..=ROUNDS {
            let before = rig.ended_as(Outcome::Session);
            eventually("traffic", || (rig.ended_as(Outcome::Session) > before).then_some(()));
            let (gone, stays) = if round % 2 == 0 { (MANY, ONE) } else { (ONE, MANY) };
            rig.switch.remove_port(gone);
            assert_eq!(rig.switch.sessions().used_by(gone), 0);
            if round % 4 > 1 {
                rig.publish(3 * round, &[stays]);
            }
            match gone {
                MANY => rig.add_queues(),
                _ => rig.switch.add_port(ONE, rig.one.port()),
            }
            rig.publish(3 * round + 1, &[MANY, ONE]);
        }
    });
    assert!(rig.switch.is_alive());
    rig.switch.remove_port(ONE);
    rig.switch.remove_port(MANY);
    rig.assert_no_frame_lost();
}

/// A queue that fails when it is told to.
struct Failing {
    port: Box<dyn Port>,
    fails: Arc<AtomicBool>,
    closed: Arc<AtomicUsize>,
}

impl Port for Failing {
    fn receive(
        &mut self,
        buffers: &mut Buffers<'_>,
        most: usize,
        frames: &mut Vec<Frame>,
    ) -> Result<(), PortGone> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(PortGone("the queue failed".into()));
        }
        self.port.receive(buffers, most, frames)
    }

    fn send(&mut self, buffers: &mut Buffers<'_>, frames: &mut Vec<Frame>) -> Result<(), PortGone> {
        self.port.send(buffers, frames)
    }

    fn close(self: Box<Self>, buffers: &mut Buffers<'_>) {
        self.port.close(buffers);
        self.closed.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_queue_that_fails_is_reported_and_the_others_go_with_the_port() {
    let rig = Rig::new(2, 0);
    let wires: Vec<Wire> = (0..3).map(|_| Wire::default()).collect();
    let fails: Vec<Arc<AtomicBool>> = wires.iter().map(|_| Arc::default()).collect();
    let closed = Arc::new(AtomicUsize::new(0));
    let queues = std::iter::zip(&wires, &fails).map(|(wire, fails)| {
        let (fails, closed) = (Arc::clone(fails), Arc::clone(&closed));
        Box::new(Failing { port: wire.port(), fails, closed }) as Box<dyn Port>
    });
    rig.switch.add_queues(MANY, queues.collect());
    wires[0].send(ask(0, 0));
    eventually("the question's arrival", || rig.one.receive());
    assert!(rig.switch.take_gone().is_empty());
    fails[2].store(true, Ordering::Relaxed);
    let gone = eventually("the report", || rig.switch.take_gone().pop());
    assert_eq!((gone.0, gone.1.to_string()), (MANY, "the queue failed".to_owned()));
    // The part of the other worker serves on until the port is given up.
    wires[0].send(ask(0, 1));
    eventually("the question's arrival", || rig.one.receive());
    rig.switch.remove_port(MANY);
    rig.switch.finish_closing();
    assert_eq!(closed.load(Ordering::Relaxed), 3, "the interfaces are free again");
    rig.one.send(answer(0, 0));
    eventually("the refusal", || (rig.ended_as(Outcome::PortGone) == 1).then_some(()));
    rig.assert_no_frame_lost();
}
