//! The switch as a whole, over memory ports: several workers, snapshots that change under traffic.

use std::sync::Arc;

use acl::{Action, AddressMap, PortRange, Rule, Table};
use dataplane::port::memory::Wire;
use dataplane::port::{Buffers, Port, PortGone};
use dataplane::switch::{Config, RxMode};
use dataplane::wire::protocol;
use dataplane::{
    AclBinding, Frame, Memory, Outcome, Parts, PortId, PortKind, PortState, Snapshot, Switch,
};
use testkit::packet::{tcp, udp};
use testkit::{PATIENCE, eventually};

fn table(permitted: &[u16]) -> AclBinding {
    let map = Arc::new(AddressMap::default());
    let permit = |port: &u16| {
        Rule::new(Action::Permit, format!("permit {port}"))
            .protocol(protocol::UDP)
            .destination_ports(PortRange::one(*port))
    };
    let mut rules: Vec<Rule> = permitted.iter().map(permit).collect();
    rules.push(Rule::new(Action::Deny, "deny"));
    AclBinding::Table(Arc::new(Table::compile(rules.into(), &map)))
}

fn pod(name: &str, address: &str, to_pod: AclBinding, from_pod: AclBinding) -> Option<PortState> {
    let address: std::net::IpAddr = address.parse().unwrap();
    let addresses = vec![address.into()];
    Some(PortState { addresses, to_pod, from_pod, ..PortState::new(name, PortKind::Pod) })
}

fn snapshot(generation: u64, ports: Vec<Option<PortState>>) -> Arc<Snapshot> {
    Arc::new(Snapshot::new(Parts { generation, ports, ..Parts::default() }))
}

struct Rig {
    switch: Switch,
    wires: Vec<Wire>,
}

impl Rig {
    fn new(workers: usize, ports: usize) -> Self {
        let (memory, frames) = Memory::heap(2048, 4096);
        let config = Config { workers, rx_mode: RxMode::Adaptive, ..Config::default() };
        let switch = Switch::start(&config, &memory, frames, |_| None).unwrap();
        let wires: Vec<Wire> = (0..ports).map(|_| Wire::default()).collect();
        for wire in &wires {
            let id = switch.free_port_id().unwrap();
            switch.add_port(id, wire.port());
        }
        Self { switch, wires }
    }

    fn publish(&self, snapshot: &Arc<Snapshot>) {
        self.switch.publish(snapshot);
        assert!(self.switch.wait_in_force(snapshot.generation, PATIENCE));
    }

    fn ended_as(&self, outcome: Outcome) -> u64 {
        self.switch.counters().map(|counters| counters.of(outcome)).sum()
    }
}

#[test]
fn packets_cross_from_worker_to_worker_and_back() {
    let rig = Rig::new(2, 2);
    let worker = |port| rig.switch.parts(PortId(port))[0].worker;
    assert_ne!(worker(0), worker(1));
    rig.publish(&snapshot(
        1,
        vec![
            pod("default/a", "10.1.0.2", AclBinding::Open, AclBinding::Open),
            pod("default/b", "10.1.0.3", table(&[53]), AclBinding::Open),
        ],
    ));
    rig.wires[0].send(udp("10.1.0.2:4000", "10.1.0.3:53").payload(b"question").build());
    let question = eventually("the question's arrival", || rig.wires[1].receive());
    assert!(question.ends_with(b"question"));
    rig.wires[1].send(udp("10.1.0.3:53", "10.1.0.2:4000").payload(b"answer").build());
    let answer = eventually("the answer's arrival", || rig.wires[0].receive());
    assert!(answer.ends_with(b"answer"));
    assert_eq!((rig.ended_as(Outcome::PolicyAllowed), rig.ended_as(Outcome::Session)), (1, 1));
}

