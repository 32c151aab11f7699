//! Replies to denied connections.

use std::sync::Arc;

use acl::{Action, AddressMap, PortRange, Rule, Table};
use dataplane::services::{Backend, Backends, Entry, Scope, ServicePort, Services};
use dataplane::wire::vxlan::Vxlan;
use dataplane::wire::{self, Flow, protocol, tcp_flags};
use dataplane::{AclBinding, DeniedReply, Outcome, Parts, Peer, Routes, Underlay};
use testkit::packet::{ping, sctp, tcp, udp};

use crate::nodes::rig::{Rig, host, ip, pod, uplink};

const CLIENT: u16 = 0;
const SERVER: u16 = 1;
const UPLINK: u16 = 3;
const OVERLAY: Vxlan = Vxlan { network: 4096, port: 4789, group: false };

fn denies() -> AclBinding {
    let rules = [Rule::new(Action::Deny, "default-deny of NetworkPolicy default/server")];
    AclBinding::Table(Arc::new(Table::compile(rules.into(), &Arc::new(AddressMap::default()))))
}

/// Denies what is for port 80 alone.
fn denies_port_80() -> AclBinding {
    let denial = Rule::new(Action::Deny, "port 80").destination_ports(PortRange::one(80));
    let rules = [denial.protocol(protocol::TCP), Rule::new(Action::Permit, "the rest")];
    AclBinding::Table(Arc::new(Table::compile(rules.into(), &Arc::new(AddressMap::default()))))
}

/// A client and a server with these replies, a service in front of the server, and another node.
fn parts(generation: u64, replies: [DeniedReply; 2], to_server: AclBinding) -> Parts {
    let mut ports = vec![
        pod("default/client", &["10.1.0.2", "fd01::2"]),
        pod("default/server", &["10.1.0.3", "fd01::3"]),
        host(),
        uplink([2; 6], [4; 6], 1500),
    ];
    for (port, reply) in ports.iter_mut().flatten().zip(replies) {
        port.denied_reply = reply;
    }
    ports[1].as_mut().unwrap().to_pod = to_server;
    let backend = Backend { address: ip("10.1.0.3").into(), port: 80 };
    let port = ServicePort { internal: Backends::new(vec![backend]), ..ServicePort::default() };
    let mut services = Services::default();
    services.claim(ip("10.96.0.1").into());
    for protocol in [protocol::TCP, protocol::UDP] {
        let entry = Entry { port: Arc::new(port.clone()), scope: Scope::Cluster };
        services.add(ip("10.96.0.1").into(), protocol, 80, entry);
    }
    let peer = Peer {
        name: "node2".to_owned(),
        addresses: vec![ip("192.0.2.2").into()],
        networks: vec!["10.2.0.0/24".parse().unwrap()],
        endpoint: ip("192.0.2.2").into(),
        next_hop: Some([6; 6]),
        ..Peer::default()
    };
    Parts {
        generation,
        ports,
        node_addresses: vec![ip("192.0.2.1"), ip("2001:db8::1")],
        local_networks: vec!["10.1.0.0/24".parse().unwrap(), "fd01::/64".parse().unwrap()],
        services: Arc::new(services),
        routes: Arc::new(Routes::new(vec![peer])),
        underlay: Underlay::Routed,
        ..Parts::default()
    }
}

const REJECT: [DeniedReply; 2] = [DeniedReply::Drop, DeniedReply::Reject];

/// Flow, TCP flags, sequence and acknowledgement of a segment without data.
fn segment(frame: &[u8]) -> (Flow, u8, u32, u32) {
    let headers = wire::parse(frame).unwrap();
    assert_eq!(usize::from(headers.end - headers.l4), 20);
    let word = |at: usize| {
        let at = usize::from(headers.l4) + at;
        u32::from_be_bytes(frame[at..at + 4].try_into().unwrap())
    };
    (headers.flow, headers.tcp_flags, word(4), word(8))
}

fn flow(frame: &[u8]) -> Flow {
    wire::parse(frame).unwrap().flow
}

