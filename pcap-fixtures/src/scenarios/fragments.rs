//! Fragments: only the first one knows its ports.

use std::time::Duration;

use testkit::packet::{tcp, udp};

use crate::Scenario;

/// The rest follows the first, and without a first there is nothing to follow.
pub(super) fn ipv4_fragments() -> Scenario {
    const ALLOWED: &[&str] = &["NetworkPolicy default/server-in ingress[0]"];
    const DENIED: &[&str] = &["default-deny of NetworkPolicy default/server-in"];
    let (client, server) = ("10.1.1.90:5000", "10.1.1.91:9000");
    let mut s = Scenario::new(
        "ipv4-fragments",
        "node1",
        "fragments follow the verdict on their first one, also those that come before it; without it, or with ports cut apart, they are dropped",
    );
    let allowed = udp(client, server).payload(&[1; 40]).ip_id(1).fragments(16);
    let denied = udp(client, "10.1.1.91:9001").payload(&[1; 40]).ip_id(2).fragments(16);
    // A later fragment has no ports: it waits for the first.
    s.from("default/client", allowed[1].clone()).forwarded("default/server", "fragment");
    s.from("default/client", allowed[0].clone()).allowed("default/server", ALLOWED);
    s.from("default/client", allowed[1].clone()).forwarded("default/server", "fragment");
    s.from("default/client", allowed[2].clone()).forwarded("default/server", "fragment");
    s.from("default/client", denied[0].clone()).denied(DENIED);
    s.from("default/client", denied[1].clone()).dropped("fragment-unknown");
    s.from("default/client", denied[2].clone()).dropped("fragment-unknown");
    // Out of order behind the first: each follows for itself.
    let swapped = udp(client, server).payload(&[2; 40]).ip_id(3).fragments(16);
    s.from("default/client", swapped[0].clone()).session("default/server");
    s.from("default/client", swapped[2].clone()).forwarded("default/server", "fragment");
    s.from("default/client", swapped[1].clone()).forwarded("default/server", "fragment");
    // The identification alone is not enough: source, destination and protocol count as well.
    let other = udp("10.1.1.92:5000", server).payload(&[3; 40]).ip_id(1).fragments(16);
    s.from("default/other", other[1].clone()).dropped("fragment-unknown");
    let protocol = tcp(client, server).syn().payload(&[4; 40]).ip_id(1).fragments(24);
    s.from("default/client", protocol[1].clone()).dropped("fragment-unknown");
    // Replies in fragments.
    let reply = udp(server, client).payload(&[5; 40]).ip_id(77).fragments(24);
    s.from("default/server", reply[0].clone()).session("default/client");
    s.from("default/server", reply[1].clone()).forwarded("default/client", "fragment");
    // A tiny first fragment keeps the flags out of sight, and the second would bring them
    // (RFC 1858, section 3).
    let tiny = tcp(client, "10.1.1.91:9002").syn().ip_id(4).fragments(8);
    s.from("default/client", tiny[0].clone()).dropped("malformed-transport");
    s.from("default/client", tiny[1].clone()).dropped("malformed-ip");
    s.from("default/client", tiny[2].clone()).dropped("fragment-unknown");
    // A second fragment that would overwrite the ports' neighbours (RFC 3128).
    let port_ok = tcp(client, "10.1.1.91:9003").syn().payload(&[6; 20]).ip_id(5);
    s.from("default/client", port_ok.fragments(24)[0].clone())
        .allowed("default/server", &["NetworkPolicy default/server-in ingress[1]"]);
    let overwriting = port_ok.fragment(8, false, &[7; 16]);
    s.from("default/client", overwriting).dropped("malformed-ip");
    // A first fragment that comes again, now with other ports.
    let changed = udp(client, "10.1.1.91:9001").payload(&[1; 40]).ip_id(1).fragments(16);
    s.from("default/client", changed[0].clone()).denied(DENIED);
    // Past the end of any packet (the "ping of death").
    let death = udp(client, server).ip_id(6).fragment(65_528, false, &[8; 64]);
    s.from("default/client", death).dropped("malformed-ip");
    s
}

/// A datagram's fragments come in whatever order the network gives them.
pub(super) fn reordered_fragments() -> Scenario {
    const ALLOWED: &[&str] = &["NetworkPolicy default/server-in ingress[0]"];
    const DENIED: &[&str] = &["default-deny of NetworkPolicy default/server-in"];
    let mut s = Scenario::new(
        "reordered-fragments",
        "node1",
        "later fragments wait for their first, and get its verdict; after two seconds they are dropped",
    );
    for (client, server, closed) in [
        ("10.1.1.90:5000", "10.1.1.91:9000", "10.1.1.91:9001"),
        ("[fd00:1:1::90]:5000", "[fd00:1:1::91]:9000", "[fd00:1:1::91]:9001"),
    ] {
        let allowed = udp(client, server).payload(&[1; 40]).ip_id(1).fragments(16);
        // Last to first: all wait, and all follow.
        s.from("default/client", allowed[2].clone()).forwarded("default/server", "fragment");
        s.from("default/client", allowed[1].clone()).forwarded("default/server", "fragment");
        s.from("default/client", allowed[0].clone()).allowed("default/server", ALLOWED);
        // Replies in another order; their connection is known.
        let reply = udp(server, client).payload(&[2; 40]).ip_id(2).fragments(16);
        s.from("default/server", reply[1].clone()).forwarded("default/client", "fragment");
        s.from("default/server", reply[0].clone()).session("default/client");
        s.from("default/server", reply[2].clone()).forwarded("default/client", "fragment");
        // A first that is denied takes the others with it, those behind it too.
        let denied = udp(client, closed).payload(&[3; 40]).ip_id(3).fragments(16);
        s.from("default/client", denied[1].clone()).dropped("fragment-unknown");
        s.from("default/client", denied[0].clone()).denied(DENIED);
        s.from("default/client", denied[2].clone()).dropped("fragment-unknown");
        // Too late.
        let late = udp(client, server).payload(&[4; 40]).ip_id(4).fragments(16);
        s.from("default/client", late[1].clone()).dropped("fragment-unknown");
        s.wait(Duration::from_secs(2));
        s.from("default/client", late[0].clone()).session("default/server");
        s.from("default/client", late[2].clone()).forwarded("default/server", "fragment");
    }
    // Nothing comes behind these.
    let alone = udp("10.1.1.90:5000", "10.1.1.91:9000").payload(&[5; 40]).ip_id(5).fragments(16);
    s.from("default/client", alone[2].clone()).dropped("fragment-unknown");
    s.from("default/client", alone[1].clone()).dropped("fragment-unknown");
    s
}
