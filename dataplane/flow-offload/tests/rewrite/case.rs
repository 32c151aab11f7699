//! A connection, one of its packets, and what the graph makes of that.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use acl::Address;
use dataplane::mailbox::Command;
use dataplane::port::memory::Wire;
use dataplane::session::{Opening, Owner, Sessions, Timeouts, Tuples};
use dataplane::wire::vxlan::{Ends, Vxlan};
use dataplane::wire::{Flow, Mac, SWITCH_MAC, parse, partial_checksum, protocol};
use dataplane::{
    AclBinding, Adjacency, Memory, Now, Parts, Peer, PortId, PortKind, PortState, Routes, Snapshot,
    Underlay, Worker,
};
use flow_offload::layout::{FlowEntry, FlowKey};
use flow_offload::{Hook, NodeContext, entries};
use proptest::prelude::*;
use testkit::packet;

/// The interface that packets enter by when a program is run for a test. Its address is all zeros.
pub(crate) const LOOPBACK: u32 = 1;
pub(crate) const PODS: [Mac; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const UPLINK_MAC: Mac = [2, 0, 0, 0, 9, 9];
pub(crate) const MTU: u16 = 1500;
pub(crate) const OVERLAY: Vxlan = Vxlan { network: 0x12_3456, port: 4789, group: true };

/// A connection between two pods, and one of its packets.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) v4: bool,
    pub(crate) is_tcp: bool,
    /// Other address and port of the service, if the destination is translated.
    pub(crate) service: Option<(u8, u16)>,
    /// The same for the source.
    pub(crate) masked: Option<(u8, u16)>,
    pub(crate) ports: (u16, u16),
    pub(crate) forward: bool,
    pub(crate) path: Path,
    pub(crate) ttl: u8,
    /// Traffic class.
    pub(crate) class: u8,
    pub(crate) payload: Vec<u8>,
    /// Whether the checksum is left to hardware, is that of another packet, or (UDP) is none.
    pub(crate) sum: Sum,
    pub(crate) segment: Option<u32>,
    pub(crate) padding: usize,
}

/// Where the other end of the connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// On the same node.
    Local,
    /// The packet leaves by the uplink, in a tunnel if there is one.
    Out(Option<Outside>),
    /// The packet arrives by it.
    In(Option<Outside>),
    /// On the node itself, which gets the packet.
    ToHost,
    /// The same, which sends it.
    FromHost,
}

/// The packet in front of a tunnel's frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outside {
    pub(crate) v4: bool,
    pub(crate) class: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sum {
    Right,
    Unfinished,
    Wrong,
    Absent,
}

pub(crate) fn cases() -> impl Strategy<Value = Case> {
    let other = || prop::option::of((1..250_u8, 1..=u16::MAX));
    let outside = || {
        let outside = any::<(bool, u8)>().prop_map(|(v4, class)| Outside { v4, class });
        prop::option::of(outside)
    };
    let paths = prop_oneof![
        Just(Path::Local),
        Just(Path::ToHost),
        Just(Path::FromHost),
        outside().prop_map(Path::Out),
        outside().prop_map(Path::In),
        outside().prop_map(Path::In)
    ];
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
        (any::<bool>(), paths, 2..=255_u8, any::<u8>()),
        (payload, sums, prop::option::of(100..1400_u32), 0..20_usize),
    )
        .prop_map(|((v4, is_tcp, service, masked, ports), packet, rest)| {
            let ((forward, path, ttl, class), (payload, sum, segment, padding)) = (packet, rest);
            Case {
                v4,
                is_tcp,
                service,
                masked,
                ports,
                forward,
                path,
                ttl,
                class,
                payload,
                sum,
                // A test run sets no segmentation type, which a tunnel needs to cut segments.
                segment: segment.filter(|_| path.outside().is_none()),
                padding,
            }
        })
}

impl Path {
    pub(crate) fn outside(self) -> Option<Outside> {
        match self {
            Self::Local | Self::ToHost | Self::FromHost => None,
            Self::Out(outside) | Self::In(outside) => outside,
        }
    }
}

fn own_end(v4: bool) -> IpAddr {
    if v4 { "192.0.2.1" } else { "2001:db8::1" }.parse().unwrap()
}

pub(crate) fn other_end(v4: bool) -> IpAddr {
    if v4 { "192.0.2.2" } else { "2001:db8::2" }.parse().unwrap()
}

impl Case {
    /// A packet of a TCP connection between pods of one node.
    pub(crate) fn plain(v4: bool) -> Self {
        Self {
            v4,
            is_tcp: true,
            service: None,
            masked: None,
            ports: (4000, 80),
            forward: true,
            path: Path::Local,
            ttl: 64,
            class: 0,
            payload: vec![1; 100],
            sum: Sum::Right,
            segment: None,
            padding: 0,
        }
    }

    /// The program that sees the packet.
    pub(crate) fn at(&self) -> Hook {
        match self.path {
            Path::In(_) => Hook::Uplink,
            Path::FromHost => Hook::Host,
            Path::Local | Path::Out(_) | Path::ToHost => Hook::Pod,
        }
    }

    fn address(&self, network: u8, n: u8) -> IpAddr {
        match self.v4 {
            true => format!("10.{network}.0.{n}"),
            false => format!("fd00:{network:x}::{n:x}"),
        }
        .parse()
        .unwrap()
    }

