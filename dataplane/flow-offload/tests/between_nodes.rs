//! Templates of connections with pods of other nodes, in tunnels and routed.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use dataplane::port::af_xdp::UplinkFilter;
use dataplane::session::Tuples;
use dataplane::wire::vxlan::{Ends, Vxlan};
use dataplane::wire::{Flow, Mac, SWITCH_MAC, parse, protocol};
use dataplane::{AclBinding, Parts, Peer, PortId, PortKind, PortState, Routes, Snapshot, Underlay};
use flow_offload::layout::{FlowEntry, FlowKey, PuntedPort, Template, TemplateKey};
use flow_offload::{Hook, Kernel, NodeContext, Outcome, entries};
use testkit::packet::{self, Packet};

const ALWAYS: Duration = Duration::from_secs(1 << 32);
const TAG: Mac = [6, 1, 0, 1, 0, 0];
const POD: Mac = [2, 0, 0, 0, 0, 1];
const NEXT_HOP: Mac = [2, 0, 0, 0, 9, 9];
/// The interface of the pod and the uplink: only one that is there runs programs.
const LOOPBACK: u32 = 1;
const TUNNELLED: u32 = 1 << 31;
const PORT: PortId = PortId(0);
const UPLINK: PortId = PortId(1);
const OVERLAY: Vxlan = Vxlan { network: 7, port: 4789, group: true };
const NODES: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
const PAIRS: [[&str; 2]; 2] =
    [["10.1.0.1:4000", "10.1.1.2:80"], ["[fd00::1]:4000", "[fd00:1::2]:80"]];

/// A pod of this node, one of another one, and a template of connections that one of them opens.
struct Rig {
    kernel: Kernel,
    tunnel: bool,
    /// The pod's end and the other one.
    here: String,
    there: String,
    both: [(FlowKey, FlowEntry); 2],
}

impl Rig {
    fn new([here, there]: [&str; 2], tunnel: bool, leaves: bool) -> Self {
        let kernel = Kernel::load(4096).unwrap();
        kernel.beat(ALWAYS).unwrap();
        let port = PuntedPort { ifindex: LOOPBACK, tag: TAG, mac: POD, queue: 0 };
        kernel.enter_port(PORT, &port).unwrap();
        let vxlan_port = tunnel.then_some(OVERLAY.port);
        kernel.set_uplink_filter(&UplinkFilter { vxlan_port, ..UplinkFilter::default() }).unwrap();
        let end = |end: &str| -> std::net::SocketAddr { end.parse().unwrap() };
        let (here_ip, there_ip) = (end(here).ip(), end(there).ip());
        let pod = PortState {
            mac: Some(POD),
            addresses: vec![here_ip.into()],
            to_pod: AclBinding::Open,
            from_pod: AclBinding::Open,
            ..PortState::new("pod", PortKind::Pod)
        };
        let node = |n: usize| -> IpAddr { NODES[n].parse().unwrap() };
        let peer = Peer {
            networks: vec![there_ip.into()],
            addresses: vec![node(1).into()],
            endpoint: node(1).into(),
            next_hop: Some(NEXT_HOP),
            least_hop_limit: 255,
            ..Peer::default()
        };
        let snapshot = Snapshot::new(Parts {
            generation: 1,
            ports: vec![Some(pod), Some(PortState::new("uplink", PortKind::Uplink))],
            node_addresses: vec![node(0)],
            routes: Arc::new(Routes::new(vec![peer])),
            underlay: if tunnel { Underlay::Overlay(OVERLAY) } else { Underlay::Routed },
            ..Parts::default()
        });
        let (from, to) = if leaves { (here, there) } else { (there, here) };
        let (from, to) = (end(from), end(to));
        let flow = Flow {
            source: from.ip().into(),
            destination: to.ip().into(),
            source_port: from.port(),
            destination_port: to.port(),
            protocol: protocol::TCP,
        };
        let node =
            NodeContext { interface: &|_| Some(LOOPBACK), generation: &|_| 0, hash: &|_| 1 << 40 };
        let made = entries(&snapshot, &Tuples::plain(flow), &node).unwrap();
        let both = made.both.map(|it| {
            let (key, entry) = it.expect("an entry");
            (key, FlowEntry { mtu: 1500, ..entry })
        });
        let rig = Self { kernel, tunnel, here: here.into(), there: there.into(), both };
        let of_uplink = LOOPBACK | if tunnel { TUNNELLED } else { 0 };
        let (enters, answers) = if leaves { (LOOPBACK, of_uplink) } else { (of_uplink, LOOPBACK) };
        let template = Template::new(rig.both.map(|(_, entry)| entry), answers, 0);
        let template = template.of_port(if leaves { PORT } else { UPLINK });
        rig.kernel.put_template(&TemplateKey::new(enters, &flow), &template).unwrap();
        rig
    }

