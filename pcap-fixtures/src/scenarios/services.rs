//! Services: the client sees the service, policies see the pod behind it.

use std::time::Duration;

use testkit::packet::{icmp_error, sctp, tcp, udp};

use crate::Scenario;

const INIT: u8 = 1;
const INIT_ACK: u8 = 2;

/// Clients in the cluster.
pub(super) fn services() -> Scenario {
    const IN: &[&str] = &["NetworkPolicy default/web-in ingress[0]"];
    const DENIED: &[&str] = &["default-deny of NetworkPolicy default/web-in"];
    const OPEN: &[&str] = &["default-allow"];
    let (client, web, shy) = ("default/client", "default/web", "default/shy");
    let mut s = Scenario::new(
        "services",
        "node1",
        "a connection to a service is evaluated as the one to its endpoint, and replies carry the service's address",
    );
    // Port 80 of the service is port 8080 of its pod, which the policy names.
    for (from, vip, pod) in [
        ("10.1.1.200", "10.96.0.10", "10.1.1.201"),
        ("[fd00:1:1::c8]", "[fd00:96::10]", "[fd00:1:1::c9]"),
    ] {
        let (from, vip) = (format!("{from}:40000"), format!("{vip}:80"));
        let pod = format!("{pod}:8080");
        s.from(client, tcp(&from, &vip).syn()).allowed(web, IN);
        s.from(web, tcp(&pod, &from).syn_ack()).session(client);
        s.from(client, tcp(&from, &vip).ack()).session(web);
        s.from(client, tcp(&from, &vip).data(b"GET /")).session(web);
        s.from(web, tcp(&pod, &from).data(b"200 OK")).session(client);
        // The pod does not answer as the service itself, nor is it asked so by others.
        s.from(web, tcp(&vip, &from).syn_ack()).dropped("spoofed-address");
        s.from(client, tcp(&from, &pod).data(b"GET /")).dropped("no-session");
    }
    // A client that the policy does not select cannot use the service either.
    s.from("default/stranger", tcp("10.1.1.203:40000", "10.96.0.10:80").syn()).denied(DENIED);
    s.from("default/stranger", tcp("10.1.1.203:40001", "10.1.1.201:8080").syn()).denied(DENIED);
    // The service has no other port, and keeps packets to its address from going elsewhere.
    s.from(client, tcp("10.1.1.200:40001", "10.96.0.10:81").syn()).dropped("no-endpoint");
    s.from(client, tcp("10.1.1.200:40001", "10.96.0.10:8080").syn()).dropped("no-endpoint");
    // A pod may always reach itself, also through its service; it then sees the service.
    s.from(web, tcp("10.1.1.201:40000", "10.96.0.10:80").syn()).allowed(web, OPEN);
    s.from(web, tcp("10.1.1.201:8080", "10.96.0.10:40000").syn_ack()).session(web);
    // UDP and SCTP.
    s.from(client, udp("10.1.1.200:5000", "10.96.0.11:53")).allowed(shy, OPEN);
    s.from(shy, udp("10.1.1.202:5353", "10.1.1.200:5000")).session(client);
    s.from(client, sctp("10.1.1.200:5000", "10.96.0.11:99", INIT)).allowed(shy, OPEN);
    s.from(shy, sctp("10.1.1.202:9999", "10.1.1.200:5000", INIT_ACK)).session(client);
    // The pod's kernel complains about a datagram as it saw it.
    let seen = udp("10.1.1.200:5000", "10.1.1.202:5353");
    s.from(shy, icmp_error("10.1.1.202", "10.1.1.200", 3, 3, &seen)).forwarded(client, "related");
    let as_sent = udp("10.1.1.200:5000", "10.96.0.11:53");
    s.from(shy, icmp_error("10.1.1.202", "10.1.1.200", 3, 3, &as_sent)).dropped("no-session");
    // No endpoints: refused at once, over both families; packets that open nothing get no reply.
    s.from(client, tcp("10.1.1.200:40002", "10.96.0.12:80").syn()).dropped("no-endpoint");
    s.from(client, udp("10.1.1.200:40002", "10.96.0.12:80")).dropped("no-endpoint");
    s.from(client, tcp("[fd00:1:1::c8]:40002", "[fd00:96::12]:80").syn()).dropped("no-endpoint");
    s.from(client, tcp("10.1.1.200:40003", "10.96.0.12:80").ack()).dropped("no-session");
    // An endpoint on another node, and one that is not ready beside it.
    s.from(client, tcp("10.1.1.200:40004", "10.96.0.13:80").syn()).allowed("uplink", OPEN);
    s.from("uplink", tcp("10.1.2.20:8080", "10.1.1.200:40004").syn_ack()).session(client);
    // internalTrafficPolicy Local: the same endpoint, but not on this node.
    s.from(client, tcp("10.1.1.200:40005", "10.96.0.14:80").syn()).dropped("no-endpoint");
    // Of an address without a service nothing is known.
    s.from(client, tcp("10.1.1.200:40006", "10.96.0.99:80").syn()).allowed("uplink", OPEN);
    s
}

