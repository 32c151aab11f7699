//! ARP and neighbour discovery, which the switch answers itself.

use testkit::packet::{
    arp_announcement, arp_probe, arp_reply, arp_request, cut, icmp, mac_of,
    neighbour_advertisement, neighbour_solicitation, patch,
};

use crate::Scenario;

/// The switch stands for every address but the pod's own.
pub(super) fn arp_nd() -> Scenario {
    let pod = "default/a";
    let (a, b) = ("10.1.1.120", "10.1.1.121");
    let (a6, b6) = ("fd00:1:1::78", "fd00:1:1::79");
    let mut s = Scenario::new(
        "arp-nd",
        "node1",
        "the switch answers ARP and ND for every address but the asker's own, and believes no other claim",
    );
    // ARP requests for the gateway, a neighbour, an unknown address.
    s.from(pod, arp_request(a, "10.1.1.1")).consumed("arp-reply");
    s.from(pod, arp_request(a, b)).consumed("arp-reply");
    s.from(pod, arp_request(a, "169.254.1.1")).consumed("arp-reply");
    // Is my own address taken? An answer would take it away.
    s.from(pod, arp_probe(a)).consumed("arp-ignored");
    s.from(pod, arp_announcement(a)).consumed("arp-ignored");
    s.from(pod, arp_reply(a, "10.1.1.1")).consumed("arp-ignored");
    // In the name of another.
    s.from(pod, arp_announcement(b)).dropped("spoofed-address");
    let mac = mac_of([10, 1, 1, 120].into());
    s.from(pod, arp_announcement(b).from_mac(mac)).dropped("spoofed-mac");
    s.from(pod, arp_announcement(b).from_mac(mac).sender_mac(mac)).dropped("spoofed-address");
    s.from(pod, arp_reply(b, "10.1.1.1").from_mac(mac).sender_mac(mac)).dropped("spoofed-address");
    s.from(pod, arp_request(a, b).sender_mac([2, 4, 9, 9, 9, 9])).dropped("spoofed-mac");
    // Broken ones.
    s.from(pod, cut(arp_request(a, b).build(), 14 + 20)).dropped("truncated");
    s.from(pod, patch(arp_request(a, b), 18, &[8])).dropped("malformed-ip");

    // The same questions over IPv6.
    s.from(pod, neighbour_solicitation(a6, "fd00:1:1::1")).consumed("nd-reply");
    s.from(pod, neighbour_solicitation(a6, b6)).consumed("nd-reply");
    s.from(pod, neighbour_solicitation(a6, "fe80::1")).consumed("nd-reply");
    let own = mac_of(a6.parse().expect("an address"));
    s.from(pod, neighbour_solicitation("::", a6).from_mac(own)).consumed("nd-ignored");
    s.from(pod, neighbour_advertisement(a6, b6)).consumed("nd-ignored");
    // Router solicitation: pods get their routes from the CNI.
    s.from(pod, icmp(a6, "ff02::2", 133, 0).ttl(255)).consumed("nd-ignored");
    // From a distance: without a hop limit of 255, silently discarded (RFC 4861, section 7.1.1).
    s.from(pod, neighbour_solicitation(a6, b6).ttl(64)).consumed("nd-ignored");
    s.from(pod, neighbour_solicitation(b6, a6).from_mac(own)).dropped("spoofed-address");

    // On the side of the uplink, only this node's pods are behind the switch.
    s.from("uplink", arp_request("192.168.0.12", a)).consumed("arp-reply");
    s.from("uplink", arp_request("192.168.0.12", "192.168.0.11")).consumed("arp-ignored");
    s.from("uplink", arp_request("192.168.0.12", "10.1.2.7")).consumed("arp-ignored");
    s.from("uplink", neighbour_solicitation("fd00:1:2::7", a6)).consumed("nd-reply");
    s.from("uplink", neighbour_solicitation("fd00:1:2::7", "fd00:1:2::8")).consumed("nd-ignored");
    s.from("uplink", arp_announcement(a)).dropped("spoofed-address");
    // On the side of the host everything is, but the host itself.
    s.from("host", arp_request("192.168.0.11", a)).consumed("arp-reply");
    s.from("host", arp_request("192.168.0.11", "192.168.0.12")).consumed("arp-reply");
    s.from("host", arp_announcement("192.168.0.11")).consumed("arp-ignored");
    s.from("host", arp_announcement(a)).dropped("spoofed-address");
    s
}