    /// A packet of the pod.
    fn leaves(&self, packet: impl FnOnce(Packet) -> Packet) -> Outcome {
        let packet = packet(packet::tcp(&self.here, &self.there));
        let frame = packet.from_mac(POD).to_mac(SWITCH_MAC).build();
        self.kernel.run(Hook::Pod, LOOPBACK, &frame, None).unwrap()
    }

    /// A packet of the other one, as its node sends it.
    fn arriving(&self, packet: impl FnOnce(Packet) -> Packet) -> Vec<u8> {
        let packet = packet(packet::tcp(&self.there, &self.here));
        let frame = packet.from_mac(NEXT_HOP).to_mac([0; 6]).build();
        if self.tunnel { in_tunnel(&frame, 1) } else { frame }
    }

    fn arrives(&self, frame: &[u8]) -> Outcome {
        self.kernel.run(Hook::Uplink, LOOPBACK, frame, None).unwrap()
    }

    /// Whether a packet of the pod left, and how: the port outside that it left from.
    #[track_caller]
    fn sends(&self, packet: impl FnOnce(Packet) -> Packet) -> Option<u16> {
        let Outcome::Redirected(made) = self.leaves(packet) else { panic!("dropped") };
        if made[..6] == TAG {
            return None;
        }
        assert_eq!(made[..6], NEXT_HOP);
        let flow = parse(&made).unwrap().flow;
        match self.tunnel {
            true => assert_eq!((flow.protocol, flow.destination_port), (protocol::UDP, 4789)),
            false => assert_eq!(flow.protocol, protocol::TCP),
        }
        Some(flow.source_port)
    }

    /// Whether a packet of the other one got into the pod.
    fn gets(&self, packet: impl FnOnce(Packet) -> Packet) -> bool {
        is_in_pod(&self.arrives(&self.arriving(packet)))
    }

    #[track_caller]
    fn has(&self, entries: bool) {
        let found = self.both.map(|(key, _)| self.kernel.flow(&key).is_some());
        assert_eq!(found, [entries; 2]);
    }
}

fn is_in_pod(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Redirected(made) if made[..6] == POD)
}

/// A frame as a node sends it.
fn in_tunnel(frame: &[u8], from: usize) -> Vec<u8> {
    let node = |n: usize| NODES[n].parse::<IpAddr>().unwrap().into();
    let ends =
        Ends { source_mac: NEXT_HOP, next_hop: [0; 6], source: node(from), destination: node(0) };
    let mut packet = vec![0; Vxlan::front(true)];
    packet.extend(frame);
    let length = packet.len();
    OVERLAY.write(&mut packet, length, &ends, 0, 0, 7);
    packet
}

#[test]
fn connections_that_leave_the_node_begin_and_end_in_the_program() {
    testkit::requires_root!();
    for (pair, tunnel) in PAIRS.iter().flat_map(|pair| [(*pair, true), (*pair, false)]) {
        let rig = Rig::new(pair, tunnel, true);
        for round in 1..=3 {
            assert!(!rig.gets(Packet::syn_ack));
            let port = rig.sends(Packet::syn);
            assert!(port.is_some_and(|port| !tunnel || port >= 0xc000), "{port:?}");
            assert_eq!(rig.kernel.counters().opened, round);
            assert!(rig.gets(Packet::syn_ack));
            // All packets of a connection take one way through the network between the nodes.
            assert_eq!(rig.sends(Packet::ack), port);
            assert_eq!(rig.sends(|it| it.data(b"question")), port);
            assert!(rig.gets(|it| it.data(b"answer")));
            assert_eq!(rig.sends(|it| it.ack().fin()), port);
            assert!(rig.gets(Packet::ack) && rig.gets(|it| it.ack().fin()));
            rig.has(true);
            assert_eq!(rig.sends(Packet::ack), port);
            rig.has(false);
            assert!(!rig.gets(Packet::ack));
        }
    }
}

