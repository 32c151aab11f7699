//! Connections between pods of two nodes take the kernel's way, on both nodes and in
//! tunnels too; so do those with clients outside of the cluster.

use serde_json::{Value, json};
use std::net::{SocketAddr, TcpStream};

use super::checksums::{counts_of, look};
use super::{
    asks, bytes, connect_to_redis, forwarded, iperf3, offload, wait_for_offload, while_streaming,
};
use crate::cluster_node::{ClusterNode, PATIENCE};
use crate::lan::Lan;
use crate::requires_the_machine;
use crate::several_nodes::apply_service;

pub(super) const ROUTED: [&str; 4] = ["--flow-offload", "on", "--underlay", "routed"];
pub(super) const TUNNELS: [&str; 2] = ["--flow-offload", "on"];

/// Writes a policy that selects one pod, which `node` has, and waits until it is in force there.
pub(super) fn policy(lan: &Lan, node: &ClusterNode, pod: &str, rules: &Value) {
    let mut spec = rules.clone();
    spec["podSelector"] = json!({"matchLabels": {"role": pod}});
    let policy = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": pod, "namespace": "default"}, "spec": spec});
    let in_force = || node.status()["generation_in_force"].clone();
    let before = in_force();
    lan.write(&format!("policy-{pod}"), &policy);
    node.eventually("the policy", || (in_force() != before).then_some(()));
}

fn connections_of_two_cluster_nodes(arguments: &[&str]) {
    let lan = Lan::start(arguments);
    let [one, two] = &lan.nodes[..] else { panic!("two nodes") };
    let (client, server) = (one.pod("client", "client"), two.pod("server", "server"));
    for to in [server.v4(), server.v6()] {
        for options in [&["-b", "100M"][..], &["-R", "-b", "100M"], &["-u", "-b", "20M"]] {
            let before = (bytes(one), bytes(two));
            let received = iperf3(&client, &server, to, options);
            for (node, before) in [(one, before.0), (two, before.1)] {
                let by_kernel = (bytes(node) - before) as f64;
                let name = node.name();
                assert!(
                    by_kernel > received / 2.0,
                    "{to} {options:?}, {name}: {by_kernel} of {received}"
                );
            }
        }
        while_streaming(&client, (&server, to), |stream| {
            let both = || forwarded(one).min(forwarded(two));
            let stream_takes_the_kernels_way = || {
                let before = both();
                one.eventually("the kernel's way", || (both() > before + 1000).then_some(()));
            };
            stream_takes_the_kernels_way();
            // Where it arrives: not one packet more.
            policy(&lan, two, "server", &json!({"policyTypes": ["Ingress"], "ingress": []}));
            stream.assert_silence("the denial of what arrives");
            policy(&lan, two, "server", &json!({"policyTypes": ["Ingress"], "ingress": [{}]}));
            stream_takes_the_kernels_way();
            // Where it leaves.
            policy(&lan, one, "client", &json!({"policyTypes": ["Egress"], "egress": []}));
            stream.assert_silence("the denial of what leaves");
        });
        policy(&lan, one, "client", &json!({"policyTypes": ["Egress"], "egress": [{}]}));
    }
    for node in [one, two] {
        assert_eq!(offload(node)["no_port"], 0);
        assert!(node.is_well());
    }
}

#[test]
fn routed_connections_take_the_kernels_way_until_they_are_denied() {
    requires_the_machine!("iperf3");
    connections_of_two_cluster_nodes(&ROUTED);
}

#[test]
fn tunnelled_connections_take_the_kernels_way_until_they_are_denied() {
    requires_the_machine!("iperf3");
    connections_of_two_cluster_nodes(&TUNNELS);
}

/// Segments stay uncut from pod to pod, through the tunnel as well, and their checksums finishable.
#[test]
fn long_segments_and_their_checksums_stay_what_they_are_between_cluster_nodes() {
    requires_the_machine!("iperf3", "python3");
    for arguments in [&ROUTED[..], &TUNNELS] {
        let lan = Lan::start(arguments);
        let (client, server) =
            (lan.nodes[0].pod("client", "client"), lan.nodes[1].pod("server", "server"));
        for to in [server.v4(), server.v6()] {
            let look = look(&server);
            iperf3(&client, &server, to, &["-b", "200M"]);
            let counts = counts_of(&look);
            assert_eq!(counts["wrong"], 0, "{to} {arguments:?}: {counts}");
            assert!(counts["longest"].as_u64() > Some(2000), "{to} {arguments:?}: {counts}");
        }
    }
}

