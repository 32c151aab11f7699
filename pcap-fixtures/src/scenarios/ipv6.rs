//! IPv6: the same policies, behind extension headers.

use testkit::packet::{Packet, icmp_error, neighbour_solicitation, ping, pong, tcp, udp};

use crate::Scenario;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const DESTINATION_OPTIONS: u8 = 60;

/// Extension headers hide no port.
pub(super) fn ipv6() -> Scenario {
    const ALLOWED: &[&str] = &["NetworkPolicy default/web-in ingress[0]"];
    const DENIED: &[&str] = &["default-deny of NetworkPolicy default/web-in"];
    let (client, web) = ("[fd00:1:1::2]:40000", "[fd00:1:1::3]:80");
    let mut s = Scenario::new(
        "ipv6",
        "node1",
        "policy holds over IPv6, behind extension headers and for fragments",
    );
    s.from("default/client", neighbour_solicitation("fd00:1:1::2", "fd00:1:1::3"))
        .consumed("nd-reply");
    s.from("default/client", tcp(client, web).syn()).allowed("default/web", ALLOWED);
    s.from("default/web", tcp(web, client).syn_ack()).session("default/client");
    s.from("default/client", tcp(client, web).data(b"GET /\r\n")).session("default/web");
    // Behind hop-by-hop and destination options.
    let options = tcp("[fd00:1:1::2]:40001", web).syn();
    let options = options.extension(HOP_BY_HOP, &[5, 2, 0, 0]).extension(DESTINATION_OPTIONS, &[]);
    s.from("default/client", options).allowed("default/web", ALLOWED);
    let hidden = tcp("[fd00:1:1::2]:40002", "[fd00:1:1::3]:81").syn();
    s.from("default/client", hidden.clone()).denied(DENIED);
    s.from("default/client", hidden.extension(DESTINATION_OPTIONS, &[0; 30])).denied(DENIED);
    // A routing header with no segment left is only passed over (RFC 8200, section 4.4).
    let routed = tcp("[fd00:1:1::2]:40003", web).syn().extension(ROUTING, &[4, 0, 0, 0, 0, 0]);
    s.from("default/client", routed).allowed("default/web", ALLOWED);
    // The other pod has no policy; web may not be pinged.
    s.from("default/client", ping("fd00:1:1::2", "fd00:1:1::3", 5, 1)).denied(DENIED);
    s.from("default/web", ping("fd00:1:1::3", "fd00:1:1::2", 5, 1))
        .allowed("default/client", &["default-allow"]);
    s.from("default/client", pong("fd00:1:1::2", "fd00:1:1::3", 5, 1)).session("default/web");
    // Fragments behind an allowed first one, and behind none.
    let large = udp("[fd00:1:1::2]:5000", "[fd00:1:1::3]:90").payload(&[6; 40]).ip_id(0x1234_5678);
    for (index, fragment) in large.fragments(24).into_iter().enumerate() {
        let sent = s.from("default/client", fragment);
        match index {
            0 => sent.allowed("default/web", &["NetworkPolicy default/web-in ingress[1]"]),
            _ => sent.forwarded("default/web", "fragment"),
        }
    }
    let strange = udp("[fd00:1:1::2]:5000", "[fd00:1:1::3]:91").payload(&[6; 40]).ip_id(0x99);
    for (index, fragment) in strange.fragments(24).into_iter().enumerate() {
        let sent = s.from("default/client", fragment);
        match index {
            0 => sent.denied(DENIED),
            _ => sent.dropped("fragment-unknown"),
        }
    }
    // To another node's pods, and back.
    s.from("default/web", tcp("[fd00:1:1::3]:50000", "[fd00:1:2::9]:443").syn())
        .allowed("uplink", &["default-allow"]);
    s.from("uplink", tcp("[fd00:1:2::9]:443", "[fd00:1:1::3]:50000").syn_ack())
        .session("default/web");
    s.from("uplink", tcp("[fd00:1:2::9]:50000", web).syn()).denied(DENIED);
    // A router on that way wants smaller packets (RFC 4443, section 3.2); the packet it quotes
    // has extension headers of its own. About a connection that is not there: nothing.
    let large = tcp("[fd00:1:1::3]:50000", "[fd00:1:2::9]:443").data(&[1; 1200]);
    let too_big =
        |quoted: &Packet| icmp_error("fd00:ff::1", "fd00:1:1::3", 2, 0, quoted).rest([0, 0, 5, 0]);
    s.from("uplink", too_big(&large)).forwarded("default/web", "related");
    s.from("uplink", too_big(&large.clone().extension(DESTINATION_OPTIONS, &[0; 5])))
        .forwarded("default/web", "related");
    let unknown = tcp("[fd00:1:1::3]:50001", "[fd00:1:2::9]:443").data(&[1; 1200]);
    s.from("uplink", too_big(&unknown)).dropped("no-session");
    s
}
