//! Workers take snapshots up one after the other; a session may have been allowed by a later one than
//! the worker's that its next packet comes to.

use std::sync::Arc;

use acl::{Action, AddressMap, PortRange, Rule, Table};
use dataplane::services::{Backend, Backends, Entry, Scope, ServicePort, Services};
use dataplane::session::{Sessions, Timeouts};
use dataplane::wire::protocol;
use dataplane::{AclBinding, Outcome, Parts};
use testkit::packet::{icmp_error, tcp, udp};

use crate::nodes::rig::{Rig, host, ip, pod};

const CLIENT: u16 = 0;
const SERVER: u16 = 1;

/// Two pods; the server is open to everybody, or closed.
fn parts(generation: u64, to_server: AclBinding) -> Parts {
    let mut server = pod("default/server", &["10.1.0.3"]);
    server.iter_mut().for_each(|server| server.to_pod = to_server.clone());
    let ports = vec![pod("default/client", &["10.1.0.2"]), server];
    Parts { generation, ports, ..Parts::default() }
}

/// A table without a rule permits nothing.
fn denies_everything() -> AclBinding {
    AclBinding::Table(Arc::new(Table::compile([].into(), &Arc::new(AddressMap::default()))))
}

#[test]
fn a_worker_behind_the_others_ends_no_session_of_theirs() {
    let (client, server) = ("10.1.0.2:4000", "10.1.0.3:80");
    let mut rig = Rig::new(parts(2, AclBinding::Open));
    let request = tcp(client, server).syn();
    rig.pass(CLIENT, request.clone().build(), SERVER);
    // The same worker plays the one that has not taken generation 2 up yet.
    rig.publish(parts(1, AclBinding::Closed));
    let reply = tcp(server, client).syn_ack().build();
    assert_eq!(rig.send(SERVER, reply), Outcome::Session);
    let error = icmp_error("10.1.0.3", "10.1.0.2", 3, 3, &request).build();
    assert_eq!(rig.send(SERVER, error), Outcome::Related);
    rig.publish(parts(2, AclBinding::Open));
    let data = tcp(client, server).data(b"hello").build();
    assert_eq!(rig.send(CLIENT, data.clone()), Outcome::Session);
    // Generation 3 denies it.
    rig.publish(parts(3, denies_everything()));
    assert_eq!(rig.send(CLIENT, data.clone()), Outcome::PolicyDenied);
    assert_eq!(rig.send(CLIENT, data), Outcome::PolicyDenied);
}

#[test]
fn packets_of_a_session_are_counted_on_demand() {
    let (client, server) = ("10.1.0.2:4000", "10.1.0.3:80");
    let mut rig = Rig::new(parts(1, AclBinding::Open));
    let usage = |rig: &Rig| {
        let sessions = rig.sessions();
        let (found, _) = sessions.iter().next().expect("the session");
        sessions.usage(&found)
    };
    rig.pass(CLIENT, tcp(client, server).syn().build(), SERVER);
    rig.pass(SERVER, tcp(server, client).syn_ack().build(), CLIENT);
    assert_eq!((usage(&rig).packets, usage(&rig).created_s.is_some()), (0, true));
    rig.sessions().count_packets(true);
    let frames =
        [tcp(client, server).data(b"hello").build(), tcp(client, server).data(b"x").build()];
    let bytes: usize = frames.iter().map(Vec::len).sum();
    frames.into_iter().for_each(|frame| drop(rig.pass(CLIENT, frame, SERVER)));
    assert_eq!((usage(&rig).packets, usage(&rig).bytes), (2, bytes as u64));
    let answer = tcp(server, client).data(b"hello").build();
    let length = answer.len();
    rig.pass(SERVER, answer, CLIENT);
    assert_eq!((usage(&rig).packets, usage(&rig).bytes), (3, (bytes + length) as u64));
    // A new snapshot leads the next packet the long way.
    rig.publish(parts(2, AclBinding::Open));
    rig.pass(CLIENT, tcp(client, server).data(b"y").build(), SERVER);
    assert_eq!(usage(&rig).packets, 4);
    // The first packet of a session counts too.
    let other = tcp("10.1.0.2:4001", server).syn().build();
    rig.pass(CLIENT, other, SERVER);
    let all = rig.sessions().iter().map(|(found, _)| rig.sessions().usage(&found).packets);
    assert_eq!(all.sum::<u64>(), 5);
}