#[test]
fn connections_that_arrive_begin_and_end_in_the_program() {
    testkit::requires_root!();
    for (pair, tunnel) in PAIRS.iter().flat_map(|pair| [(*pair, true), (*pair, false)]) {
        let rig = Rig::new(pair, tunnel, false);
        for round in 1..=3 {
            assert_eq!(rig.sends(Packet::syn_ack), None);
            assert!(rig.gets(Packet::syn), "{pair:?} {tunnel}");
            assert_eq!(rig.kernel.counters().opened, round);
            // Sent again, it may be about something else.
            assert!(!rig.gets(Packet::syn));
            assert!(rig.sends(Packet::syn_ack).is_some());
            assert!(rig.gets(Packet::ack) && rig.gets(|it| it.data(b"question")));
            assert!(rig.sends(|it| it.data(b"answer").fin()).is_some());
            // One reset, which may be forged; others are the switch's.
            assert!(rig.gets(Packet::rst) && !rig.gets(Packet::rst));
            assert!(rig.gets(Packet::ack) && rig.gets(|it| it.ack().fin()));
            rig.has(true);
            assert!(rig.sends(Packet::ack).is_some());
            rig.has(false);
            assert_eq!(rig.sends(Packet::ack), None);
        }
    }
}

/// Nothing is opened by what only looks like a packet of the other node's pod.
#[test]
fn what_arrives_otherwise_than_the_connection_before_is_the_switchs() {
    testkit::requires_root!();
    for pair in PAIRS {
        let rig = Rig::new(pair, true, false);
        let plain = packet::tcp(&rig.there, &rig.here).syn().from_mac(NEXT_HOP).to_mac([0; 6]);
        let plain = plain.build();
        let syn = in_tunnel(&plain, 1);
        let outer = |offset: usize, bytes: &[u8]| packet::patch_ipv4(syn.clone(), offset, bytes);
        let forged = [
            // Not in a tunnel, in another node's, over a router, in another network, for another address.
            plain.clone(),
            in_tunnel(&plain, 0),
            outer(22, &[254]),
            packet::patch(syn.clone(), 48, &[1]),
            outer(33, &[9]),
        ];
        for (n, frame) in forged.iter().enumerate() {
            assert!(!is_in_pod(&rig.arrives(frame)), "{n}");
        }
        let inside = |packet: Packet| in_tunnel(&packet.from_mac(NEXT_HOP).build(), 1);
        let tcp = || packet::tcp(&rig.there, &rig.here);
        let odd = [inside(tcp().data(b"data").syn()), inside(tcp().syn().ttl(1))];
        assert!(odd.iter().all(|frame| !is_in_pod(&rig.arrives(frame))));
        for fragment in tcp().syn().from_mac(NEXT_HOP).fragments(16) {
            assert!(!is_in_pod(&rig.arrives(&in_tunnel(&fragment, 1))));
        }
        // A snapshot has changed anything about the way between the nodes, or about the pod.
        for guard in [PORT, UPLINK].map(Kernel::guard_of) {
            rig.kernel.set_generation(guard, 1).unwrap();
            assert!(!is_in_pod(&rig.arrives(&syn)));
            rig.kernel.set_generation(guard, 0).unwrap();
        }
        rig.has(false);
        assert_eq!(rig.kernel.counters().opened, 0);
        assert!(is_in_pod(&rig.arrives(&syn)));
        // A denial between its packets.
        rig.kernel.set_generation(Kernel::guard_of(PORT), 1).unwrap();
        assert_eq!(rig.sends(Packet::syn_ack), None);
        assert!(!rig.gets(Packet::ack));
    }
}
