//! Where packets enter and leave.

use testkit::packet::{ping, pong, tcp, udp};

use crate::Scenario;

/// A pod port sends only from its own addresses.
pub(super) fn spoofing() -> Scenario {
    let mut s = Scenario::new(
        "spoofing",
        "node1",
        "a pod cannot use the address of another, of its node or of the outside, whatever policy allows those",
    );
    let web = "10.1.1.132:80";
    s.from("default/a", tcp("10.1.1.130:40000", web).syn())
        .denied(&["default-deny of NetworkPolicy default/web-in"]);
    // b may; a says it is b.
    s.from("default/b", tcp("10.1.1.131:40000", web).syn())
        .allowed("default/web", &["NetworkPolicy default/web-in ingress[0]"]);
    let own = testkit::packet::mac_of([10, 1, 1, 130].into());
    s.from("default/a", tcp("10.1.1.131:40000", web).ack().from_mac(own))
        .dropped("spoofed-address");
    s.from("default/a", tcp("10.1.1.131:40001", web).syn().from_mac(own))
        .dropped("spoofed-address");
    // The node is always let in, but only through the host port.
    s.from("default/a", tcp("192.168.0.11:40000", web).syn().from_mac(own))
        .dropped("spoofed-address");
    s.from("default/a", udp("198.51.100.1:53", "10.1.1.132:53").from_mac(own))
        .dropped("spoofed-address");
    s.from("default/a", tcp("[fd00:1:1::83]:40000", "[fd00:1:1::84]:80").syn().from_mac(own))
        .dropped("spoofed-address");
    // A local pod's address does not come in from the outside.
    s.from("uplink", tcp("10.1.1.131:40000", web).syn()).dropped("spoofed-address");
    s.from("uplink", tcp("192.168.0.11:40000", web).syn()).dropped("spoofed-address");
    // Nor does it come out of the node's kernel.
    s.from("host", tcp("10.1.1.131:40000", web).syn()).dropped("spoofed-address");
    s
}

/// Pods of other nodes are behind the uplink.
pub(super) fn remote_pods() -> Scenario {
    let mut s = Scenario::new(
        "remote-pods",
        "node1",
        "pods of other nodes are reached through the uplink; egress is evaluated here, ingress for local pods only",
    );
    const IN: &[&str] = &["NetworkPolicy default/db-in ingress[0]"];
    let (db, remote, stranger) = ("10.1.1.140:5432", "10.1.2.40:40000", "10.1.2.41:40000");
    // In: the remote pod with the label may open, the other may not.
    s.from("uplink", tcp(remote, db).syn()).allowed("default/db", IN);
    s.from("default/db", tcp(db, remote).syn_ack()).session("uplink");
    s.from("uplink", tcp(remote, db).data(b"select 1")).session("default/db");
    s.from("uplink", tcp(stranger, db).syn())
        .denied(&["default-deny of NetworkPolicy default/db-in"]);
    s.from("uplink", tcp("198.51.100.9:40000", db).syn())
        .denied(&["default-deny of NetworkPolicy default/db-in"]);
    // Out: the local pod's own egress policy.
    let web = "10.1.1.141:40000";
    s.from("default/web", tcp(web, "10.1.2.40:80").syn())
        .allowed("uplink", &["NetworkPolicy default/web-out egress[0]"]);
    s.from("uplink", tcp("10.1.2.40:80", web).syn_ack()).session("default/web");
    s.from("default/web", tcp(web, "10.1.2.41:80").syn())
        .denied(&["default-deny of NetworkPolicy default/web-out"]);
    s.from("default/web", tcp("10.1.1.141:40001", "10.1.2.40:81").syn())
        .denied(&["default-deny of NetworkPolicy default/web-out"]);
    // The remote pod's own policy is the other node's business.
    s.from("default/db", tcp("10.1.1.140:50000", "10.1.2.41:80").syn())
        .allowed("uplink", &["default-allow"]);
    // What is not for this node is not passed on.
    s.from("uplink", tcp(remote, "10.1.2.41:80").syn()).dropped("not-local");
    s.from("uplink", tcp(remote, "198.51.100.9:80").syn()).dropped("not-local");
    // Nor is an address of this node's range that no pod has.
    s.from("uplink", tcp(remote, "10.1.1.199:80").syn()).dropped("no-route");
    s.from("default/db", tcp("10.1.1.140:50001", "10.1.1.199:80").syn()).dropped("no-route");
    s
}