/// Clients outside, and those that are to stay with one endpoint.
pub(super) fn external_services() -> Scenario {
    const OPEN: &[&str] = &["default-allow"];
    let mut s = Scenario::new(
        "external-services",
        "node1",
        "node ports, external and load balancer addresses; externalTrafficPolicy Local; ClientIP affinity",
    )
    .with(&["--external-ips", "203.0.113.0/24"]);
    let client = |port: u16| format!("198.51.100.9:{port}");
    // A node port of the node's address, an external address, a load balancer's.
    let ways = ["192.168.0.11:30080", "203.0.113.7:80", "203.0.113.8:80"];
    for (port, at) in (41_000..).zip(ways) {
        s.from("uplink", tcp(&client(port), at).syn()).allowed("default/web", OPEN);
        s.from("default/web", tcp("10.1.1.211:8080", &client(port)).syn_ack()).session("uplink");
        s.from("uplink", tcp(&client(port), at).ack()).session("default/web");
    }
    // The same numbers, but not the service's: another protocol, another port, the other
    // node's address (which is that one's business).
    s.from("uplink", udp(&client(41_010), "192.168.0.11:30080")).forwarded("host", "no-policy");
    s.from("uplink", tcp(&client(41_011), "192.168.0.11:30099").syn())
        .forwarded("host", "no-policy");
    // Pods ask at any node's address; their own node answers at its own.
    s.from("default/client", tcp("10.1.1.210:40000", "192.168.0.11:30080").syn())
        .allowed("default/web", OPEN);
    // externalTrafficPolicy Local, with an endpoint on node2 only: refused to clients outside,
    // and not to those in the cluster.
    s.from("uplink", tcp(&client(41_020), "192.168.0.11:30081").syn()).dropped("no-endpoint");
    s.from("default/client", tcp("10.1.1.210:40001", "192.168.0.11:30081").syn())
        .allowed("uplink", OPEN);
    // Without it, a client outside is led on to node2, as this node: the answer has to
    // come back here.
    s.from("uplink", tcp(&client(41_021), "192.168.0.11:30082").syn())
        .forwarded("uplink", "no-policy");
    // Policies see an outside client by its own address.
    s.from("uplink", tcp(&client(41_030), "192.168.0.11:30083").syn())
        .allowed("default/guarded", &["NetworkPolicy default/guarded-in ingress[0]"]);
    s.from("uplink", tcp("198.51.100.200:41030", "192.168.0.11:30083").syn())
        .denied(&["default-deny of NetworkPolicy default/guarded-in"]);
    // ClientIP: whatever its port, a client stays with its endpoint, also after a pause; the
    // choice is by the client's address alone, so that another one may have the other.
    for port in 42_000..42_006 {
        s.from("default/client", tcp(&format!("10.1.1.210:{port}"), "10.96.0.20:80").syn())
            .allowed("default/one", OPEN);
    }
    s.wait(Duration::from_secs(100));
    s.from("default/client", tcp("10.1.1.210:42010", "10.96.0.20:80").syn())
        .allowed("default/one", OPEN);
    for port in 42_000..42_003 {
        s.from("default/guarded", tcp(&format!("10.1.1.212:{port}"), "10.96.0.20:80").syn())
            .allowed("default/two", OPEN);
    }
    s
}
