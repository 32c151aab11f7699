//! Policies and the connections that they allow and deny.

use testkit::packet::{ping, tcp, udp};

use crate::Scenario;

/// The well-known case: only `role=backend` may reach `role=db` on TCP 6379.
pub(super) fn redis_policy() -> Scenario {
    const ALLOWED: &[&str] = &["NetworkPolicy default/db-allow ingress[0]"];
    const DENIED: &[&str] = &["default-deny of NetworkPolicy default/db-allow"];
    let (db, frontend) = ("10.1.1.10:6379", "10.1.1.11:40000");
    let mut s = Scenario::new(
        "redis-policy",
        "node1",
        "only role=backend may reach role=db on TCP 6379: backends talk both ways, frontend is dropped",
    );
    // Frontend tries, and tries again.
    s.from("default/frontend", tcp(frontend, db).syn()).denied(DENIED);
    s.from("default/frontend", tcp(frontend, db).syn()).denied(DENIED);
    for (port, backend) in
        [("default/backend1", "10.1.1.12:40000"), ("default/backend2", "10.1.1.13:40000")]
    {
        s.from(port, tcp(backend, db).syn()).allowed("default/db", ALLOWED);
        s.from("default/db", tcp(db, backend).syn_ack()).session(port);
        s.from(port, tcp(backend, db).ack()).session("default/db");
        s.from(port, tcp(backend, db).data(b"PING\r\n")).session("default/db");
        s.from("default/db", tcp(db, backend).data(b"+PONG\r\n")).session(port);
        s.from(port, tcp(backend, db).ack().fin()).session("default/db");
        s.from("default/db", tcp(db, backend).ack().fin()).session(port);
        s.from(port, tcp(backend, db).ack()).session("default/db");
    }
    // The port next door is not in the policy; nor is another protocol, nor ping.
    s.from("default/backend1", tcp("10.1.1.12:40001", "10.1.1.10:6380").syn()).denied(DENIED);
    s.from("default/backend1", udp("10.1.1.12:40001", db).payload(b"?")).denied(DENIED);
    s.from("default/backend1", ping("10.1.1.12", "10.1.1.10", 1, 1)).denied(DENIED);
    // The policy says nothing about what db opens, nor about others.
    s.from("default/db", tcp("10.1.1.10:50000", "10.1.1.11:80").syn())
        .allowed("default/frontend", &["default-allow"]);
    s.from("default/frontend", tcp("10.1.1.11:50000", "10.1.1.12:80").syn())
        .allowed("default/backend1", &["default-allow"]);
    s
}

/// Packets flow both ways, but only one end may open.
pub(super) fn one_way() -> Scenario {
    const ALLOWED: &[&str] = &["NetworkPolicy default/server-in ingress[0]"];
    const DENIED: &[&str] = &["default-deny of NetworkPolicy default/client-closed"];
    let (client, server) = ("10.1.1.20:40000", "10.1.1.21:8080");
    let mut s = Scenario::new(
        "one-way",
        "node1",
        "a session runs in both directions although the policy lets only the client open one",
    );
    // The server may not open, not even to the port a session will soon use.
    s.from("default/server", tcp(server, client).syn()).denied(DENIED);
    s.from("default/client", tcp(client, server).syn()).allowed("default/server", ALLOWED);
    s.from("default/server", tcp(server, client).syn_ack()).session("default/client");
    s.from("default/client", tcp(client, server).ack()).session("default/server");
    for _ in 0..3 {
        s.from("default/server", tcp(server, client).data(b"server")).session("default/client");
        s.from("default/client", tcp(client, server).data(b"client")).session("default/server");
    }
    // The session lets replies back, not an opening between the same ports, nor other ports.
    s.from("default/server", tcp(server, client).syn()).denied(DENIED);
    s.from("default/server", tcp("10.1.1.21:8081", client).syn()).denied(DENIED);
    s.from("default/server", tcp(server, "10.1.1.20:40001").syn()).denied(DENIED);
    s.from("default/server", tcp(server, "10.1.1.20:40001").syn_ack()).dropped("no-session");
    s.from("default/server", udp(server, client).payload(b"x")).denied(DENIED);
    // The same with UDP: the answer comes back, the opening does not.
    let (client, server) = ("10.1.1.20:40000", "10.1.1.21:9000");
    s.from("default/server", udp(server, client).payload(b"first")).denied(DENIED);
    s.from("default/client", udp(client, server).payload(b"ask"))
        .allowed("default/server", &["NetworkPolicy default/server-in ingress[1]"]);
    s.from("default/server", udp(server, client).payload(b"answer")).session("default/client");
    s.from("default/server", udp(server, client).payload(b"more")).session("default/client");
    s
}

