//! Which connections get entries, and by which of their directions.

use std::net::IpAddr;
use std::sync::Arc;

use acl::Address;
use dataplane::session::Tuples;
use dataplane::wire::vxlan::Vxlan;
use dataplane::wire::{Flow, Mac, protocol};
use dataplane::{AclBinding, Parts, Peer, PortId, PortKind, PortState, Routes, Snapshot, Underlay};
use flow_offload::layout::{FlowEntry, FlowKey};
use flow_offload::{NodeContext, entries};

const POD: &str = "10.1.0.1";
const OTHER_POD: &str = "10.1.0.2";
/// A pod of another node.
const REMOTE_POD: &str = "10.1.1.7";
const NODE: &str = "192.0.2.1";
const WORLD: &str = "203.0.113.9";
const SERVICE: &str = "10.96.0.1";
const OVERLAY: Vxlan = Vxlan { network: 7, port: 4789, group: false };
const MAC: Mac = [2, 0, 0, 0, 0, 9];

fn address(text: &str) -> Address {
    text.parse::<IpAddr>().unwrap().into()
}

/// Two pods, the second of which follows names, the uplink and the host port.
fn snapshot() -> Snapshot {
    let pod = |at: &str, follows_names| {
        Some(PortState {
            mac: Some(MAC),
            addresses: vec![address(at)],
            to_pod: AclBinding::Open,
            from_pod: AclBinding::Open,
            follows_names,
            ..PortState::new(at, PortKind::Pod)
        })
    };
    let port =
        |kind: PortKind| Some(PortState { mac: Some(MAC), ..PortState::new(kind.name(), kind) });
    let peer = Peer {
        networks: vec!["10.1.1.0/24".parse().unwrap()],
        addresses: vec![address("192.0.2.2")],
        endpoint: address("192.0.2.2"),
        next_hop: Some(MAC),
        least_hop_limit: 255,
        ..Peer::default()
    };
    Snapshot::new(Parts {
        generation: 1,
        ports: vec![
            pod(POD, false),
            pod(OTHER_POD, true),
            port(PortKind::Uplink),
            port(PortKind::Host),
        ],
        node_addresses: vec![NODE.parse().unwrap()],
        local_networks: vec!["10.1.0.0/24".parse().unwrap()],
        routes: Arc::new(Routes::new(vec![peer])),
        underlay: Underlay::Overlay(OVERLAY),
        masquerade: true,
        ..Parts::default()
    })
}

fn flow(from: &str, to: &str, port: u16, protocol: u8) -> Flow {
    let (source, destination) = (address(from), address(to));
    Flow { source, destination, source_port: 4000, destination_port: port, protocol }
}

type Both = [Option<(FlowKey, FlowEntry)>; 2];

fn both(tuples: &Tuples) -> Option<Both> {
    let node = NodeContext {
        interface: &|port: PortId| Some(u32::from(port.0) + 10),
        generation: &|_| 0,
        hash: &|_| 0,
    };
    entries(&snapshot(), tuples, &node).map(|entries| entries.both)
}

fn made(from: &str, to: &str, port: u16, protocol: u8) -> Option<Both> {
    both(&Tuples::plain(flow(from, to, port, protocol)))
}

#[test]
fn what_the_switch_has_to_see_has_no_entries() {
    let (tcp, udp) = (protocol::TCP, protocol::UDP);
    assert!(made(POD, WORLD, 53, udp).is_some());
    assert!(made(OTHER_POD, WORLD, 53, udp).is_none(), "DNS of a pod that follows names");
    assert!(made(OTHER_POD, WORLD, 53, tcp).is_none(), "the same by TCP");
    assert!(made(OTHER_POD, WORLD, 54, udp).is_some());
    assert!(made(POD, WORLD, OVERLAY.port, udp).is_none(), "a tunnel's packet outside of tunnels");
    assert!(made(POD, WORLD, OVERLAY.port, tcp).is_some());
    assert!(made(POD, REMOTE_POD, OVERLAY.port, udp).is_some(), "in a tunnel");
    assert!(made(POD, POD, 80, tcp).is_none(), "with itself");
    assert!(made(NODE, WORLD, 80, tcp).is_none(), "of no pod");
    assert!(made(POD, WORLD, 80, protocol::SCTP).is_none());
}

/// Clients of node ports get their answers by the MAC address that they came from.
#[test]
fn nothing_enters_outside_of_tunnels_that_belongs_inside_or_is_from_here() {
    for (client, enters) in
        [(WORLD, true), (REMOTE_POD, false), (OTHER_POD, false), ("10.1.0.99", false)]
    {
        let tuples =
            Tuples { return_mac: MAC, ..Tuples::plain(flow(client, POD, 80, protocol::TCP)) };
        let [inward, outward] = both(&tuples).expect("answers leave by an entry");
        assert_eq!(inward.is_some(), enters, "{client}");
        // Another MAC address is for the switch to see.
        assert!(inward.is_none_or(|(_, entry)| entry.ingress_mac == MAC));
        let (_, outward) = outward.unwrap();
        // The switch sees the end of what the programs see half of.
        assert_eq!(outward.takes_fin, u8::from(enters), "{client}");
    }
}

#[test]
fn a_translated_connection_depends_on_the_services() {
    let plain = flow(POD, OTHER_POD, 80, protocol::TCP);
    let translated =
        Tuples { initiator: flow(POD, SERVICE, 80, protocol::TCP), ..Tuples::plain(plain) };
    // The destination of a datagram may be a service's later.
    let datagram = Tuples::plain(flow(POD, OTHER_POD, 80, protocol::UDP));
    let (none, services) = (0, 1);
    for (tuples, guard) in
        [(Tuples::plain(plain), none), (translated, services), (datagram, services)]
    {
        for (_, entry) in both(&tuples).unwrap().into_iter().flatten() {
            let [of_pod, of_other, of_services] = entry.guards;
            assert_eq!((of_pod, of_other, of_services), (2, 3, guard));
        }
    }
}