/// The pod's own node.
pub(super) fn host_port() -> Scenario {
    let (node, other_node) = ("192.168.0.11", "192.168.0.12");
    let mut s = Scenario::new(
        "host-port",
        "node1",
        "the pod's own node (kubelet probes) is always allowed in; connections of the pod to it are evaluated",
    );
    // The pod is closed in both directions; probes get in, and their answers out.
    s.from("host", tcp("192.168.0.11:45000", "10.1.1.150:8080").syn())
        .forwarded("default/closed", "own-node");
    s.from("default/closed", tcp("10.1.1.150:8080", "192.168.0.11:45000").syn_ack())
        .session("host");
    s.from("host", tcp("192.168.0.11:45000", "10.1.1.150:8080").ack()).session("default/closed");
    s.from("host", ping(node, "10.1.1.150", 3, 1)).forwarded("default/closed", "own-node");
    s.from("default/closed", pong("10.1.1.150", node, 3, 1)).session("host");
    // Another node is not the pod's own.
    s.from("uplink", tcp("192.168.0.12:45000", "10.1.1.150:8080").syn())
        .denied(&["default-deny of NetworkPolicy default/closed"]);
    // What the pod itself opens needs its policy.
    s.from("default/closed", tcp("10.1.1.150:50000", "192.168.0.11:10250").syn())
        .denied(&["default-deny of NetworkPolicy default/closed"]);
    s.from("default/open", tcp("10.1.1.151:50000", "192.168.0.11:10250").syn())
        .allowed("host", &["default-allow"]);
    s.from("host", tcp("192.168.0.11:10250", "10.1.1.151:50000").syn_ack()).session("default/open");
    s.from("default/dns-only", udp("10.1.1.152:50000", "192.168.0.11:53"))
        .allowed("host", &["NetworkPolicy default/node-dns egress[0]"]);
    s.from("default/dns-only", tcp("10.1.1.152:50000", "192.168.0.11:22").syn())
        .denied(&["default-deny of NetworkPolicy default/node-dns"]);
    // The host and the outside talk without us.
    s.from("host", tcp("192.168.0.11:50000", "198.51.100.1:443").syn())
        .forwarded("uplink", "no-policy");
    s.from("uplink", tcp("198.51.100.1:443", "192.168.0.11:50000").syn_ack())
        .forwarded("host", "no-policy");
    s.from("uplink", tcp(&format!("{other_node}:40000"), "192.168.0.11:22").syn())
        .forwarded("host", "no-policy");
    s
}

/// Without interface names, the source address determines the port.
pub(super) fn classic_pcap() -> Scenario {
    let mut s = Scenario::new(
        "classic-pcap",
        "node1",
        "a classic capture (big-endian, nanoseconds) names no interfaces: the source address determines the port, else it is the uplink",
    )
    .classic();
    let (a, b) = ("10.1.1.160:40000", "10.1.1.161:80");
    s.from("default/a", tcp(a, b).syn()).unnamed().allowed("default/b", &["default-allow"]);
    s.from("default/b", tcp(b, a).syn_ack()).unnamed().session("default/a");
    s.from("host", tcp("192.168.0.11:40000", b).syn()).unnamed().forwarded("default/b", "own-node");
    s.from("uplink", tcp("10.1.2.9:40000", b).syn())
        .unnamed()
        .allowed("default/b", &["default-allow"]);
    s.from("uplink", tcp("198.51.100.1:40000", b).syn())
        .unnamed()
        .allowed("default/b", &["default-allow"]);
    s
}

/// Interface names that are no ports of this switch.
pub(super) fn other_interfaces() -> Scenario {
    let mut s = Scenario::new(
        "other-interfaces",
        "node1",
        "an interface name that is no port of the switch (eth0, a pod elsewhere) counts as none: the source address determines the port",
    );
    let (a, b) = ("10.1.1.165:40000", "10.1.1.166:80");
    s.from("default/a", tcp(a, b).syn()).named("eth0").allowed("default/b", &["default-allow"]);
    s.from("default/b", tcp(b, a).syn_ack()).named("default/nobody").session("default/a");
    // A pod of node2: its packets come through the uplink.
    s.from("uplink", tcp("10.1.2.65:40000", b).syn())
        .named("default/elsewhere")
        .allowed("default/b", &["default-allow"]);
    s.from("host", tcp("192.168.0.11:40000", b).syn())
        .named("any")
        .forwarded("default/b", "own-node");
    // Too short to contain a source address.
    s.from("uplink", vec![2; 10]).named("eth0").dropped("truncated");
    // A name that is a port wins over the address.
    s.from("uplink", tcp(a, b).ack()).dropped("spoofed-address");
    s
}