/// After a start without the cluster's objects, for example.
#[test]
fn a_pod_without_tables_yet_keeps_its_connections_and_gets_nothing() {
    let (client, server) = ("10.1.0.2:4000", "10.1.0.3:80");
    let mut rig = Rig::new(parts(1, AclBinding::Open));
    let request = tcp(client, server).syn();
    rig.pass(CLIENT, request.clone().build(), SERVER);
    rig.publish(parts(2, AclBinding::Closed));
    let (there, back) = (tcp(client, server).data(b"hello"), tcp(server, client).data(b"hello"));
    assert_eq!(rig.send(CLIENT, there.clone().build()), Outcome::Closed);
    assert_eq!(rig.send(SERVER, back.clone().build()), Outcome::Closed);
    let error = icmp_error("10.1.0.3", "10.1.0.2", 3, 3, &request).build();
    assert_eq!(rig.send(SERVER, error), Outcome::Closed);
    rig.publish(parts(3, AclBinding::Open));
    assert_eq!(rig.send(CLIENT, there.clone().build()), Outcome::Session);
    assert_eq!(rig.send(SERVER, back.build()), Outcome::Session);
    // The tables decide, whatever was before.
    rig.publish(parts(4, AclBinding::Closed));
    assert_eq!(rig.send(CLIENT, there.clone().build()), Outcome::Closed);
    rig.publish(parts(5, denies_everything()));
    assert_eq!(rig.send(CLIENT, there.clone().build()), Outcome::PolicyDenied);
    assert_eq!(rig.send(CLIENT, there.build()), Outcome::PolicyDenied);
}

/// A session that a denial ends is known for a while: a mistake that is taken back costs retransmissions.
#[test]
fn a_connection_that_is_denied_and_allowed_again_goes_on() {
    let (client, server) = ("10.1.0.2:4000", "10.1.0.3:80");
    let mut rig = Rig::new(parts(1, AclBinding::Open));
    rig.pass(CLIENT, tcp(client, server).syn().build(), SERVER);
    rig.pass(SERVER, tcp(server, client).syn_ack().build(), CLIENT);
    rig.pass(CLIENT, tcp(client, server).ack().build(), SERVER);
    let (there, back) =
        (tcp(client, server).data(b"hello").build(), tcp(server, client).data(b"hello").build());
    let state = |rig: &Rig| {
        let (found, _) = rig.sessions().iter().next().expect("the session");
        found.state().name(protocol::TCP)
    };
    for round in 1..4 {
        rig.publish(parts(2 * round, denies_everything()));
        for _ in 0..2 {
            assert_eq!(rig.send(CLIENT, there.clone()), Outcome::PolicyDenied);
            assert_eq!(rig.send(SERVER, back.clone()), Outcome::PolicyDenied);
        }
        assert_eq!(state(&rig), "refused");
        rig.wait(20);
        rig.publish(parts(2 * round + 1, AclBinding::Open));
        assert_eq!(rig.send(CLIENT, there.clone()), Outcome::Session);
        assert_eq!(rig.send(SERVER, back.clone()), Outcome::Session);
        assert_eq!(state(&rig), "established");
    }
    // The same where packets come one vector.
    rig.publish(parts(10, denies_everything()));
    let both = || vec![there.clone(), there.clone()];
    assert_eq!(rig.send_all(CLIENT, both()), [Outcome::PolicyDenied; 2]);
    rig.publish(parts(11, AclBinding::Open));
    assert_eq!(rig.send_all(CLIENT, both()), [Outcome::Session; 2]);
    assert_eq!(state(&rig), "established");
    // Not for ever, and a SYN says anew who opens what.
    rig.publish(parts(12, denies_everything()));
    assert_eq!(rig.send(CLIENT, there.clone()), Outcome::PolicyDenied);
    assert_eq!(rig.send(SERVER, tcp(server, client).syn().build()), Outcome::PolicyAllowed);
    rig.publish(parts(13, AclBinding::Open));
    let mut rig = Rig::new(parts(1, AclBinding::Open));
    rig.pass(CLIENT, tcp(client, server).syn().build(), SERVER);
    rig.publish(parts(2, denies_everything()));
    assert_eq!(rig.send(CLIENT, there.clone()), Outcome::PolicyDenied);
    rig.wait(200);
    rig.publish(parts(3, AclBinding::Open));
    assert_eq!(rig.send(CLIENT, there), Outcome::NoSession);
}

