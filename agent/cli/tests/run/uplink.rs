//! The uplink: what the kernel and the program in front of it are given, and which tunnel packets count.

use linux_net::filter::Rules;
use local_api::Verdict;
use observe::verdicts::Protocol;
use testkit::packet::{Packet, ping, udp};

use crate::DB;
use crate::kernel::Kernel;
use crate::node::{Node, NodeFiles, POLICY, cluster, remote_pod, until};

const OTHER: &str = "192.0.2.2";

/// A node with an uplink, beside another one.
fn start(files: &NodeFiles, kernel: Kernel) -> Node {
    files.manifest("cluster.yaml", &cluster(&["db"]));
    files.manifest(
        "other.yaml",
        &format!(
            "apiVersion: v1\nkind: Node\nmetadata: {{name: node-b}}\nspec: {{podCIDRs: \
             [10.2.0.0/24]}}\nstatus: {{addresses: [{{type: InternalIP, address: {OTHER}}}]}}\n"
        ),
    );
    kernel.add("eth0");
    start_again(files, kernel)
}

fn start_again(files: &NodeFiles, kernel: Kernel) -> Node {
    Node::start_on(files, kernel, |config| config.network.uplink = Some("eth0".to_owned()))
}

#[test]
fn the_kernel_is_given_what_it_must_not_route_and_the_uplink_what_to_take() {
    let files = NodeFiles::new("filters");
    let node = start(&files, Kernel::default());
    let networks = ["10.1.0.0/24", "10.2.0.0/24"].map(|text| text.parse().unwrap());
    let rules = Rules { tunnel_port: Some(4789), pods: networks.to_vec() };
    until(|| node.kernel.filter().as_ref() == Some(&rules));
    let taken = || node.kernel.uplink_filter().unwrap_or_default();
    until(|| taken().vxlan_port == Some(4789));
    assert!(taken().pod_networks.iter().eq(&networks[..1]));
    assert!(taken().node_addresses.iter().eq(&["192.0.2.1".parse::<std::net::IpAddr>().unwrap()]));
    // A node more, and its pods are held to it as well.
    files.manifest(
        "third.yaml",
        "apiVersion: v1\nkind: Node\nmetadata: {name: node-c}\nspec: {podCIDRs: [10.3.0.0/24]}\n",
    );
    until(|| node.kernel.filter().is_some_and(|rules| rules.pods.len() == 3));
    // Without an uplink the kernel may route to other nodes' pods, and there are no tunnels.
    drop(node);
    let alone = Node::start(&files);
    let own = Rules { tunnel_port: None, pods: networks[..1].to_vec() };
    until(|| alone.kernel.filter().as_ref() == Some(&own));
}

#[test]
fn an_address_that_the_kernel_and_the_node_object_have_is_shown_once() {
    let kernel = Kernel::default();
    for own in ["198.51.100.9", "192.0.2.1"] {
        kernel.add_address(own.parse().unwrap());
    }
    let files = NodeFiles::new("once");
    let node = start(&files, kernel);
    let shown = || {
        let uplink = node.status().ports.into_iter().find(|port| port.name == "uplink");
        uplink.map_or_else(Vec::new, |port| port.addresses)
    };
    let count = |own: &str| shown().iter().filter(|it| **it == *own).count();
    until(|| count("198.51.100.9") == 1);
    assert_eq!(count("192.0.2.1"), 1, "{:?}", shown());
    // Verdicts name pods on the host network by the first.
    assert_eq!(shown()[0], "192.0.2.1", "that of the Node object");
}

/// A tunnel packet of the other node's pod.
fn tunnel(port: u16, hops: u8) -> Packet {
    let header = [&[0x08, 0, 0, 0][..], &(4096_u32 << 8).to_be_bytes()].concat();
    let payload = [&header, &inside(port).build()[..]].concat();
    udp(&format!("{OTHER}:50000"), "192.0.2.1:4789").payload(&payload).ttl(hops)
}

fn inside(port: u16) -> Packet {
    udp("10.2.0.9:1", &format!("{DB}:{port}")).payload(b"x")
}

#[test]
fn tunnel_packets_have_passed_no_router_unless_the_route_leads_by_one() {
    let other = OTHER.parse().unwrap();
    // As long as the route is not known, the strict rule holds.
    for neighbour in [None, Some(other)] {
        let kernel = Kernel::default();
        neighbour.iter().for_each(|neighbour| kernel.route(other, *neighbour));
        let files = NodeFiles::new(&format!("hops-{}", neighbour.is_some()));
        let node = start(&files, kernel);
        let (db, uplink) = (node.attach("db", DB), node.kernel.pod("eth0"));
        for hops in [254, 64, 2] {
            uplink.send(&tunnel(1, hops));
        }
        uplink.send(&tunnel(2, 255));
        db.expects(&inside(2), DB);
    }
    let kernel = Kernel::default();
    kernel.route(other, "192.0.2.254".parse().unwrap());
    let files = NodeFiles::new("hops-router");
    let node = start(&files, kernel);
    let (db, uplink) = (node.attach("db", DB), node.kernel.pod("eth0"));
    let mut port = 100;
    until(|| {
        port += 1;
        uplink.send(&tunnel(port, 64));
        db.wire.receive().is_some()
    });
}

