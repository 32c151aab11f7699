//! What the program makes of a packet is what the graph makes of it, byte for byte.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use dataplane::mailbox::Command;
use dataplane::port::memory::Wire;
use dataplane::session::{Opening, Owner, Sessions, Timeouts, Tuples};
use dataplane::wire::{Flow, Mac, SWITCH_MAC, parse, partial_checksum, protocol};
use dataplane::{
    AclBinding, Adjacency, Memory, Now, Parts, Peer, PortId, PortKind, PortState, Routes, Snapshot,
    Underlay, Worker,
};
use flow_offload::layout::{FlowEntry, FlowKey};
use flow_offload::{Kernel, Outcome, entries};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use testkit::packet;

/// The interface that packets enter by when a program is run for a test.
const LOOPBACK: u32 = 1;
const PODS: [Mac; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const MTU: u16 = 1500;

/// A connection between two pods, and one of its packets.
#[derive(Clone, Debug)]
struct Case {
    v4: bool,
    is_tcp: bool,
    /// Other address and port of the service, if the destination is translated.
    service: Option<(u8, u16)>,
    /// The same for the source.
    masked: Option<(u8, u16)>,
    ports: (u16, u16),
    forward: bool,
    /// Whether the receiver is on another cluster node, behind the uplink.
    remote: bool,
    ttl: u8,
    payload: Vec<u8>,
    /// Whether the checksum is left to hardware, is that of another packet, or (UDP) is none.
    sum: Sum,
    segment: Option<u32>,
    padding: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sum {
    Right,
    Unfinished,
    Wrong,
    Absent,
}

fn cases() -> impl Strategy<Value = Case> {
    let other = || prop::option::of((1..250_u8, 1..=u16::MAX));
    let sums = prop::sample::select(vec![
        Sum::Right,
        Sum::Right,
        Sum::Unfinished,
        Sum::Wrong,
        Sum::Absent,
    ]);
    let payload = prop::collection::vec(any::<u8>(), 0..1200);
    (
        (any::<bool>(), any::<bool>(), other(), other(), (1..=u16::MAX, 1..=u16::MAX)),
        (
            any::<(bool, bool)>(),
            2..=255_u8,
            payload,
            sums,
            prop::option::of(100..1400_u32),
            0..20_usize,
        ),
    )
        .prop_map(|((v4, is_tcp, service, masked, ports), rest)| {
            let ((forward, remote), ttl, payload, sum, segment, padding) = rest;
            Case {
                v4,
                is_tcp,
                service,
                masked,
                ports,
                forward,
                remote,
                ttl,
                payload,
                sum,
                segment,
                padding,
            }
        })
}

impl Case {
    fn address(&self, network: u8, n: u8) -> IpAddr {
        match self.v4 {
            true => format!("10.{network}.0.{n}"),
            false => format!("fd00:{network:x}::{n:x}"),
        }
        .parse()
        .unwrap()
    }

    fn tuples(&self) -> Tuples {
        let responder = Flow {
            source: self.address(1, 1).into(),
            destination: self.address(1, 2).into(),
            source_port: self.ports.0,
            destination_port: self.ports.1,
            protocol: if self.is_tcp { protocol::TCP } else { protocol::UDP },
        };
        let mut tuples = Tuples::plain(responder);
        if let Some((n, port)) = self.service {
            tuples.initiator.destination = self.address(96, n).into();
            tuples.initiator.destination_port = port;
        }
        if let Some((n, port)) = self.masked {
            tuples.responder.source = self.address(9, n).into();
            tuples.responder.source_port = port;
        }
        tuples
    }

    /// The packet as its sender's kernel would send it.
    fn frame(&self) -> Vec<u8> {
        let tuples = self.tuples();
        let flow = if self.forward { tuples.initiator } else { tuples.responder.reversed() };
        let end = |address: acl::Address, port: u16| match address.to_ip() {
            IpAddr::V4(address) => format!("{address}:{port}"),
            IpAddr::V6(address) => format!("[{address}]:{port}"),
        };
        let from = end(flow.source, flow.source_port);
        let to = end(flow.destination, flow.destination_port);
        let packet = match self.is_tcp {
            true => packet::tcp(&from, &to).data(&self.payload),
            false => packet::udp(&from, &to).payload(&self.payload),
        };
        let sender = PODS[usize::from(!self.forward)];
        let mut frame = packet.ttl(self.ttl).from_mac(sender).to_mac(SWITCH_MAC).build();
        let headers = parse(&frame).unwrap();
        let at = usize::from(headers.l4) + if self.is_tcp { 16 } else { 6 };
        match self.sum {
            Sum::Right => {}
            Sum::Unfinished => partial_checksum::renew_pseudo(&mut frame, &headers),
            Sum::Wrong => frame[at] ^= 0x55,
            Sum::Absent if self.is_tcp => {}
            Sum::Absent => frame[at..at + 2].fill(0),
        }
        frame.resize(frame.len() + self.padding, 0);
        frame
    }

    fn snapshot(&self) -> Snapshot {
        let pod = |n: u8| {
            Some(PortState {
                mac: Some(PODS[usize::from(n) - 1]),
                addresses: vec![self.address(1, n).into()],
                to_pod: AclBinding::Open,
                from_pod: AclBinding::Open,
                ..PortState::new(format!("default/pod{n}"), PortKind::Pod)
            })
        };
        let parts = Parts { generation: 7, ports: vec![pod(1), pod(2)], ..Parts::default() };
        if !self.remote {
            return Snapshot::new(parts);
        }
        let mut parts = Parts { underlay: Underlay::Routed, ..parts };
        let other = usize::from(self.forward);
        let address = self.address(1, other as u8 + 1);
        parts.ports[other] = Some(PortState {
            own_mac: [2, 0, 0, 0, 9, 9],
            ..PortState::new("uplink", PortKind::Uplink)
        });
        parts.routes = Arc::new(Routes::new(vec![Peer {
            networks: vec![address.into()],
            endpoint: "192.0.2.2".parse::<IpAddr>().unwrap().into(),
            next_hop: Some(PODS[other]),
            ..Peer::default()
        }]));
        Snapshot::new(parts)
    }
}

/// The packet as it leaves the graph, if it does.
fn through_the_graph(case: &Case, snapshot: &Snapshot, frame: &[u8]) -> Option<Vec<u8>> {
    let (memory, frames) = Memory::heap(4096, 64);
    let sessions = Sessions::new(16, 4, Timeouts::default());
    let opening = Opening {
        owner: Owner::port(PortId(0)),
        adjacency: if case.remote { Adjacency::NONE } else { Adjacency::port(PortId(1)) },
        generation: snapshot.generation,
        tcp_flags: 0,
    };
    sessions.open(&case.tuples(), &opening, 0).unwrap();
    let mut worker = Worker::alone(memory, frames, sessions, None);
    let wires = [Wire::default(), Wire::default()];
    for (n, wire) in wires.iter().enumerate() {
        worker.mailbox().send(Command::AddPort(PortId(n as u16), wire.port(), Arc::default()));
    }
    worker.mailbox().send(Command::Snapshot(Arc::new(snapshot.clone())));
    let now = Now(Duration::ZERO);
    worker.round(now);
    wires[usize::from(!case.forward)].send(frame);
    worker.round(now);
    wires[usize::from(case.forward)].receive()
}

/// The entry for packets of the case's direction.
fn of_case(case: &Case, snapshot: &Snapshot) -> (FlowKey, FlowEntry) {
    // The program is run as if for the loopback interface, by whichever pod.
    let found = entries(snapshot, &case.tuples(), |_| Some(LOOPBACK), |_| 0);
    let both = found.expect("entries").both;
    assert_eq!(both.iter().flatten().count(), if case.remote { 1 } else { 2 });
    let (key, entry) = both[usize::from(!case.forward)].expect("an entry");
    (key, FlowEntry { mtu: MTU, ..entry })
}

/// Until the end of time.
const ALWAYS: Duration = Duration::from_secs(1 << 32);

#[test]
fn the_program_makes_of_a_packet_what_the_graph_does() {
    testkit::requires_root!();
    let kernel = Kernel::load(1024).unwrap();
    kernel.beat(ALWAYS).unwrap();
    let mut runner = TestRunner::new(Config::with_cases(2048));
    let run = |case: Case| {
        let snapshot = case.snapshot();
        let frame = case.frame();
        let (key, entry) = of_case(&case, &snapshot);
        kernel.put_flows(&[key], &[entry]);
        let segments = case.segment.map(|size| (size, (case.payload.len() as u32).div_ceil(size)));
        let made = kernel.run(LOOPBACK, &frame, segments).unwrap();
        kernel.remove_flow(&key).unwrap();
        let Outcome::Redirected(mut made) = made else {
            return Err(TestCaseError::fail(format!("{made:?}")));
        };
        let mut expected = through_the_graph(&case, &snapshot, &frame).expect("a packet");
        // The kernel leaves an unfinished checksum to whoever reads the packet.
        if case.sum == Sum::Unfinished {
            if key_is_translated(&case) {
                return Ok(());
            }
            for frame in [&mut made, &mut expected] {
                let headers = parse(frame).unwrap();
                partial_checksum::complete(frame, &headers);
            }
        }
        prop_assert_eq!(made, expected);
        Ok(())
    };
    runner.run(&cases(), run).unwrap();
}

/// Outside of the kernel's stack nothing tells the program that a checksum is unfinished; the
/// translation of such packets is tested with real ones.
fn key_is_translated(case: &Case) -> bool {
    case.tuples().is_translated()
}

/// What the program leaves to the switch, by a change to a packet that it would forward.
#[test]
fn what_is_not_plain_goes_to_the_switch() {
    testkit::requires_root!();
    let kernel = Kernel::load(1024).unwrap();
    for v4 in [true, false] {
        let case = Case {
            v4,
            is_tcp: true,
            service: None,
            masked: None,
            ports: (4000, 80),
            forward: true,
            remote: false,
            ttl: 64,
            payload: vec![1; 100],
            sum: Sum::Right,
            segment: None,
            padding: 0,
        };
        let (key, entry) = of_case(&case, &case.snapshot());
        kernel.put_flows(&[key], &[entry]);
        let plain = case.frame();
        let l4 = usize::from(parse(&plain).unwrap().l4);
        let flags = |flags: u8| packet::patch(plain.clone(), l4 + 13, &[flags]);
        let punted = |what: &str, frame: Vec<u8>, segments| {
            let before = kernel.counters();
            // Nothing is known of the interface, so that what is for the switch ends here.
            let outcome = kernel.run(LOOPBACK, &frame, segments).unwrap();
            assert!(outcome == Outcome::Dropped, "{what}");
            let after = kernel.counters();
            assert_eq!(after.no_port, before.no_port + 1, "{what}");
            assert_eq!(after.packets, before.packets, "{what}");
        };
        punted("before the first heartbeat", plain.clone(), None);
        kernel.beat(ALWAYS).unwrap();
        let forwards = || {
            let outcome = kernel.run(LOOPBACK, &plain, None).unwrap();
            assert!(matches!(outcome, Outcome::Redirected(_)), "{outcome:?}");
        };
        forwards();
        punted("SYN", flags(0x12), None);
        punted("FIN", flags(0x11), None);
        punted("RST", flags(0x14), None);
        punted("no ACK", flags(0x00), None);
        punted("the last hop", Case { ttl: 1, ..case.clone() }.frame(), None);
        punted("another connection", Case { ports: (4001, 80), ..case.clone() }.frame(), None);
        punted("the other direction", Case { forward: false, ..case.clone() }.frame(), None);
        punted("another protocol", Case { is_tcp: false, ..case.clone() }.frame(), None);
        let mut forged = plain.clone();
        forged[11] ^= 1;
        punted("another MAC address", forged, None);
        let long = Case { payload: vec![1; 1470], ..case.clone() }.frame();
        punted("longer than the MTU", long.clone(), None);
        punted("segments longer than the MTU", long, Some((1461, 2)));
        punted("cut short", packet::cut(plain.clone(), plain.len() - 1), None);
        punted("half a header", packet::cut(plain.clone(), l4 + 10), None);
        punted("ARP", packet::arp_request("10.1.0.1", "10.1.0.2").build(), None);
        if v4 {
            let fragment = packet::patch_ipv4(plain.clone(), 20, &[0x20, 0]);
            punted("a first fragment", fragment, None);
            punted("a wrong checksum", packet::patch(plain.clone(), 24, &[0xff]), None);
            let options = packet::tcp("10.1.0.1:4000", "10.1.0.2:80").data(b"x");
            let options = options.ip_options(&[1, 1, 1, 1]).from_mac(PODS[0]).build();
            punted("options", options, None);
        } else {
            let options = packet::tcp("[fd00:1::1]:4000", "[fd00:1::2]:80").data(b"x");
            let options = options.extension(60, &[0; 6]).from_mac(PODS[0]).build();
            punted("an extension", options, None);
        }
        for guard in entry.guards.into_iter().filter(|guard| *guard != 0) {
            kernel.set_generation(guard, 1).unwrap();
            punted("a new generation", plain.clone(), None);
            kernel.set_generation(guard, 0).unwrap();
            forwards();
        }
        kernel.beat(Duration::from_nanos(1)).unwrap();
        punted("an old heartbeat", plain.clone(), None);
        kernel.beat(Duration::ZERO).unwrap();
    }
}

#[test]
fn entries_count_what_they_forward_and_a_full_map_takes_no_more() {
    testkit::requires_root!();
    let kernel = Kernel::load(4).unwrap();
    kernel.beat(ALWAYS).unwrap();
    let case = |port| Case {
        v4: true,
        is_tcp: false,
        service: None,
        masked: None,
        ports: (port, 53),
        forward: true,
        remote: false,
        ttl: 64,
        payload: vec![1; 10],
        sum: Sum::Right,
        segment: None,
        padding: 0,
    };
    let made = |port| of_case(&case(port), &case(port).snapshot());
    let (keys, values): (Vec<_>, Vec<_>) = (1..=6).map(made).unzip();
    let entered = kernel.put_flows(&keys, &values);
    assert!(entered < 6, "{entered} entries in a map for four");
    let frame = case(1).frame();
    for _ in 0..3 {
        assert!(matches!(kernel.run(LOOPBACK, &frame, None).unwrap(), Outcome::Redirected(_)));
    }
    let entry = kernel.flow(&keys[0]).unwrap();
    assert_eq!((entry.packets, entry.bytes), (3, 3 * frame.len() as u64));
    assert!(entry.used_ns > 0);
    let counters = kernel.counters();
    assert_eq!((counters.packets, counters.bytes), (3, 3 * frame.len() as u64));
    let mut seen = 0;
    kernel.for_each_flow(|_, _| seen += 1).unwrap();
    assert_eq!(seen, entered);
}