#[test]
fn a_port_without_tables_is_closed_and_one_without_a_state_is_no_port() {
    let rig = Rig::new(1, 3);
    rig.publish(&snapshot(
        1,
        vec![
            pod("default/a", "10.1.0.2", AclBinding::Open, AclBinding::Open),
            pod("default/b", "10.1.0.3", AclBinding::Closed, AclBinding::Closed),
        ],
    ));
    rig.wires[0].send(tcp("10.1.0.2:4000", "10.1.0.3:80").syn().build());
    rig.wires[1].send(tcp("10.1.0.3:4000", "10.1.0.2:80").syn().build());
    rig.wires[2].send(tcp("10.1.0.4:4000", "10.1.0.2:80").syn().build());
    eventually("three refusals", || {
        let closed = rig.ended_as(Outcome::Closed) == 2;
        (closed && rig.ended_as(Outcome::PortGone) == 1).then_some(())
    });
    assert!(rig.wires.iter().all(|wire| wire.receive().is_none()));
}

/// Before its first snapshot a switch knows no port, so nothing passes.
#[test]
fn nothing_passes_before_the_first_snapshot() {
    let rig = Rig::new(1, 2);
    rig.wires[0].send(udp("10.1.0.2:4000", "10.1.0.3:53").build());
    eventually("the refusal", || (rig.ended_as(Outcome::PortGone) == 1).then_some(()));
    assert!(rig.wires[1].receive().is_none());
}

/// Port 9 is permitted by one end in even generations and by the other in odd ones: only a
/// packet judged by half of two snapshots would pass. Port 53 is always permitted: only a packet
/// lost to a swap would be missing.
#[test]
fn no_packet_is_evaluated_by_half_of_two_snapshots_or_lost_to_a_swap() {
    const PACKETS: u16 = 20_000;
    let rig = Rig::new(2, 2);
    let (both, one) = (table(&[53, 9]), table(&[53]));
    let ends = |even: bool| {
        let (sender, receiver) = if even { (&both, &one) } else { (&one, &both) };
        vec![
            pod("default/a", "10.1.0.2", AclBinding::Open, sender.clone()),
            pod("default/b", "10.1.0.3", receiver.clone(), AclBinding::Open),
        ]
    };
    rig.publish(&snapshot(1, ends(false)));
    let mut arrived = 0_u64;
    let mut take_arrivals = || {
        while let Some(frame) = rig.wires[1].receive() {
            assert_eq!(frame[36..38], 53_u16.to_be_bytes(), "port 9 must never pass");
            arrived += 1;
        }
        arrived
    };
    let mut generation = 1;
    for n in 0..PACKETS {
        // Sixteen clients ask again and again: most packets find a session of an older
        // generation and are evaluated again.
        let client = format!("10.1.0.2:{}", 1024 + n % 16);
        rig.wires[0].send(udp(&client, "10.1.0.3:53").build());
        rig.wires[0].send(udp(&client, "10.1.0.3:9").build());
        if n % 4 == 0 {
            generation += 1;
            rig.switch.publish(&snapshot(generation, ends(generation % 2 == 0)));
        }
        take_arrivals();
    }
    assert!(rig.switch.wait_in_force(generation, PATIENCE));
    eventually("the last arrival", || (take_arrivals() == u64::from(PACKETS)).then_some(()));
    eventually("the last refusal", || {
        (rig.ended_as(Outcome::PolicyDenied) == u64::from(PACKETS)).then_some(())
    });
}

#[test]
fn a_new_deny_ends_a_live_connection_and_an_unrelated_change_does_not() {
    let rig = Rig::new(1, 2);
    let ends = |permitted: &[u16]| {
        vec![
            pod("default/a", "10.1.0.2", AclBinding::Open, AclBinding::Open),
            pod("default/b", "10.1.0.3", table(permitted), AclBinding::Open),
        ]
    };
    let ask = || rig.wires[0].send(udp("10.1.0.2:4000", "10.1.0.3:53").build());
    let answer = || rig.wires[1].send(udp("10.1.0.3:53", "10.1.0.2:4000").build());
    rig.publish(&snapshot(1, ends(&[53])));
    ask();
    eventually("the question's arrival", || rig.wires[1].receive());
    rig.publish(&snapshot(2, ends(&[53, 80])));
    answer();
    eventually("the answer's arrival", || rig.wires[0].receive());
    rig.publish(&snapshot(3, ends(&[80])));
    answer();
    eventually("the refusal", || (rig.ended_as(Outcome::PolicyDenied) == 1).then_some(()));
    let sessions = rig.switch.sessions();
    assert!(sessions.iter().all(|(found, _)| found.state().is_refused()));
}

