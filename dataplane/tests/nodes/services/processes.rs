//! Processes of the node itself, and services whose endpoints are elsewhere.

use dataplane::wire::vxlan::Vxlan;
use dataplane::wire::{self, protocol};
use dataplane::{Parts, Underlay};
use testkit::packet::tcp;

use super::{HOST, NODE, UPLINK, cluster, parts, service};
use crate::nodes::rig::{Rig, assert_is, ip};

const VIP: &str = "10.96.0.1:80";
const OUTSIDE: &str = "203.0.113.9";
/// By the Node's address, and by the host port's, which routes to services name.
const CLIENTS: [&str; 2] = ["192.0.2.1:4000", "10.1.0.1:4000"];

fn node(endpoint: &str) -> Parts {
    Parts {
        more_node_addresses: vec![ip("10.1.0.1")],
        switch_addresses: vec![ip("169.254.1.2")],
        translation_ports: Some(61_000..=61_999),
        ..parts(cluster(&[("10.96.0.1", protocol::TCP, 80)], service(&[(endpoint, 7000)])))
    }
}

/// The kernel drops packets that seem to come from itself, and masquerades those of the switch.
#[test]
fn an_endpoint_outside_is_reached_through_the_kernel() {
    for client in CLIENTS {
        let server = format!("{OUTSIDE}:7000");
        let mut rig = Rig::new(node(OUTSIDE));
        let there = rig.pass(HOST, tcp(client, VIP).syn().build(), HOST);
        assert_is(&there, &tcp("169.254.1.2:4000", &server).syn().build());
        let back = rig.pass(HOST, tcp(&server, "169.254.1.2:4000").syn_ack().build(), HOST);
        assert_is(&back, &tcp(VIP, client).syn_ack().build());
        rig.publish(Parts { generation: 2, ..node(OUTSIDE) });
        let there = rig.pass(HOST, tcp(client, VIP).data(b"x").build(), HOST);
        assert_is(&there, &tcp("169.254.1.2:4000", &server).data(b"x").build());
    }
}

/// Whoever the kernel forwards for: the other node takes nothing of others from here.
#[test]
fn a_client_outside_that_comes_by_the_kernel_is_seen_as_the_node() {
    let overlay = Vxlan { network: 4096, port: 4789, group: false };
    let mut rig = Rig::new(Parts { underlay: Underlay::Overlay(overlay), ..node("10.2.0.9") });
    let outside = rig.pass(HOST, tcp("198.51.100.9:5000", VIP).syn().build(), UPLINK);
    let seen = wire::parse(&outside[50..]).unwrap().flow;
    assert_eq!(seen.source.to_ip(), ip(NODE));
    // A process is seen as itself: the answer takes the tunnel as well.
    let outside = rig.pass(HOST, tcp(CLIENTS[0], VIP).syn().build(), UPLINK);
    assert_is(&outside[50..], &tcp(CLIENTS[0], "10.2.0.9:7000").syn().build());
}

/// Replies to the node's address are the switch's at translation ports alone.
#[test]
fn what_replies_in_clear_sees_a_translation_port() {
    let direct = Parts { masquerade: true, ..node(OUTSIDE) };
    let cases = CLIENTS.map(|client| (direct.clone(), client, OUTSIDE, true));
    // Other nodes send what is for a pod network through the switch.
    let pods = CLIENTS.map(|client| (node("10.2.0.9"), client, "10.2.0.9", client == CLIENTS[0]));
    let nodes =
        CLIENTS.map(|client| (node("192.0.2.2"), client, "192.0.2.2", client == CLIENTS[0]));
    for (parts, client, endpoint, is_hidden) in cases.into_iter().chain(pods).chain(nodes) {
        let server = format!("{endpoint}:7000");
        let mut rig = Rig::new(parts);
        let there = rig.pass(HOST, tcp(client, VIP).syn().build(), UPLINK);
        let seen = wire::parse(&there).unwrap().flow;
        let seen = format!("{}:{}", seen.source.to_ip(), seen.source_port);
        assert_is(&there, &tcp(&seen, &server).syn().build());
        let is_by_translation = seen.starts_with(&format!("{NODE}:61"));
        assert!(is_by_translation == is_hidden, "{client} {server}: {seen}");
        assert!(is_hidden || seen == client, "{client} {server}: {seen}");
        let back = rig.pass(UPLINK, tcp(&server, &seen).syn_ack().build(), HOST);
        assert_is(&back, &tcp(VIP, client).syn_ack().build());
    }
}
