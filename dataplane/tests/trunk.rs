//! Ports whose frames share one link, told apart by tags that whoever is at its other end writes.

use std::sync::Arc;
use std::time::Duration;

use acl::Address;
use dataplane::port::memory::Wire;
use dataplane::port::{Buffers, Port, PortGone, Tag};
use dataplane::session::{Sessions, Timeouts};
use dataplane::switch::Config;
use dataplane::wire::{Mac, SWITCH_MAC};
use dataplane::{
    AclBinding, Frame, Memory, Outcome, Parts, PortId, PortKind, PortState, Snapshot, Switch,
};
use testkit::{PATIENCE, eventually, packet};

const TRUNK: PortId = PortId(0);

fn mac(n: u16) -> Mac {
    [2, 0, 0, 0, 0, n as u8]
}

fn pod(n: u16) -> Option<PortState> {
    Some(PortState {
        mac: Some(mac(n)),
        addresses: vec![Address::from_v4_bits(0x0a01_0000 + u32::from(n))],
        to_pod: AclBinding::Open,
        from_pod: AclBinding::Open,
        ..PortState::new(format!("default/pod{n}"), PortKind::Pod)
    })
}

/// A switch with pods 1 and 2 on a trunk and pod 3 on a port of its own.
struct Rig {
    switch: Switch,
    trunk: Wire,
    own: Wire,
    tags: [Tag; 2],
}

impl Rig {
    fn new(workers: usize) -> Self {
        let (memory, frames) = Memory::heap(2048, 1024);
        let config = Config { workers, ports: 16, sessions: 1024, ..Config::default() };
        let sessions = Sessions::new(1024, 16, Timeouts::default());
        let switch = Switch::start_over(&config, sessions, &memory, frames, |_| None).unwrap();
        let (trunk, own) = (Wire::default(), Wire::default());
        switch.add_port(TRUNK, trunk.port());
        let tags = [1, 2].map(|n| switch.add_member(PortId(n), TRUNK));
        switch.add_port(PortId(3), own.port());
        let rig = Self { switch, trunk, own, tags };
        rig.publish(1, vec![None, pod(1), pod(2), pod(3)]);
        rig
    }

    fn publish(&self, generation: u64, ports: Vec<Option<PortState>>) {
        let parts = Parts { generation, ports, ..Parts::default() };
        self.switch.publish(&Arc::new(Snapshot::new(parts)));
        assert!(self.switch.wait_in_force(generation, PATIENCE));
    }

    fn outcomes(&self, outcome: Outcome) -> u64 {
        self.switch.counters().map(|counters| counters.of(outcome)).sum()
    }

    fn wait_for(&self, outcome: Outcome, count: u64) {
        eventually(&format!("the outcome {outcome}"), || {
            (self.outcomes(outcome) >= count).then_some(())
        });
    }
}

fn receive(wire: &Wire) -> Vec<u8> {
    eventually("a frame", || wire.receive())
}

/// A datagram of a pod with what stands in the place of its destination's MAC address.
fn datagram(from: u16, to: u16, place: Mac) -> Vec<u8> {
    let end = |n: u16| format!("10.1.0.{n}:{}", 1000 + n);
    let frame = packet::udp(&end(from), &end(to)).payload(b"hello").from_mac(mac(from));
    frame.to_mac(place).build()
}

#[test]
fn frames_of_a_trunk_are_those_of_its_members() {
    for workers in [1, 2] {
        let rig = Rig::new(workers);
        let [one, two] = rig.tags.map(Tag::bytes);
        rig.trunk.send(datagram(1, 2, one));
        let frame = receive(&rig.trunk);
        assert_eq!((&frame[..6], &frame[6..12]), (&two[..], &SWITCH_MAC[..]));
        rig.trunk.send(datagram(2, 3, two));
        let frame = receive(&rig.own);
        assert_eq!((&frame[..6], &frame[6..12]), (&mac(3)[..], &SWITCH_MAC[..]));
        rig.own.send(datagram(3, 1, SWITCH_MAC));
        assert_eq!(receive(&rig.trunk)[..6], one);
        // Each member has its own counters.
        for (n, received, sent) in [(1, 1, 1), (2, 1, 1), (3, 1, 1)] {
            let parts = rig.switch.parts(PortId(n));
            let of = |count: fn(&dataplane::switch::PortPart) -> u64| -> u64 {
                parts.iter().map(count).sum()
            };
            eventually(&format!("the counts of port {n}"), || {
                let seen =
                    (of(|it| it.counters.received.value()), of(|it| it.counters.sent.value()));
                (seen == (received, sent)).then_some(())
            });
        }
    }
}