/// A restart shortly before or after a denial takes no connection that is allowed again.
#[test]
fn a_connection_that_is_denied_over_a_restart_goes_on_if_it_is_allowed_again() {
    let (client, server) = ("10.1.0.2:4000", "10.1.0.3:80");
    let folder = testkit::TempDir::new("sessions");
    let path = folder.path().join("sessions");
    let frames = || {
        [
            (CLIENT, tcp(client, server).data(b"hello").build()),
            (SERVER, tcp(server, client).data(b"hello").build()),
            (SERVER, udp(server, client).payload(b"frame").build()),
            (CLIENT, udp(client, server).payload(b"more").build()),
        ]
    };
    let all = |rig: &mut Rig| frames().map(|(port, frame)| rig.send(port, frame));
    for (before, after) in [(true, true), (true, false), (false, true)] {
        let start = |to_server| {
            let sessions = Sessions::in_file(&path, 1024, 16, Timeouts::default());
            Rig::with_sessions(parts(1, to_server), sessions.expect("a table of sessions"))
        };
        let mut rig = start(AclBinding::Open);
        rig.pass(CLIENT, tcp(client, server).syn().build(), SERVER);
        rig.pass(SERVER, tcp(server, client).syn_ack().build(), CLIENT);
        rig.pass(CLIENT, tcp(client, server).ack().build(), SERVER);
        rig.pass(CLIENT, udp(client, server).payload(b"more").build(), SERVER);
        if before {
            rig.publish(parts(2, denies_everything()));
            assert_eq!(all(&mut rig), [Outcome::PolicyDenied; 4]);
        }
        drop(rig);
        // Nothing is known about the pods at first.
        let mut rig = start(AclBinding::Closed);
        assert_eq!(all(&mut rig), [Outcome::Closed; 4]);
        if after {
            rig.publish(parts(2, denies_everything()));
            assert_eq!(all(&mut rig), [Outcome::PolicyDenied; 4]);
        }
        rig.publish(parts(3, AclBinding::Open));
        assert_eq!(all(&mut rig), [Outcome::Session; 4], "denied {before}, {after}");
        let sessions = rig.sessions().iter();
        let states = sessions.map(|(it, tuples)| it.state().name(tuples.responder.protocol));
        assert_eq!(states.collect::<Vec<_>>(), ["established", "answered"]);
        drop(rig);
        std::fs::remove_file(&path).expect("the file of the sessions");
    }
}

/// A server that streams does not become the one who asked because its client is denied.
#[test]
fn a_denied_datagram_is_no_answer_to_what_the_other_end_sends() {
    let (client, server) = ("10.1.0.2:4000", "10.1.0.3:5000");
    let mut rig = Rig::new(parts(1, AclBinding::Open));
    let ask = || udp(client, server).payload(b"more").build();
    let stream = || udp(server, client).payload(b"frame").build();
    rig.pass(CLIENT, ask(), SERVER);
    rig.pass(SERVER, stream(), CLIENT);
    rig.publish(parts(2, denies_everything()));
    for _ in 0..30 {
        assert_eq!(rig.send(SERVER, stream()), Outcome::PolicyDenied);
        assert_eq!(rig.send(CLIENT, ask()), Outcome::PolicyDenied);
        rig.wait(20);
    }
    // Silent clients as well get their stream back.
    rig.publish(parts(3, AclBinding::Open));
    assert_eq!(rig.send(SERVER, stream()), Outcome::Session);
    assert_eq!(rig.send(CLIENT, ask()), Outcome::Session);
    // Over when nobody sends: then the server may ask, and is answered.
    rig.publish(parts(4, denies_everything()));
    assert_eq!(rig.send(CLIENT, ask()), Outcome::PolicyDenied);
    rig.wait(200);
    assert_eq!(rig.send(SERVER, stream()), Outcome::PolicyAllowed);
}

