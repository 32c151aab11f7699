//! Packets longer than Ethernet's usual 1500 bytes, and ways that do not take them.

use serde_json::Value;
use testkit::Namespace;

use crate::cluster_node::{PATIENCE, text};
use crate::lan::{FAR, FAR_V6, Lan};
use crate::pod::Pod;
use crate::{ClusterNode, requires_the_machine};

/// Bytes of headers in front of what ping carries.
const V4: u32 = 28;
const V6: u32 = 48;

/// Pings with unfragmentable packets of `length` bytes; the error is ping's output.
fn pings(client: &Namespace, to: &str, length: u32) -> Result<(), String> {
    let payload = length - if to.contains(':') { V6 } else { V4 };
    let payload = payload.to_string();
    let output =
        client.try_exec(["ping", "-c", "1", "-W", "2", "-M", "do", "-s", payload.as_str(), to]);
    match output.status.success() {
        true => Ok(()),
        false => Err(text(&output.stdout) + &text(&output.stderr)),
    }
}

/// Sends 64 MiB, however long that takes; the stream's largest segment at its start.
fn stream(client: &Namespace, server: &Namespace, to: &str) -> u64 {
    let listener = server.spawn(["iperf3", "-s", "-1", "--forceflush"]);
    listener.wait_for_line("Server listening", PATIENCE);
    let result = client.exec(["iperf3", "-J", "-n", "64M", "-c", to]);
    let result: Value = serde_json::from_str(&result).unwrap();
    // Bytes left in the sender's buffer at the end are not waited for.
    let bytes = result["end"]["sum_received"]["bytes"].as_u64().unwrap();
    assert!(bytes >= 8 << 20, "{to}: {result}");
    result["start"]["tcp_mss_default"].as_u64().unwrap()
}

fn addresses(pod: &Pod<'_>) -> [String; 2] {
    [pod.v4().to_string(), pod.v6().to_string()]
}

#[test]
fn long_packets_pass_between_pods() {
    requires_the_machine!("ping", "iperf3");
    for mtu in [9000, 65_000] {
        let node = ClusterNode::start(&[]);
        node.mtu.store(mtu, std::sync::atomic::Ordering::Relaxed);
        let (a, b) = (node.pod("a", "a"), node.pod("b", "b"));
        let link = a.namespace.exec(["ip", "link", "show", "eth0"]);
        assert!(link.contains(&format!(" mtu {mtu} ")), "{link}");
        for to in addresses(&b) {
            assert_eq!(pings(&a.namespace, &to, mtu), Ok(()), "{to} {mtu}");
            assert!(pings(&a.namespace, &to, mtu + 1).is_err(), "{to} {mtu}");
            let segment = stream(&a.namespace, &b.namespace, &to);
            // A sender keeps two segments under way, and windows begin at 64 KiB.
            let least = u64::from(mtu - 100).min(32_000);
            assert!(segment > least, "{to} {mtu}: {segment}");
        }
    }
}

#[test]
fn long_packets_pass_between_cluster_nodes_where_the_underlay_takes_them() {
    requires_the_machine!("ping", "iperf3");
    for (underlay, mtu) in [("vxlan", 8950), ("routed", 9000)] {
        let lan = Lan::start_with_mtu(9000, mtu, &["--underlay", underlay]);
        let (a, b) = (lan.nodes[0].pod("a", "a"), lan.nodes[1].pod("b", "b"));
        for to in addresses(&b) {
            assert_eq!(pings(&a.namespace, &to, mtu), Ok(()), "{underlay} {to}");
            let segment = stream(&a.namespace, &b.namespace, &to);
            assert!(segment > u64::from(mtu) - 100, "{underlay} {to}: {segment}");
        }
    }
}

#[test]
fn senders_of_what_is_too_long_for_the_way_are_told() {
    requires_the_machine!("ping", "iperf3");
    for (underlay, masquerade, tunnel) in [("vxlan", "kernel", 1450), ("routed", "direct", 1500)] {
        let arguments = ["--underlay", underlay, "--masquerade", masquerade];
        let lan = Lan::start_with_mtu(1500, 9000, &arguments);
        let (a, b) = (lan.nodes[0].pod("a", "a"), lan.nodes[1].pod("b", "b"));
        lan.nodes[0].mtu.store(1400, std::sync::atomic::Ordering::Relaxed);
        let short = lan.nodes[0].pod("short", "short");
        let to_short = addresses(&short).map(|to| (to, &short.namespace, 1400));
        let to_pods = addresses(&b).map(|to| (to, &b.namespace, tunnel));
        let to_world = [FAR, FAR_V6].map(|to| (to.to_owned(), &lan.world, 1500));
        for (to, server, mtu) in to_pods.into_iter().chain(to_world).chain(to_short) {
            let told = pings(&a.namespace, &to, 9000).unwrap_err();
            assert!(told.replace(' ', "").contains(&format!("mtu={mtu}")), "{to}: {told}");
            assert_eq!(pings(&a.namespace, &to, mtu), Ok(()), "{to}");
            // Both ends offer long segments, and find out.
            stream(&a.namespace, server, &to);
        }
        // The kernel believes the switch as pods do.
        let host = &lan.nodes[0].namespace;
        for to in addresses(&short) {
            let told = pings(host, &to, 1500).unwrap_err();
            assert!(told.replace(' ', "").contains("mtu=1400"), "{to}: {told}");
            assert_eq!(pings(host, &to, 1400), Ok(()), "{to}");
            stream(host, &short.namespace, &to);
        }
    }
}