#[test]
fn a_tag_holds_its_port_to_that_ports_addresses() {
    let rig = Rig::new(1);
    let [one, two] = rig.tags.map(Tag::bytes);
    // Pod 2's frame under the tag of pod 1, and pod 1's address from another MAC address.
    rig.trunk.send(datagram(2, 3, one));
    rig.wait_for(Outcome::SpoofedMac, 1);
    let mut forged = datagram(2, 3, two);
    forged[26..30].copy_from_slice(&[10, 1, 0, 1]);
    let sum = !dataplane::wire::checksum::fold(dataplane::wire::checksum::sum(&{
        let mut header = forged[14..34].to_vec();
        header[10..12].fill(0);
        header
    }));
    forged[24..26].copy_from_slice(&sum.to_be_bytes());
    rig.trunk.send(forged);
    rig.wait_for(Outcome::SpoofedAddress, 1);
    assert_eq!(rig.own.receive(), None);
}

#[test]
fn tags_of_no_port_and_of_ports_that_are_gone_end_their_frames() {
    let rig = Rig::new(1);
    let [one, two] = rig.tags.map(Tag::bytes);
    rig.trunk.send(datagram(1, 3, SWITCH_MAC));
    rig.wait_for(Outcome::PortGone, 1);
    rig.switch.remove_port(PortId(1));
    rig.trunk.send(datagram(1, 3, one));
    rig.wait_for(Outcome::PortGone, 2);
    rig.publish(2, vec![None, None, pod(2), pod(3)]);
    // The next port of that number has another tag.
    let next = rig.switch.add_member(PortId(1), TRUNK);
    assert_ne!(next.bytes(), one);
    rig.publish(3, vec![None, pod(1), pod(2), pod(3)]);
    rig.trunk.send(datagram(1, 3, one));
    rig.wait_for(Outcome::PortGone, 3);
    rig.trunk.send(datagram(1, 3, next.bytes()));
    receive(&rig.own);
    rig.trunk.send(datagram(2, 3, two));
    receive(&rig.own);
}

#[test]
fn no_snapshot_counts_before_what_forwards_beside_the_workers_has_caught_up() {
    let rig = Rig::new(1);
    rig.switch.set_beside(1);
    let parts = Parts { generation: 2, ports: vec![None, pod(1)], ..Parts::default() };
    rig.switch.publish(&Arc::new(Snapshot::new(parts)));
    assert!(!rig.switch.wait_in_force(2, Duration::from_millis(50)));
    assert_eq!(rig.switch.generation(), 1);
    rig.switch.set_beside(u64::MAX);
    assert!(rig.switch.wait_in_force(2, PATIENCE));
    assert_eq!(rig.switch.generation(), 2);
}

/// A wire whose frames are copies of what was forwarded beside the workers.
struct Copies(Box<dyn Port>);

impl Port for Copies {
    fn receive(
        &mut self,
        buffers: &mut Buffers<'_>,
        most: usize,
        frames: &mut Vec<Frame>,
    ) -> Result<(), PortGone> {
        let before = frames.len();
        let received = self.0.receive(buffers, most, frames);
        let copies: Vec<Frame> = frames.drain(before..).map(Frame::copied).collect();
        frames.extend(copies);
        received
    }

    fn send(&mut self, buffers: &mut Buffers<'_>, frames: &mut Vec<Frame>) -> Result<(), PortGone> {
        self.0.send(buffers, frames)
    }

    fn close(self: Box<Self>, buffers: &mut Buffers<'_>) {
        self.0.close(buffers);
    }
}

/// It opens its connection, and neither leaves nor counts for the ports.
#[test]
fn a_copy_of_what_was_forwarded_goes_through_the_graph_alone() {
    let (memory, frames) = Memory::heap(2048, 64);
    let config = Config { workers: 1, ports: 16, sessions: 1024, ..Config::default() };
    let sessions = Sessions::new(1024, 16, Timeouts::default());
    let switch = Switch::start_over(&config, sessions, &memory, frames, |_| None).unwrap();
    let (trunk, own) = (Wire::default(), Wire::default());
    switch.add_port(TRUNK, Box::new(Copies(trunk.port())));
    let tags = [1, 2].map(|n| switch.add_member(PortId(n), TRUNK));
    switch.add_port(PortId(3), own.port());
    let rig = Rig { switch, trunk, own, tags };
    rig.publish(1, vec![None, pod(1), pod(2), pod(3)]);
    // More than there are frames.
    for n in 1..=100 {
        rig.trunk.send(datagram(1, if n % 2 == 0 { 2 } else { 3 }, rig.tags[0].bytes()));
        eventually("the packet", || {
            let counted = [Outcome::PolicyAllowed, Outcome::Session].map(|it| rig.outcomes(it));
            (counted.iter().sum::<u64>() == n).then_some(())
        });
    }
    rig.wait_for(Outcome::PolicyAllowed, 2);
    assert_eq!((rig.trunk.receive(), rig.own.receive()), (None, None));
    assert_eq!(rig.switch.sessions().iter().count(), 2);
    for part in [1, 2, 3].into_iter().flat_map(|n| rig.switch.parts(PortId(n))) {
        assert_eq!((part.counters.received.value(), part.counters.sent.value()), (0, 0));
    }
    // What answers them leaves.
    rig.own.send(datagram(3, 1, SWITCH_MAC));
    assert_eq!(receive(&rig.trunk)[..6], rig.tags[0].bytes());
}