#[test]
fn a_denied_connection_is_refused_at_once() {
    let mut rig = Rig::new(parts(1, REJECT, denies()));
    for (client, server) in [("10.1.0.2", "10.1.0.3"), ("[fd01::2]", "[fd01::3]")] {
        let v6 = client.starts_with('[');
        let (from, to) = (format!("{client}:4000"), format!("{server}:80"));
        let syn = tcp(&from, &to).syn().tcp_header(|tcp| tcp.sequence_number = 41).build();
        assert_eq!(rig.send(CLIENT, syn.clone()), Outcome::PolicyDenied);
        let reset = rig.receive(CLIENT).expect("a reset");
        let flags = tcp_flags::RST | tcp_flags::ACK;
        assert_eq!(segment(&reset), (flow(&syn).reversed(), flags, 0, 42));
        assert!(reset.len() <= syn.len());
        let bare = |text: &str| text.trim_matches(['[', ']']).to_owned();
        let others = [
            udp(&from, &to).payload(b"question").build(),
            sctp(&from, &to, 1).build(),
            ping(&bare(client), &bare(server), 7, 1).build(),
        ];
        for packet in others {
            assert_eq!(rig.send(CLIENT, packet.clone()), Outcome::PolicyDenied);
            let error = rig.receive(CLIENT).expect("an ICMP error");
            let headers = wire::parse(&error).unwrap();
            let l4 = usize::from(headers.l4);
            let prohibited = if v6 { [1, 1] } else { [3, 13] };
            assert_eq!(error[l4..l4 + 2], prohibited);
            assert_eq!(headers.flow.source.to_ip(), ip(&bare(server)), "the address it dialed");
            assert_eq!(wire::quoted(&error, &headers), Some(flow(&packet)));
            assert_eq!(error.len(), packet.len() + if v6 { 48 } else { 28 });
        }
        assert!(rig.receive(SERVER).is_none() && rig.receive(CLIENT).is_none());
    }
}

#[test]
fn replies_are_those_of_the_pod_whose_policy_denies() {
    let syn = || tcp("10.1.0.2:4000", "10.1.0.3:80").syn().build();
    let [drop, reject] = [DeniedReply::Drop, DeniedReply::Reject];
    let both = |replies: [DeniedReply; 2], by_client: bool| {
        let to_server = if by_client { AclBinding::Open } else { denies() };
        let mut parts = parts(1, replies, to_server);
        if by_client {
            parts.ports[0].as_mut().unwrap().from_pod = denies();
        }
        let mut rig = Rig::new(parts);
        assert_eq!(rig.send(CLIENT, syn()), Outcome::PolicyDenied);
        rig.receive(CLIENT).is_some()
    };
    for (replies, by_client, answered) in [
        ([drop, reject], false, true),
        ([drop, reject], true, false),
        ([reject, drop], true, true),
        ([reject, drop], false, false),
        ([drop, drop], false, false),
    ] {
        assert_eq!(both(replies, by_client), answered, "{replies:?} {by_client}");
    }
    // A port without tables replies nothing.
    let mut rig = Rig::new(parts(1, REJECT, AclBinding::Closed));
    assert_eq!(rig.send(CLIENT, syn()), Outcome::Closed);
    assert!(rig.receive(CLIENT).is_none());
}

#[test]
fn a_denial_behind_a_service_comes_from_the_address_that_was_dialed() {
    let mut rig = Rig::new(parts(1, REJECT, denies()));
    let syn = tcp("10.1.0.2:4000", "10.96.0.1:80").syn().build();
    assert_eq!(rig.send(CLIENT, syn.clone()), Outcome::PolicyDenied);
    assert_eq!(segment(&rig.receive(CLIENT).unwrap()).0, flow(&syn).reversed());
    let datagram = udp("10.1.0.2:4000", "10.96.0.1:80").payload(b"x").build();
    assert_eq!(rig.send(CLIENT, datagram.clone()), Outcome::PolicyDenied);
    let error = rig.receive(CLIENT).unwrap();
    let headers = wire::parse(&error).unwrap();
    assert_eq!(headers.flow.source.to_ip(), ip("10.96.0.1"));
    assert_eq!(wire::quoted(&error, &headers), Some(flow(&datagram)));
}

/// A client outside, also one behind a node's address, receives a reply with `reject-all` alone.
#[test]
fn clients_outside_are_told_only_where_that_is_asked_for() {
    for (reply, from, answered) in [
        (DeniedReply::Reject, "203.0.113.7:4000", false),
        (DeniedReply::Reject, "192.0.2.2:4000", false),
        (DeniedReply::Reject, "10.2.0.9:4000", true),
        (DeniedReply::RejectAll, "203.0.113.7:4000", true),
        (DeniedReply::RejectAll, "192.0.2.2:4000", true),
    ] {
        let mut rig = Rig::new(parts(1, [DeniedReply::Drop, reply], denies()));
        for packet in
            [tcp(from, "10.1.0.3:80").syn(), udp(from, "10.1.0.3:53").payload(b"question")]
        {
            assert_eq!(rig.send(UPLINK, packet.build()), Outcome::PolicyDenied);
            assert_eq!(rig.receive(UPLINK).is_some(), answered, "{reply:?} {from}");
        }
    }
}