#[test]
fn a_ping_into_a_tunnel_is_observed_as_an_echo_request() {
    let (files, kernel) = (NodeFiles::new("ping"), Kernel::default());
    let other = OTHER.parse().unwrap();
    kernel.route(other, other);
    files.manifest("far.yaml", &remote_pod("far", "10.2.0.9"));
    let node = start(&files, kernel);
    let (db, uplink) = (node.attach("db", DB), node.kernel.pod("eth0"));
    let mut sequence = 0;
    until(|| {
        sequence += 1;
        db.send(&ping(DB, "10.2.0.9", sequence, 1));
        uplink.wire.receive().is_some_and(|frame| frame.len() > 80)
    });
    let event = node.wait_for_event(|event| event.verdict == Verdict::Forwarded);
    assert_eq!((event.icmp_type, event.protocol), (Some(8), Some(Protocol(1))), "{event:?}");
    // Sessions name pods of other nodes as verdicts do.
    let sessions = node.show("sessions").unwrap();
    assert!(sessions.contains("default/far"), "{sessions}");
}

/// A pod of another node that is replaced while this switch is away does not get its sessions, whatever
/// `spoil` does to the saved objects meanwhile.
fn replaced_while_away(label: &str, spoil: impl Fn(&NodeFiles)) {
    let files = NodeFiles::new(label);
    files.manifest("far.yaml", &remote_pod("far", "10.2.0.9"));
    files.manifest("policy.yaml", POLICY);
    let node = start(&files, Kernel::default());
    let db = node.attach("db", DB);
    db.send(&udp(&format!("{DB}:5000"), "10.2.0.9:1").payload(b"x"));
    node.wait_for_event(|event| event.to.port == Some(1));
    node.kernel.pod("eth0").send(&tunnel(5000, 255));
    db.expects(&inside(5000), DB);

    // The same pod is there: its answers pass.
    let kernel = node.stop();
    spoil(&files);
    let node = start_again(&files, kernel);
    let db = node.taken_up("db", DB);
    node.kernel.pod("eth0").send(&tunnel(5000, 255));
    db.expects(&inside(5000), DB);

    let kernel = node.stop();
    spoil(&files);
    files.remove("far.yaml");
    files.manifest("next.yaml", &remote_pod("next", "10.2.0.9"));
    let node = start_again(&files, kernel);
    let _db = node.taken_up("db", DB);
    node.kernel.pod("eth0").send(&tunnel(5000, 255));
    let event = node.wait_for_event(|event| event.to.port == Some(5000));
    assert_eq!(event.reason, "policy-denied");
}

#[test]
fn sessions_of_a_remote_pod_end_if_another_has_its_address_after_a_restart() {
    replaced_while_away("replaced", |_| {});
}

#[test]
fn they_end_also_with_missing_damaged_or_old_saved_objects() {
    let saved = |files: &NodeFiles| files.path("state/cluster-state");
    replaced_while_away("replaced-missing", |files| std::fs::remove_file(saved(files)).unwrap());
    replaced_while_away("replaced-damaged", |files| files.damage("state/cluster-state"));
    // As of before the pods came, as after a crash.
    replaced_while_away("replaced-old", |files| {
        std::fs::write(saved(files), "podgate-state 1\n0 cbf29ce484222325\n").unwrap();
    });
    // Without the list of owners, the saved objects tell.
    replaced_while_away("replaced-unlisted", |files| {
        std::fs::remove_file(files.path("state/owners")).unwrap();
    });
}

/// Sessions that cannot be verified are evaluated again: the connection of a pod that is still there goes on.
#[test]
fn sessions_go_on_without_any_record_of_the_pods() {
    let files = NodeFiles::new("unverified");
    files.manifest("far.yaml", &remote_pod("far", "10.2.0.9"));
    files.manifest("policy.yaml", POLICY);
    let node = start(&files, Kernel::default());
    let db = node.attach("db", DB);
    db.send(&udp(&format!("{DB}:5000"), "10.2.0.9:1").payload(b"x"));
    node.wait_for_event(|event| event.to.port == Some(1));
    let kernel = node.stop();
    for file in ["state/cluster-state", "state/owners"] {
        std::fs::remove_file(files.path(file)).unwrap();
    }
    let node = start_again(&files, kernel);
    let db = node.taken_up("db", DB);
    node.kernel.pod("eth0").send(&tunnel(5000, 255));
    db.expects(&inside(5000), DB);
}