/// A client outside reaches a pod by a port of its node; the pod reaches the client.
#[test]
fn clients_outside_of_the_cluster_are_served_by_the_kernel() {
    requires_the_machine!("redis-server");
    for arguments in [&ROUTED[..], &TUNNELS] {
        let lan = Lan::start(arguments);
        let node = &lan.nodes[0];
        let server = node.pod("server", "server");
        let _redis = server.serve_redis();
        apply_service(&lan, &server, "node1", &json!({}));
        let to: SocketAddr = "192.0.2.1:30379".parse().unwrap();
        let connect = || TcpStream::connect_timeout(&to, PATIENCE);
        let mut connection = lan.world.enter(connect).unwrap();
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        wait_for_offload(node, &mut connection);
        let before = forwarded(node);
        for _ in 0..100 {
            asks(&mut connection).unwrap();
        }
        // A question, its answer, and acknowledgements.
        assert!(forwarded(node) >= before + 200, "both directions");
    }
}

/// Without its program on the uplink the switch gets nothing from there until it is back.
#[test]
fn an_uplinks_program_that_is_taken_off_comes_back() {
    requires_the_machine!("ping");
    let lan = Lan::start(&TUNNELS);
    let [one, two] = &lan.nodes[..] else { panic!("two nodes") };
    let (a, b) = (one.pod("a", "a"), two.pod("b", "b"));
    assert!(a.pings(b.v4()));
    let index: u32 =
        one.namespace.exec(["cat", "/sys/class/net/eth0/ifindex"]).trim().parse().unwrap();
    let lost = || one.status()["ports_lost"].as_u64();
    let before = lost();
    one.namespace.enter(|| {
        flow_offload::recognize_programs([index]);
        flow_offload::Kernel::release(index);
    });
    one.eventually("the loss", || (lost() > before).then_some(()));
    one.eventually("the program", || a.pings(b.v4()).then_some(()));
    // Its link to the switch, too.
    let before = lost();
    one.namespace.exec(["ip", "link", "delete", "podgate-uplink"]);
    one.eventually("the loss", || (lost() > before).then_some(()));
    one.eventually("the link", || a.pings(b.v4()).then_some(()));
    assert!(one.is_well() && two.is_well());
}

/// Between the switch's orderly end and its next start, connections of two nodes go on; in
/// either mode the uplink serves the next switch, whatever the one before it was.
#[test]
fn connections_of_two_cluster_nodes_outlive_the_switch_and_modes_change() {
    requires_the_machine!("redis-server", "ping");
    let mut lan = Lan::start(&TUNNELS);
    let uplink = ["--uplink", "eth0"];
    {
        let [one, two] = &lan.nodes[..] else { panic!("two nodes") };
        let server = two.pod("server", "server");
        let _redis = server.serve_redis();
        let client = one.pod("client", "client");
        let mut connection = connect_to_redis(&client, server.v4());
        wait_for_offload(one, &mut connection);
        wait_for_offload(two, &mut connection);
        assert!(one.stop_switch().success());
        for _ in 0..100 {
            asks(&mut connection).unwrap();
        }
        one.start_switch();
        wait_for_offload(one, &mut connection);
    }
    for mode in ["off", "on", "off"] {
        lan.nodes[0].kill_switch();
        lan.nodes[0].set_arguments(&[&uplink[..], &["--flow-offload", mode]].concat());
        lan.nodes[0].start_switch();
        let [one, two] = &lan.nodes[..] else { panic!("two nodes") };
        let (a, b) = (one.pod("a", "a"), two.pod("b", "b"));
        one.eventually("the way", || a.pings(b.v4()).then_some(()));
        let attached = one.namespace.exec(["ip", "link", "show", "eth0"]);
        assert_eq!(attached.contains("xdp"), mode == "off", "{attached}");
        assert_eq!(offload(one)["state"], mode);
    }
}