#[test]
fn both_ends_of_a_live_connection_are_reset() {
    let (client, server) = ("10.1.0.2:4000", "10.1.0.3:80");
    for dialed in [server, "10.96.0.1:80"] {
        for client_sends in [true, false] {
            let mut rig = Rig::new(parts(1, REJECT, AclBinding::Open));
            assert_eq!(rig.send(CLIENT, tcp(client, dialed).syn().build()), Outcome::PolicyAllowed);
            rig.receive(SERVER).unwrap();
            rig.pass(SERVER, tcp(server, client).syn_ack().build(), CLIENT);
            rig.pass(CLIENT, tcp(client, dialed).ack().build(), SERVER);
            rig.publish(parts(2, REJECT, denies_port_80()));
            let data = |from: &str, to: &str| {
                tcp(from, to).data(b"hello").tcp_header(|tcp| {
                    (tcp.sequence_number, tcp.acknowledgment_number) = (1000, 2000);
                })
            };
            let (sender, other, packet) = match client_sends {
                true => (CLIENT, SERVER, data(client, dialed)),
                false => (SERVER, CLIENT, data(server, client)),
            };
            assert_eq!(rig.send(sender, packet.clone().build()), Outcome::PolicyDenied);
            // Each end accepts a reset at the sequence number that it expects next (RFC 5961).
            let (of_sender, to_other) = match client_sends {
                true => (tcp(client, dialed).ack(), tcp(client, server).ack()),
                false => (tcp(server, client).ack(), tcp(dialed, client).ack()),
            };
            let (of_sender, to_other) = (flow(&of_sender.build()), flow(&to_other.build()));
            let reset = segment(&rig.receive(sender).expect("the sender's reset"));
            assert_eq!(reset, (of_sender.reversed(), tcp_flags::RST, 2000, 0));
            let reset = segment(&rig.receive(other).expect("the other end's"));
            assert_eq!(reset, (to_other, tcp_flags::RST | tcp_flags::ACK, 1000, 2000));
            // From then on whoever sends is answered; a reset is not.
            assert_eq!(rig.send(sender, packet.clone().build()), Outcome::PolicyDenied);
            assert!(rig.receive(sender).is_some() && rig.receive(other).is_none());
            assert_eq!(rig.send(sender, packet.rst().build()), Outcome::PolicyDenied);
            assert!(rig.receive(sender).is_none() && rig.receive(other).is_none());
        }
    }
}

#[test]
fn an_end_that_resets_a_denied_connection_resets_the_other_one() {
    let (client, server) = ("10.1.0.2:4000", "10.1.0.3:80");
    let mut rig = Rig::new(parts(1, REJECT, AclBinding::Open));
    rig.pass(CLIENT, tcp(client, server).syn().build(), SERVER);
    rig.publish(parts(2, REJECT, denies()));
    let reset = tcp(client, server).rst().build();
    assert_eq!(rig.send(CLIENT, reset.clone()), Outcome::PolicyDenied);
    assert_eq!(segment(&rig.receive(SERVER).unwrap()).0, flow(&reset));
    assert!(rig.receive(CLIENT).is_none());
}

#[test]
fn of_other_sessions_the_initiator_alone_is_answered() {
    let (client, server) = ("10.1.0.2:4000", "10.1.0.3:53");
    let mut rig = Rig::new(parts(1, REJECT, AclBinding::Open));
    let question = udp(client, server).payload(b"question").build();
    rig.pass(CLIENT, question.clone(), SERVER);
    let answer = udp(server, client).payload(b"answer").build();
    rig.pass(SERVER, answer.clone(), CLIENT);
    rig.publish(parts(2, REJECT, denies()));
    assert_eq!(rig.send(SERVER, answer), Outcome::PolicyDenied);
    assert!(rig.receive(SERVER).is_none() && rig.receive(CLIENT).is_none());
    assert_eq!(rig.send(CLIENT, question), Outcome::PolicyDenied);
    assert_eq!(flow(&rig.receive(CLIENT).unwrap()).destination.to_ip(), ip("10.1.0.2"));
    assert!(rig.receive(SERVER).is_none());
}