/// Three servers with these ACLs, a service in front of the second one, and the node.
fn three(generation: u64, to_servers: [AclBinding; 3], has_backend: bool) -> Parts {
    let servers = to_servers.into_iter().enumerate().map(|(n, to_pod)| {
        let mut server = pod(&format!("default/server{n}"), &[&format!("10.1.0.{}", 3 + n)]);
        server.iter_mut().for_each(|server| server.to_pod = to_pod.clone());
        server
    });
    let backend = Backend { address: ip("10.1.0.4").into(), port: 80 };
    let backends = Backends::new(has_backend.then_some(backend).into_iter().collect());
    let port = ServicePort { internal: backends, ..ServicePort::default() };
    let entry = Entry { port: Arc::new(port), scope: Scope::Cluster };
    let mut services = Services::default();
    services.claim(ip("10.96.0.1").into());
    services.add(ip("10.96.0.1").into(), protocol::UDP, 80, entry);
    let ports = [pod("default/client", &["10.1.0.2"])].into_iter().chain(servers);
    Parts {
        generation,
        ports: ports.chain([host()]).collect(),
        node_addresses: vec![ip("192.0.2.1")],
        services: Arc::new(services),
        ..Parts::default()
    }
}

/// A vector's sessions are re-evaluated together, with the outcomes that each alone would have.
#[test]
fn sessions_of_a_vector_are_re_evaluated_as_each_alone() {
    let only_port_80 = || {
        let rule = Rule::new(Action::Permit, "port 80").protocol(protocol::UDP);
        let rules = [rule.destination_ports(PortRange::one(80))];
        AclBinding::Table(Arc::new(Table::compile(rules.into(), &Arc::new(AddressMap::default()))))
    };
    let open = || AclBinding::Open;
    let servers = ["10.1.0.3", "10.1.0.4", "10.1.0.5", "10.96.0.1", "192.0.2.1"];
    // Each session has two packets in a vector.
    let requests: Vec<Vec<u8>> = (0..60)
        .map(|n| n % 30)
        .map(|n| {
            let to = format!("{}:{}", servers[n % 5], if n % 5 == 3 { 80 } else { 80 + n / 5 % 2 });
            udp(&format!("10.1.0.2:{}", 4000 + n), &to).payload(b"x").build()
        })
        .collect();
    let replies: Vec<Vec<u8>> = (0..30)
        .map(|n| udp(&format!("10.1.0.4:{}", 80 + n / 5 % 2), &format!("10.1.0.2:{}", 4000 + n)))
        .map(|packet| packet.payload(b"y").build())
        .collect();
    let later: [fn() -> [AclBinding; 3]; 3] = [
        || [denies_everything(), AclBinding::Open, AclBinding::Closed],
        || [AclBinding::Open, AclBinding::Open, AclBinding::Open],
        || [AclBinding::Closed, denies_everything(), AclBinding::Open],
    ];
    // In one vector with the packet that opens a connection others open it as well.
    let outcome = |outcome| match outcome {
        Outcome::PolicyAllowed => Outcome::Session,
        outcome => outcome,
    };
    for (to_servers, has_backend) in later.iter().flat_map(|it| [(it, true), (it, false)]) {
        let rigs = [(); 2].map(|()| {
            let mut rig = Rig::new(three(1, [open(), open(), only_port_80()], true));
            rig.send_all(CLIENT, requests.clone());
            rig.publish(three(2, to_servers(), has_backend));
            rig
        });
        let [mut together, mut alone] = rigs;
        for (port, frames) in [(SERVER + 1, &replies), (CLIENT, &requests), (CLIENT, &requests)] {
            let expected = frames.iter().map(|frame| alone.send(port, frame.clone()));
            let expected: Vec<Outcome> = expected.map(outcome).collect();
            let found = together.send_all(port, frames.clone());
            assert_eq!(found.into_iter().map(outcome).collect::<Vec<_>>(), expected);
        }
        let received = |rig: &mut Rig| -> Vec<Vec<Vec<u8>>> {
            (0..5).map(|port| std::iter::from_fn(|| rig.receive(port)).collect()).collect()
        };
        assert_eq!(received(&mut together), received(&mut alone));
    }
}
