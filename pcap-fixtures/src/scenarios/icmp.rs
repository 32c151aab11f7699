//! ICMP: echo with its identifiers, errors with their quotes.

use testkit::packet::{icmp, icmp_error, ping, pong, tcp, udp};

use crate::Scenario;

/// Requests open, replies need the request that has their identifier.
pub(super) fn icmp_echo() -> Scenario {
    const ALLOWED: &[&str] = &["NetworkPolicy default/b-in ingress[0]"];
    const DENIED: &[&str] = &["default-deny of NetworkPolicy default/a-closed"];
    let (a, b) = ("10.1.1.80", "10.1.1.81");
    let mut s = Scenario::new(
        "icmp-echo",
        "node1",
        "an echo reply passes only if a request with its identifier went the other way",
    );
    s.from("default/b", pong(b, a, 7, 1)).dropped("no-session");
    s.from("default/b", ping(b, a, 7, 1)).denied(DENIED);
    s.from("default/a", ping(a, b, 7, 1).payload(b"hello")).allowed("default/b", ALLOWED);
    s.from("default/b", pong(b, a, 7, 1).payload(b"hello")).session("default/a");
    s.from("default/a", ping(a, b, 7, 2)).session("default/b");
    s.from("default/b", pong(b, a, 7, 2)).session("default/a");
    // Another identifier is another session, another target too.
    s.from("default/b", pong(b, a, 8, 1)).dropped("no-session");
    s.from("default/c", pong("10.1.1.82", a, 7, 1)).dropped("no-session");
    s.from("default/a", ping(a, b, 8, 1)).allowed("default/b", ALLOWED);
    s.from("default/b", pong(b, a, 8, 1)).session("default/a");
    // A session lets replies back, not requests: b still may not open.
    s.from("default/b", ping(b, a, 7, 1)).denied(DENIED);
    // A reply from the sender of the request is invalid.
    s.from("default/a", pong(a, b, 7, 1)).dropped("no-session");
    // A timestamp reply without a request (RFC 792).
    s.from("default/b", icmp(b, a, 14, 0).payload(&[0; 12])).dropped("no-session");
    // A rule with ports is about those protocols only: c may be reached on TCP 80, not by ping.
    s.from("default/a", ping(a, "10.1.1.82", 9, 1))
        .denied(&["default-deny of NetworkPolicy default/c-web"]);
    s.from("default/a", tcp("10.1.1.80:40000", "10.1.1.82:80").syn())
        .allowed("default/c", &["NetworkPolicy default/c-web ingress[0]"]);
    s
}

/// Errors follow the session they quote, from whoever found the fault.
pub(super) fn icmp_errors() -> Scenario {
    let (a, b) = ("10.1.1.83:40000", "10.1.1.84:7");
    let mut s = Scenario::new(
        "icmp-errors",
        "node1",
        "an ICMP error passes if it quotes a packet of an allowed session, whoever sends it",
    );
    let asked = udp(a, b).payload(b"to a closed port");
    // Nothing has been sent yet.
    s.from("default/b", icmp_error("10.1.1.84", "10.1.1.83", 3, 3, &asked)).dropped("no-session");
    s.from("default/a", asked.clone())
        .allowed("default/b", &["NetworkPolicy default/b-in ingress[0]"]);
    s.from("default/b", icmp_error("10.1.1.84", "10.1.1.83", 3, 3, &asked))
        .forwarded("default/a", "related");
    // Another packet than the one that was sent.
    let other = udp("10.1.1.83:40001", b);
    s.from("default/b", icmp_error("10.1.1.84", "10.1.1.83", 3, 3, &other)).dropped("no-session");
    // The quoted packet came from a, so the error must go to a.
    s.from("default/b", icmp_error("10.1.1.84", "10.1.1.85", 3, 3, &asked)).dropped("no-session");
    // A router on the way to another node asks for smaller packets (RFC 1191).
    let away = tcp("10.1.1.83:41000", "198.51.100.7:443");
    s.from("default/a", away.clone().syn()).allowed("uplink", &["default-allow"]);
    s.from("uplink", tcp("198.51.100.7:443", "10.1.1.83:41000").syn_ack()).session("default/a");
    s.from("default/a", away.clone().data(&[1; 1200])).session("uplink");
    let too_big = icmp_error("203.0.113.1", "10.1.1.83", 3, 4, &away.clone().data(&[1; 1200]));
    s.from("uplink", too_big.rest([0, 0, 5, 0x14])).forwarded("default/a", "related");
    // The same about a connection that is not there.
    let unknown = tcp("10.1.1.83:41001", "198.51.100.7:443").ack();
    s.from("uplink", icmp_error("203.0.113.1", "10.1.1.83", 3, 4, &unknown)).dropped("no-session");
    // A quote too short to name ports.
    let short = icmp("203.0.113.1", "10.1.1.83", 3, 4).payload(&away.internet_packet()[..20]);
    s.from("uplink", short).dropped("no-session");
    s
}