/// A pod that scans or floods has as many replies as it has other ICMP errors.
#[test]
fn replies_are_limited_as_other_errors_are() {
    let mut rig = Rig::new(parts(1, REJECT, denies()));
    for n in 0..10 {
        let syns =
            (0..50).map(|k| tcp(&format!("10.1.0.2:{}", 4000 + n), &format!("10.1.0.3:{k}")));
        let outcomes = rig.send_all(CLIENT, syns.map(|syn| syn.syn().build()).collect());
        assert_eq!(outcomes, [Outcome::PolicyDenied; 50]);
    }
    let replies = std::iter::from_fn(|| rig.receive(CLIENT)).count();
    assert_eq!(replies, 50);
    // Many live connections at once: frames for resets are bounded too.
    rig.publish(parts(2, REJECT, AclBinding::Open));
    let connection = |n: usize| (format!("10.1.0.2:{}", 5000 + n), "10.1.0.3:80");
    for n in 0..200 {
        let (client, server) = connection(n);
        rig.pass(CLIENT, tcp(&client, server).syn().build(), SERVER);
    }
    rig.publish(parts(3, REJECT, denies()));
    rig.wait(10);
    let all = (0..200).map(|n| tcp(&connection(n).0, connection(n).1).ack().build()).collect();
    assert_eq!(rig.send_all(CLIENT, all), [Outcome::PolicyDenied; 200]);
    let received = [CLIENT, SERVER].map(|port| std::iter::from_fn(|| rig.receive(port)).count());
    assert!(received[0] == 50 && (16..=50).contains(&received[1]), "{received:?}");
}

/// Two nodes with an overlay: the reply takes the tunnel, and is a packet of the connection there.
#[test]
fn a_reply_to_another_cluster_nodes_pod_takes_the_tunnel() {
    let of_node = |n: u8, generation: u64, to_server: AclBinding| {
        let other = 3 - n;
        let peer = Peer {
            name: format!("node{other}"),
            addresses: vec![ip(&format!("192.0.2.{other}")).into()],
            networks: vec![format!("10.{other}.0.0/24").parse().unwrap()],
            endpoint: ip(&format!("192.0.2.{other}")).into(),
            next_hop: Some([2, 0, 0, 0, 0, other]),
            ..Peer::default()
        };
        let mut pod = pod("default/pod", &[&format!("10.{n}.0.2")]);
        let of_pod = pod.as_mut().unwrap();
        (of_pod.to_pod, of_pod.denied_reply) = (to_server, DeniedReply::Reject);
        Parts {
            generation,
            ports: vec![pod, host(), uplink([2, 0, 0, 0, 0, n], [9; 6], 1500)],
            node_addresses: vec![ip(&format!("192.0.2.{n}"))],
            local_networks: vec![format!("10.{n}.0.0/24").parse().unwrap()],
            routes: Arc::new(Routes::new(vec![peer])),
            underlay: Underlay::Overlay(OVERLAY),
            ..Parts::default()
        }
    };
    let (client, server, uplink) = ("10.1.0.2:4000", "10.2.0.2:80", 2);
    let mut one = Rig::new(of_node(1, 1, AclBinding::Open));
    let mut two = Rig::new(of_node(2, 1, denies()));
    let syn = tcp(client, server).syn().build();
    let to_two = one.pass(CLIENT, syn.clone(), uplink);
    assert_eq!(two.send(uplink, to_two), Outcome::PolicyDenied);
    let to_one = two.receive(uplink).expect("a tunnel packet");
    assert_eq!(one.send(uplink, to_one), Outcome::Session);
    assert_eq!(segment(&one.receive(CLIENT).unwrap()).0, flow(&syn).reversed());
    // A datagram: the error is related to the connection.
    let datagram = udp(client, server).payload(b"question").build();
    let to_two = one.pass(CLIENT, datagram, uplink);
    assert_eq!(two.send(uplink, to_two), Outcome::PolicyDenied);
    let to_one = two.receive(uplink).expect("a tunnel packet");
    assert_eq!(one.send(uplink, to_one), Outcome::Related);
    assert!(one.receive(CLIENT).is_some());
    // A live connection: one reset goes back, the other one on.
    two.publish(of_node(2, 2, AclBinding::Open));
    let to_two = one.pass(CLIENT, tcp("10.1.0.2:4001", server).syn().build(), uplink);
    two.send(uplink, to_two);
    two.receive(0).expect("the server's");
    two.publish(of_node(2, 3, denies()));
    let to_two = one.pass(CLIENT, tcp("10.1.0.2:4001", server).ack().build(), uplink);
    assert_eq!(two.send(uplink, to_two), Outcome::PolicyDenied);
    assert_eq!(segment(&two.receive(0).expect("a reset")).1 & tcp_flags::RST, tcp_flags::RST);
    let to_one = two.receive(uplink).expect("a tunnel packet");
    assert_eq!(one.send(uplink, to_one), Outcome::Session);
    assert_eq!(segment(&one.receive(CLIENT).unwrap()).1 & tcp_flags::RST, tcp_flags::RST);
}