/// A pod that may reach the DNS server alone.
pub(super) fn udp_dns() -> Scenario {
    const ALLOWED: &[&str] = &["NetworkPolicy default/dns-only egress[0]"];
    const DENIED: &[&str] = &["default-deny of NetworkPolicy default/dns-only"];
    // A query for the A records of kubernetes.default.svc.cluster.local (RFC 1035).
    let query = [
        &b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00"[..],
        b"\x0akubernetes\x07default\x03svc\x07cluster\x05local\x00\x00\x01\x00\x01",
    ]
    .concat();
    let answer = [&query[..], b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x1e\x00\x04\x0a\x60\x00\x01"];
    let mut answer = answer.concat();
    answer[2..8].copy_from_slice(b"\x85\x80\x00\x01\x00\x01");

    let (app, dns) = ("10.1.1.30:33000", "10.1.1.53:53");
    let mut s = Scenario::new(
        "udp-dns",
        "node1",
        "a pod may send DNS queries and gets the answers, but nothing else comes in or goes out",
    );
    s.from("kube-system/dns", udp(dns, app).payload(&answer)).denied(DENIED);
    s.from("default/app", udp(app, dns).payload(&query)).allowed("kube-system/dns", ALLOWED);
    s.from("kube-system/dns", udp(dns, app).payload(&answer)).session("default/app");
    s.from("default/app", udp("10.1.1.30:33001", dns).payload(&query))
        .allowed("kube-system/dns", ALLOWED);
    s.from("kube-system/dns", udp(dns, "10.1.1.30:33001").payload(&answer)).session("default/app");
    // Another client port is another session.
    s.from("kube-system/dns", udp(dns, "10.1.1.30:33002").payload(&answer)).denied(DENIED);
    // The policy names UDP; TCP is not meant by it.
    s.from("default/app", tcp(app, dns).syn()).denied(DENIED);
    s.from("default/app", udp(app, "10.1.1.31:53").payload(&query)).denied(DENIED);
    s.from("default/app", udp(app, "10.1.1.53:54").payload(&query)).denied(DENIED);
    s
}

/// The same name is another number on each pod, and on one pod it is none.
pub(super) fn named_ports() -> Scenario {
    const ALLOWED: &[&str] = &["NetworkPolicy default/web-named ingress[0]"];
    const DENIED: &[&str] = &["default-deny of NetworkPolicy default/web-named"];
    let mut s = Scenario::new(
        "named-ports",
        "node1",
        "a named port means each pod's own number; a pod without the name has no open port at all",
    );
    let mut port = 40000;
    let mut open = |to: &str| {
        port += 1;
        tcp(&format!("10.1.1.40:{port}"), to).syn()
    };
    s.from("default/client", open("10.1.1.41:8080")).allowed("default/web-a", ALLOWED);
    s.from("default/client", open("10.1.1.41:9090")).denied(DENIED);
    s.from("default/client", open("10.1.1.42:9090")).allowed("default/web-b", ALLOWED);
    s.from("default/client", open("10.1.1.42:8080")).denied(DENIED);
    // No container port of this pod is called "http".
    s.from("default/client", open("10.1.1.43:8080")).denied(DENIED);
    s.from("default/client", open("10.1.1.43:9090")).denied(DENIED);
    s.from("default/client", open("10.1.1.43:80")).denied(DENIED);
    // One that is called so, for UDP.
    s.from("default/client", open("10.1.1.44:8080")).denied(DENIED);
    s.from("default/client", udp("10.1.1.40:5000", "10.1.1.44:8080")).denied(DENIED);
    s
}

/// Peers that select pods.
pub(super) fn selectors() -> Scenario {
    const ALLOWED: &[&str] = &["NetworkPolicy shop/api ingress[0]"];
    const DENIED: &[&str] = &["default-deny of NetworkPolicy shop/api"];
    let api = "10.1.1.60:443";
    let mut s = Scenario::new(
        "selectors",
        "node1",
        "pod and namespace selectors of one peer are both meant; empty, missing and negated ones differ",
    );
    // app=web in a namespace of team=front: both halves hold.
    s.from("front/web", tcp("10.1.1.61:40000", api).syn()).allowed("shop/api", ALLOWED);
    // The right label in the wrong namespace, and the other way round.
    s.from("back/web", tcp("10.1.1.62:40000", api).syn()).denied(DENIED);
    s.from("front/job", tcp("10.1.1.63:40000", api).syn()).denied(DENIED);
    // Without a namespace selector, only the policy's own namespace is meant.
    s.from("shop/worker", tcp("10.1.1.64:40000", api).syn())
        .allowed("shop/api", &["NetworkPolicy shop/api ingress[1]"]);
    s.from("back/worker", tcp("10.1.1.65:40000", api).syn()).denied(DENIED);
    // `from: [{podSelector: {}}]` is every pod of the namespace, on the metrics port only.
    s.from("shop/other", tcp("10.1.1.66:40000", "10.1.1.60:9100").syn())
        .allowed("shop/api", &["NetworkPolicy shop/api ingress[2]"]);
    s.from("shop/other", tcp("10.1.1.66:40001", api).syn()).denied(DENIED);
    s.from("front/web", tcp("10.1.1.61:40001", "10.1.1.60:9100").syn()).denied(DENIED);
    // A range of ports, both ends included, open to every peer (no `from` at all).
    for (port, open) in [(29999, false), (30000, true), (30010, true), (30011, false)] {
        let sent = s.from("back/web", tcp("10.1.1.62:41000", &format!("10.1.1.60:{port}")).syn());
        match open {
            true => sent.allowed("shop/api", &["NetworkPolicy shop/api ingress[3]"]),
            false => sent.denied(DENIED),
        }
    }
    // A policy that selects a pod and lists nothing closes it.
    s.from("shop/api", tcp("10.1.1.60:50000", "10.1.1.66:80").syn())
        .denied(&["default-deny of NetworkPolicy shop/other-closed"]);
    s
}

/// Networks with exceptions, inside the cluster and outside of it.
pub(super) fn ip_block() -> Scenario {
    const DENIED: &[&str] = &["default-deny of NetworkPolicy default/out"];
    const ALLOWED: &[&str] = &["NetworkPolicy default/out egress[0]"];
    let mut s = Scenario::new(
        "ip-block",
        "node1",
        "networks less their exceptions on the way out, to other machines and to the metadata address",
    );
    let mut port = 40000;
    let mut open = |to: &str| {
        port += 1;
        tcp(&format!("10.1.1.70:{port}"), to).syn()
    };
    s.from("default/app", open("198.51.100.1:443")).allowed("uplink", ALLOWED);
    s.from("default/app", open("198.51.100.63:443")).allowed("uplink", ALLOWED);
    // Inside the exception 198.51.100.64/26.
    s.from("default/app", open("198.51.100.64:443")).denied(DENIED);
    s.from("default/app", open("198.51.100.127:443")).denied(DENIED);
    s.from("default/app", open("198.51.100.128:443")).allowed("uplink", ALLOWED);
    // Outside the network.
    s.from("default/app", open("198.51.101.1:443")).denied(DENIED);
    s.from("default/app", open("169.254.169.254:80")).denied(DENIED);
    // The port is not the rule's.
    s.from("default/app", open("198.51.100.1:80")).denied(DENIED);
    // A pod inside a listed network is reached by its address.
    s.from("default/app", open("10.1.1.71:443"))
        .allowed("default/web", &["NetworkPolicy default/out egress[1]"]);
    s.from("default/app", open("10.1.1.72:443")).denied(DENIED);
    s
}