    pub(crate) fn tuples(&self) -> Tuples {
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

    /// The packet as its sender's kernel would send it, or as the other node would.
    pub(crate) fn frame(&self) -> Vec<u8> {
        let tuples = self.tuples();
        let flow = if self.forward { tuples.initiator } else { tuples.responder.reversed() };
        let end = |address: Address, port: u16| match address.to_ip() {
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
        let receiver = if self.at() == Hook::Uplink { [0; 6] } else { SWITCH_MAC };
        let frame = packet.ttl(self.ttl).from_mac(sender).to_mac(receiver).build();
        let mut frame = match self.v4 {
            true => packet::patch_ipv4(frame, 15, &[self.class]),
            false => packet::patch(frame, 14, &[0x60 | self.class >> 4, self.class << 4]),
        };
        let headers = parse(&frame).unwrap();
        let at = usize::from(headers.l4) + if self.is_tcp { 16 } else { 6 };
        match self.sum {
            Sum::Right => {}
            Sum::Unfinished => partial_checksum::renew_pseudo(&mut frame, &headers),
            Sum::Wrong => {
                let mut unfinished = frame.clone();
                partial_checksum::renew_pseudo(&mut unfinished, &headers);
                frame[at] ^= 0x55;
                // The graph would finish it: AF_XDP does not say which sums are unfinished.
                if frame[at..at + 2] == unfinished[at..at + 2] {
                    frame[at] ^= 0xff;
                }
            }
            Sum::Absent if self.is_tcp => {}
            Sum::Absent => frame[at..at + 2].fill(0),
        }
        frame.resize(frame.len() + self.padding, 0);
        match self.path {
            Path::In(Some(outside)) => in_tunnel(&frame, outside),
            _ => frame,
        }
    }

    /// Finishes the checksum of the packet as it left.
    pub(crate) fn finish(&self, frame: &mut [u8]) {
        let front = match self.path {
            Path::Out(Some(outside)) => Vxlan::front(outside.v4),
            _ => 0,
        };
        let frame = &mut frame[front..];
        let headers = parse(frame).unwrap();
        partial_checksum::complete(frame, &headers);
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
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
        let other = match self.path {
            Path::Local => return Snapshot::new(parts),
            Path::Out(_) | Path::ToHost => usize::from(self.forward),
            Path::In(_) | Path::FromHost => usize::from(!self.forward),
        };
        if matches!(self.path, Path::ToHost | Path::FromHost) {
            let host = PortState::new("host", PortKind::Host);
            let (mac, addresses) =
                (Some(PODS[other]), vec![self.address(1, other as u8 + 1).into()]);
            let host = PortState { mac, addresses, own_mac: UPLINK_MAC, ..host };
            let mut parts = parts;
            parts.ports[other] = Some(host);
            return Snapshot::new(parts);
        }
        let mut parts = Parts { underlay: Underlay::Routed, ..parts };
        let uplink = PortState::new("uplink", PortKind::Uplink);
        parts.ports[other] = Some(PortState { own_mac: UPLINK_MAC, ..uplink });
        let v4 = self.path.outside().is_none_or(|outside| outside.v4);
        if self.path.outside().is_some() {
            parts.underlay = Underlay::Overlay(OVERLAY);
            parts.node_addresses = vec![own_end(v4)];
        }
        parts.routes = Arc::new(Routes::new(vec![Peer {
            networks: vec![self.address(1, other as u8 + 1).into()],
            addresses: vec![other_end(v4).into()],
            endpoint: other_end(v4).into(),
            next_hop: Some(PODS[other]),
            least_hop_limit: 255,
            ..Peer::default()
        }]));
        Snapshot::new(parts)
    }
}

/// A frame as another node sends it.
fn in_tunnel(frame: &[u8], outside: Outside) -> Vec<u8> {
    let Outside { v4, class } = outside;
    let front = Vxlan::front(v4);
    let mut packet = vec![0; front];
    packet.extend(frame);
    let (source, destination) = (other_end(v4).into(), own_end(v4).into());
    let ends = Ends { source_mac: PODS[0], next_hop: [0; 6], source, destination };
    let length = packet.len();
    OVERLAY.write(&mut packet, length, &ends, 0, class, 7);
    packet
}

/// A session table for one connection.
pub(crate) fn sessions() -> Arc<Sessions> {
    Sessions::new(16, 4, Timeouts::default())
}

/// The packet as it leaves the graph, if it does.
pub(crate) fn through_the_graph(
    case: &Case,
    snapshot: &Snapshot,
    sessions: Arc<Sessions>,
    frame: &[u8],
) -> Option<Vec<u8>> {
    let (memory, frames) = Memory::heap(4096, 64);
    let is_local = case.path == Path::Local;
    let opening = Opening {
        owner: Owner::port(PortId(0)),
        adjacency: if is_local { Adjacency::port(PortId(1)) } else { Adjacency::NONE },
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
pub(crate) fn of_case(
    case: &Case,
    snapshot: &Snapshot,
    sessions: &Sessions,
) -> (FlowKey, FlowEntry) {
    // The program is run as if for the loopback interface, by whichever port.
    let node = NodeContext {
        interface: &|_| Some(LOOPBACK),
        generation: &|_| 0,
        hash: &|flow| sessions.hash(flow),
    };
    let found = entries(snapshot, &case.tuples(), &node);
    let (key, entry) = found.expect("entries").both[usize::from(!case.forward)].expect("an entry");
    (key, FlowEntry { mtu: MTU, ..entry })
}
