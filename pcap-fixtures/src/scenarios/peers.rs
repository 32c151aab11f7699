//! The pods a peer selects, and policies at both ends of a connection.

use testkit::packet::{ping, tcp, udp};

use crate::Scenario;

/// Pods that are not, not yet or not any more peers.
pub(super) fn pod_phases() -> Scenario {
    const ALLOWED: &[&str] = &["NetworkPolicy default/server-in ingress[0]"];
    const DENIED: &[&str] = &["default-deny of NetworkPolicy default/server-in"];
    let server = "10.1.1.180:80";
    let mut s = Scenario::new(
        "pod-phases",
        "node1",
        "finished pods and pods on the host network are no peers, although their labels match and their addresses live on",
    );
    s.from("default/client", tcp("10.1.1.181:40000", server).syn())
        .allowed("default/server", ALLOWED);
    // The address of a finished job's pod, whose label would do, now belongs to a stranger.
    s.from("default/stranger", tcp("10.1.1.182:40000", server).syn()).denied(DENIED);
    // A pod on the host network of node2 has the label, but its address is the node's.
    s.from("uplink", tcp("192.168.0.12:40000", server).syn()).denied(DENIED);
    // A failed pod on node2: its address is unowned.
    s.from("uplink", tcp("10.1.2.83:40000", server).syn()).denied(DENIED);
    // A pod that is being deleted still runs, and may still say goodbye.
    s.from("default/leaving", tcp("10.1.1.184:40000", server).syn())
        .allowed("default/server", ALLOWED);
    // A host-network pod is not isolated: the policy that selects it by label is not about it.
    s.from("default/client", tcp("10.1.1.181:40001", "192.168.0.11:9100").syn())
        .allowed("host", &["default-allow"]);
    s
}

/// A connection opens if both ends let it.
pub(super) fn both_ends() -> Scenario {
    const OUT: &str = "NetworkPolicy default/client-out egress[0]";
    const IN: &str = "NetworkPolicy default/server-in ingress[0]";
    let (c, d) = ("default/client", "default/server");
    let mut s = Scenario::new(
        "both-ends",
        "node1",
        "a connection opens only if the egress rules of one end and the ingress rules of the other let it",
    );
    let mut port = 40000;
    let mut open = |to: &str| {
        port += 1;
        tcp(&format!("10.1.1.185:{port}"), to).syn()
    };
    s.from(c, open("10.1.1.186:80")).allowed(d, &[OUT, IN]);
    // The client may, the server does not want.
    s.from(c, open("10.1.1.186:81")).denied(&[
        "default-deny of NetworkPolicy default/server-in, NetworkPolicy default/server-in-too",
    ]);
    // The server would, the client may not.
    s.from(c, open("10.1.1.186:82")).denied(&["default-deny of NetworkPolicy default/client-out"]);
    // Neither.
    s.from(c, open("10.1.1.186:83")).denied(&["default-deny of NetworkPolicy default/client-out"]);
    // Egress is not limited by port, ingress is by protocol, and the other way round: a side
    // that names ports must not turn "all traffic" of the other side into TCP and UDP only.
    s.from(c, ping("10.1.1.185", "10.1.1.187", 1, 1)).allowed(
        "default/any",
        &["NetworkPolicy default/client-out egress[1]", "NetworkPolicy default/any-in ingress[0]"],
    );
    s.from(c, udp("10.1.1.185:5000", "10.1.1.187:5000")).allowed(
        "default/any",
        &["NetworkPolicy default/client-out egress[1]", "NetworkPolicy default/any-in ingress[0]"],
    );
    // Two policies select the server; what either allows is allowed.
    s.from("default/other", tcp("10.1.1.188:40000", "10.1.1.186:90").syn())
        .allowed(d, &["NetworkPolicy default/server-in-too ingress[0]"]);
    s
}

/// "From anywhere" and "from 0.0.0.0/0" are not the same.
pub(super) fn any_and_all() -> Scenario {
    const DENIED: &[&str] = &["default-deny of NetworkPolicy default/server-in"];
    let d = "default/server";
    let mut s = Scenario::new(
        "any-and-all",
        "node1",
        "no peers means every peer, 0.0.0.0/0 every IPv4 address, an empty namespace selector every pod",
    );
    let four =
        |from: &str, port: u16| tcp(&format!("{from}:40000"), &format!("10.1.1.191:{port}")).syn();
    let six = |from: &str, port: u16| {
        tcp(&format!("[{from}]:40000"), &format!("[fd00:1:1::bf]:{port}")).syn()
    };
    // Port 80: no peers given.
    s.from("default/client", four("10.1.1.190", 80))
        .allowed(d, &["NetworkPolicy default/server-in ingress[0]"]);
    s.from("default/client", six("fd00:1:1::be", 80))
        .allowed(d, &["NetworkPolicy default/server-in ingress[0]"]);
    s.from("uplink", four("198.51.100.1", 80))
        .allowed(d, &["NetworkPolicy default/server-in ingress[0]"]);
    // Port 81: 0.0.0.0/0.
    s.from("default/client", four("10.1.1.190", 81))
        .allowed(d, &["NetworkPolicy default/server-in ingress[1]"]);
    s.from("default/client", six("fd00:1:1::be", 81)).denied(DENIED);
    s.from("uplink", four("198.51.100.1", 81))
        .allowed(d, &["NetworkPolicy default/server-in ingress[1]"]);
    // Port 82: every pod of every namespace, also of one that no manifest describes.
    s.from("default/client", four("10.1.1.190", 82))
        .allowed(d, &["NetworkPolicy default/server-in ingress[2]"]);
    s.from("default/client", six("fd00:1:1::be", 82))
        .allowed(d, &["NetworkPolicy default/server-in ingress[2]"]);
    s.from("far/away", four("10.1.1.192", 82))
        .allowed(d, &["NetworkPolicy default/server-in ingress[2]"]);
    s.from("uplink", four("198.51.100.1", 82)).denied(DENIED);
    // Port 83: the namespace by the label that every namespace has.
    s.from("far/away", four("10.1.1.192", 83))
        .allowed(d, &["NetworkPolicy default/server-in ingress[3]"]);
    s.from("default/client", four("10.1.1.190", 83)).denied(DENIED);
    // Port 84: peers that match no pod mean no pod, not every pod.
    s.from("default/client", four("10.1.1.190", 84)).denied(DENIED);
    s.from("uplink", four("198.51.100.1", 84)).denied(DENIED);
    s
}
