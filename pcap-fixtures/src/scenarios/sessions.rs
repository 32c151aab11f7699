//! Begin and end of sessions.

use std::time::Duration;

use testkit::packet::{sctp, tcp, udp};

use crate::Scenario;

const ALLOWED: &[&str] = &["NetworkPolicy default/server-in ingress[0]"];
const DENIED: &[&str] = &["default-deny of NetworkPolicy default/server-in"];

/// Only a SYN opens a TCP connection.
pub(super) fn tcp_states() -> Scenario {
    let (client, server) = ("10.1.1.170:40000", "10.1.1.171:80");
    let (c, d) = ("default/client", "default/server");
    let mut s = Scenario::new(
        "tcp-states",
        "node1",
        "a TCP packet without a session passes only as a SYN that the policy allows, in whatever state the ends believe to be",
    );
    // In the middle of a connection that was never seen to open.
    s.from(c, tcp(client, server).data(b"hello")).dropped("no-session");
    s.from(d, tcp(server, client).data(b"hello")).dropped("no-session");
    s.from(d, tcp(server, client).syn_ack()).dropped("no-session");
    s.from(c, tcp(client, server).rst()).dropped("no-session");
    s.from(c, tcp(client, server).ack().fin()).dropped("no-session");
    // Opened, asked twice, answered.
    s.from(c, tcp(client, server).syn()).allowed(d, ALLOWED);
    s.from(c, tcp(client, server).syn()).session(d);
    s.from(d, tcp(server, client).syn_ack()).session(c);
    s.from(c, tcp(client, server).ack()).session(d);
    // One side is done, the other goes on.
    s.from(c, tcp(client, server).ack().fin()).session(d);
    s.from(d, tcp(server, client).data(b"still talking")).session(c);
    s.from(d, tcp(server, client).ack().fin()).session(c);
    s.from(c, tcp(client, server).ack()).session(d);
    // A reset passes, in a session.
    s.from(c, tcp("10.1.1.170:40001", server).syn()).allowed(d, ALLOWED);
    s.from(d, tcp(server, "10.1.1.170:40001").ack().rst()).session(c);
    // The port next door stays closed all the while.
    s.from(c, tcp(client, "10.1.1.171:81").syn()).denied(DENIED);
    s.from(c, tcp(client, "10.1.1.171:81").ack()).dropped("no-session");
    s
}

/// Time is the capture's.
pub(super) fn idle_sessions() -> Scenario {
    let (c, d) = ("default/client", "default/server");
    let mut s = Scenario::new(
        "idle-sessions",
        "node1",
        "sessions end after their idle time, which is the capture's time; later packets are evaluated as new",
    );
    let (client, server) = ("10.1.1.172:5000", "10.1.1.173:9000");
    // Without a reply: half a minute.
    s.from(c, udp(client, server)).allowed(d, ALLOWED);
    s.wait(Duration::from_secs(31));
    s.from(d, udp(server, client)).denied(&["default-deny of NetworkPolicy default/client-closed"]);
    s.from(c, udp(client, server)).allowed(d, ALLOWED);
    s.from(d, udp(server, client)).session(c);
    // A single exchange: the same.
    s.wait(Duration::from_secs(31));
    s.from(d, udp(server, client)).denied(&["default-deny of NetworkPolicy default/client-closed"]);
    // Several datagrams each way, kept alive by those of either.
    s.from(c, udp(client, server)).allowed(d, ALLOWED);
    s.from(d, udp(server, client)).session(c);
    s.from(c, udp(client, server)).session(d);
    s.from(d, udp(server, client)).session(c);
    for _ in 0..4 {
        s.wait(Duration::from_secs(100));
        s.from(d, udp(server, client)).session(c);
    }
    // Two minutes and more without any: the answer comes too late.
    s.wait(Duration::from_secs(121));
    s.from(d, udp(server, client)).denied(&["default-deny of NetworkPolicy default/client-closed"]);
    s.from(c, udp(client, server)).allowed(d, ALLOWED);
    // A handshake without a reply: half a minute.
    let (client, server) = ("10.1.1.172:40000", "10.1.1.173:80");
    s.from(c, tcp(client, server).syn()).allowed(d, ALLOWED_TCP);
    s.wait(Duration::from_secs(31));
    s.from(d, tcp(server, client).syn_ack()).dropped("no-session");
    // Established: hours.
    s.from(c, tcp(client, server).syn()).allowed(d, ALLOWED_TCP);
    s.from(d, tcp(server, client).syn_ack()).session(c);
    s.from(c, tcp(client, server).ack()).session(d);
    s.wait(Duration::from_secs(23 * 3600));
    s.from(d, tcp(server, client).data(b"still here")).session(c);
    s.wait(Duration::from_secs(24 * 3600 + 1));
    s.from(d, tcp(server, client).data(b"too late")).dropped("no-session");
    s
}

const ALLOWED_TCP: &[&str] = &["NetworkPolicy default/server-in ingress[1]"];

/// Protocols with equal ports are not the same.
pub(super) fn sctp_is_not_tcp() -> Scenario {
    const INIT: u8 = 1;
    const INIT_ACK: u8 = 2;
    let (c, d) = ("default/client", "default/server");
    let (client, server) = ("10.1.1.174:40000", "10.1.1.175:3868");
    let mut s =
        Scenario::new("sctp", "node1", "a rule for SCTP opens SCTP only, and one for TCP not SCTP");
    s.from(c, sctp(client, server, INIT).payload(&[0; 16])).allowed(d, ALLOWED);
    s.from(d, sctp(server, client, INIT_ACK).payload(&[0; 16])).session(c);
    s.from(c, sctp(client, server, 0).payload(b"data")).session(d);
    s.from(c, tcp(client, server).syn()).denied(DENIED);
    s.from(c, udp(client, server)).denied(DENIED);
    s.from(c, sctp(client, "10.1.1.175:80", INIT).payload(&[0; 16])).denied(DENIED);
    s.from(c, tcp(client, "10.1.1.175:80").syn())
        .allowed(d, &["NetworkPolicy default/server-in ingress[1]"]);
    s
}
