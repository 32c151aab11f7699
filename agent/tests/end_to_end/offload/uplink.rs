//! Connections to pods of other cluster nodes leave by the uplink without the switch, where there is
//! no tunnel.

use std::time::Duration;

use serde_json::{Value, json};

use super::{arrived, bytes, forwarded, iperf3, while_streaming};
use crate::lan::Lan;
use crate::requires_the_machine;

const ROUTED: [&str; 4] = ["--flow-offload", "on", "--underlay", "routed"];

#[test]
fn what_leaves_by_the_uplink_takes_the_kernels_way_until_it_is_denied() {
    requires_the_machine!("iperf3");
    let lan = Lan::start(&ROUTED);
    let [one, two] = &lan.nodes[..] else { panic!("two cluster nodes") };
    let (client, server) = (one.pod("client", "client"), two.pod("server", "server"));
    let policy = |egress: Value| {
        let policy = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": "client", "namespace": "default"},
            "spec": {"podSelector": {"matchLabels": {"role": "client"}},
                "policyTypes": ["Egress"], "egress": egress}});
        // It is about a pod of the first cluster node; the other one has nothing to do.
        let in_force = || one.status()["generation_in_force"].clone();
        let before = in_force();
        lan.write("policy", &policy);
        one.eventually("the policy", || (in_force() != before).then_some(()));
    };
    for to in [server.v4(), server.v6()] {
        for options in [&["-b", "100M"][..], &["-u", "-b", "20M"]] {
            let before = bytes(one);
            let received = iperf3(&client, &server, to, options);
            let by_kernel = (bytes(one) - before) as f64;
            assert!(by_kernel > received / 2.0, "{to} {options:?}: {by_kernel} of {received}");
        }
        while_streaming(&client, to, || {
            let before = forwarded(one);
            one.eventually("the kernel's way", || (forwarded(one) > before + 1000).then_some(()));
            policy(json!([]));
            // What had left is on its way through the other cluster node.
            std::thread::sleep(Duration::from_millis(500));
            let then = arrived(&server);
            std::thread::sleep(Duration::from_millis(300));
            assert_eq!(arrived(&server), then, "packets after the denial");
        });
        policy(json!([{}]));
    }
}