/// A worker that decides by an older snapshot sends to a pod by its port's number: that number is
/// nobody else's before all of them know better.
#[test]
fn a_number_is_not_given_again_while_workers_know_it_as_another_ports() {
    let rig = Rig::new(2, 3);
    let ends = |first: bool| {
        let first =
            if first { pod("a", "10.1.0.2", AclBinding::Open, AclBinding::Open) } else { None };
        vec![first, pod("b", "10.1.0.3", AclBinding::Open, AclBinding::Open)]
    };
    rig.publish(&snapshot(1, ends(true)));
    rig.switch.remove_port(PortId(0));
    assert_eq!(rig.switch.free_port_id(), Some(PortId(3)));
    rig.publish(&snapshot(2, ends(false)));
    assert_eq!(rig.switch.free_port_id(), Some(PortId(0)));
}

#[test]
fn numbers_that_were_just_given_up_are_waited_for() {
    let (memory, frames) = Memory::heap(2048, 256);
    let config = Config { workers: 2, ports: 1, ..Config::default() };
    let switch = Switch::start(&config, &memory, frames, |_| None).unwrap();
    for generation in 1..100 {
        let id = switch.free_port_id().expect("the only number");
        switch.add_port(id, Wire::default().port());
        assert_eq!(switch.free_port_id(), None);
        switch.publish(&snapshot(2 * generation, Vec::new()));
        switch.remove_port(id);
        switch.publish(&snapshot(2 * generation + 1, Vec::new()));
    }
}

#[test]
fn a_port_that_is_given_up_gives_its_number_back() {
    let rig = Rig::new(2, 2);
    rig.switch.remove_port(PortId(0));
    assert!(rig.switch.parts(PortId(0)).is_empty());
    assert_eq!(rig.switch.free_port_id(), Some(PortId(0)));
    rig.publish(&snapshot(
        1,
        vec![None, pod("default/b", "10.1.0.3", AclBinding::Open, AclBinding::Open)],
    ));
    rig.wires[1].send(udp("10.1.0.3:53", "10.1.0.2:4000").build());
    eventually("the refusal", || (rig.ended_as(Outcome::NoRoute) == 1).then_some(()));
}

/// A port over nothing; closing it takes until the test lets it.
struct SlowToClose {
    begins: std::sync::mpsc::Sender<()>,
    may_end: std::sync::mpsc::Receiver<()>,
}

impl Port for SlowToClose {
    fn receive(
        &mut self,
        _buffers: &mut Buffers<'_>,
        _most: usize,
        _frames: &mut Vec<Frame>,
    ) -> Result<(), PortGone> {
        Ok(())
    }

    fn send(
        &mut self,
        _buffers: &mut Buffers<'_>,
        _frames: &mut Vec<Frame>,
    ) -> Result<(), PortGone> {
        Ok(())
    }

    fn close(self: Box<Self>, _buffers: &mut Buffers<'_>) {
        self.begins.send(()).unwrap();
        self.may_end.recv_timeout(PATIENCE).unwrap();
    }
}

