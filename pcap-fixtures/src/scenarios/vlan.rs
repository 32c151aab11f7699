//! VLAN tags of pods.

use testkit::packet::{cut, tcp, udp};

use crate::Scenario;

/// A tag opens nothing.
pub(super) fn vlan() -> Scenario {
    const ALLOWED: &[&str] = &["NetworkPolicy default/web-in ingress[0]"];
    const DENIED: &[&str] = &["default-deny of NetworkPolicy default/web-in"];
    let mut s = Scenario::new(
        "vlan",
        "node1",
        "a pod is in no VLAN: its frames with an 802.1Q or QinQ tag are dropped, whatever is inside; a priority tag is \
         looked through",
    );
    let open = |port: u16| tcp(&format!("10.1.1.100:{port}"), "10.1.1.101:80").syn();
    let closed = |port: u16| tcp(&format!("10.1.1.100:{port}"), "10.1.1.101:81").syn();
    s.from("default/client", open(40000).vlan(100)).dropped("pod-vlan");
    s.from("default/client", closed(40001).vlan(100)).dropped("pod-vlan");
    s.from("default/client", open(40002).service_vlan(10).vlan(20)).dropped("pod-vlan");
    s.from("default/client", closed(40003).service_vlan(10).vlan(20)).dropped("pod-vlan");
    // A priority tag (VLAN 0, IEEE 802.1Q, section 9.6).
    s.from("default/client", open(40004).vlan(0)).allowed("default/web", ALLOWED);
    s.from("default/client", closed(40007).vlan(0)).denied(DENIED);
    s.from("default/client", udp("10.1.1.100:1", "10.1.1.101:80").vlan(7)).dropped("pod-vlan");
    // The session is the packet's, with the tag or without.
    let reply = tcp("10.1.1.101:80", "10.1.1.100:40004").syn_ack();
    s.from("default/web", reply).session("default/client");
    // Tags that never end, and a tag cut off.
    let stacked = (0..6).fold(open(40005), |packet, number| packet.vlan(number));
    s.from("default/client", stacked).dropped("malformed-ethernet");
    s.from("default/client", cut(open(40006).vlan(100), 16)).dropped("truncated");
    s
}