/// The kernel closes an AF_XDP socket when all processors have passed a point of rest.
#[test]
fn packets_pass_while_a_port_is_closed() {
    let rig = Rig::new(1, 2);
    let (begins, has_begun) = std::sync::mpsc::channel();
    let (end, may_end) = std::sync::mpsc::channel();
    let id = rig.switch.free_port_id().unwrap();
    rig.switch.add_port(id, Box::new(SlowToClose { begins, may_end }));
    rig.publish(&snapshot(
        1,
        vec![
            pod("default/a", "10.1.0.2", AclBinding::Open, AclBinding::Open),
            pod("default/b", "10.1.0.3", AclBinding::Open, AclBinding::Open),
        ],
    ));
    std::thread::scope(|scope| {
        let removal = scope.spawn(|| {
            rig.switch.remove_port(id);
            rig.switch.finish_closing();
        });
        has_begun.recv_timeout(PATIENCE).expect("the port is being closed");
        for n in 0..100 {
            rig.wires[0].send(udp("10.1.0.2:4000", "10.1.0.3:53").payload(&[n]).build());
            let arrived = eventually("a packet's arrival", || rig.wires[1].receive());
            assert!(arrived.ends_with(&[n]));
        }
        end.send(()).unwrap();
        removal.join().unwrap();
    });
}

/// The next pod with an address gets nothing of the sessions that touch it, whichever end opened them.
#[test]
fn sessions_end_with_the_pod_that_had_their_address() {
    let mut rig = Rig::new(2, 2);
    let ports = |server: &str| {
        vec![
            pod("default/client", "10.1.0.2", AclBinding::Open, AclBinding::Open),
            pod(server, "10.1.0.3", AclBinding::Open, AclBinding::Open),
        ]
    };
    rig.publish(&snapshot(1, ports("default/old")));
    let there = tcp("10.1.0.2:4000", "10.1.0.3:80");
    rig.wires[0].send(there.clone().syn().build());
    eventually("a connection to the pod", || rig.wires[1].receive());
    rig.wires[1].send(udp("10.1.0.3:4000", "10.1.0.2:53").payload(b"?").build());
    eventually("a packet of the pod", || rig.wires[0].receive());
    assert_eq!(rig.switch.sessions().used(), 2);

    rig.switch.remove_port(PortId(1));
    let client_alone = ports("default/old").into_iter().take(1).collect();
    rig.publish(&snapshot(2, client_alone));
    eventually("the end of all sessions", || (rig.switch.sessions().used() == 0).then_some(()));

    rig.wires[1] = Wire::default();
    let id = eventually("a number", || rig.switch.free_port_id());
    assert_eq!(id, PortId(1));
    rig.switch.add_port(id, rig.wires[1].port());
    rig.publish(&snapshot(3, ports("default/new")));
    let before = rig.ended_as(Outcome::NoSession);
    rig.wires[0].send(there.data(b"for the old one").build());
    eventually("a refusal", || (rig.ended_as(Outcome::NoSession) > before).then_some(()));
    assert!(rig.wires[1].receive().is_none());
}

/// Pods of other nodes come and go without a port; the control side says when.
#[test]
fn sessions_end_with_a_pod_elsewhere() {
    let rig = Rig::new(1, 2);
    let ports = || {
        let uplink = Some(PortState::new("uplink", PortKind::Uplink));
        vec![pod("default/a", "10.1.0.2", AclBinding::Open, AclBinding::Open), uplink]
    };
    rig.publish(&snapshot(1, ports()));
    let packet = |from: &str, to: &str| udp(from, to).payload(b"x").build();
    for n in 2..4 {
        rig.wires[0].send(packet("10.1.0.2:4000", &format!("10.2.0.{n}:53")));
        eventually("a packet's arrival", || rig.wires[1].receive());
    }
    let address: std::net::IpAddr = "10.2.0.2".parse().unwrap();
    rig.switch.depart([address.into()]);
    rig.publish(&snapshot(2, ports()));
    eventually("the session's end", || (rig.switch.sessions().used() == 1).then_some(()));
    // What the next pod of the address opens is its own, and lives.
    rig.wires[0].send(packet("10.1.0.2:4000", "10.2.0.2:53"));
    eventually("a packet's arrival", || rig.wires[1].receive());
    rig.publish(&snapshot(3, ports()));
    rig.wires[1].send(packet("10.2.0.2:53", "10.1.0.2:4000"));
    eventually("an answer", || rig.wires[0].receive());
    assert_eq!(rig.switch.sessions().used(), 2);
}
