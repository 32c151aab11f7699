//! DNS of pods that follow domain names: copies, and answers that are held.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;

use dataplane::dns::{DnsPacket, DnsTap, MAX_HOLD, MOST_HELD_OF_POD};
use dataplane::graph::Node;
use dataplane::graph::trace::{End, Filter, PacketTrace, Tracing};
use dataplane::services::{Backend, Backends, Entry, Scope, ServicePort, Services};
use dataplane::wire::{protocol, tcp_flags};
use dataplane::{AclBinding, Outcome, Parts, PortState};
use testkit::packet::{Packet, tcp, udp};

use crate::nodes::rig::{Rig, assert_is, ip, pod};

const POD: u16 = 0;
const RESOLVER: u16 = 1;
const OTHER: u16 = 2;

const ASKS: &str = "10.1.0.2:4000";
const SERVER: &str = "10.1.0.3:53";

fn parts(generation: u64) -> Parts {
    let follows = |port: PortState| Some(PortState { follows_names: true, ..port });
    Parts {
        generation,
        ports: vec![
            pod("default/pod", &["10.1.0.2"]).and_then(follows),
            pod("default/dns", &["10.1.0.3"]),
            pod("default/other", &["10.1.0.4"]),
        ],
        local_networks: vec!["10.1.0.0/24".parse().unwrap()],
        ..Parts::default()
    }
}

fn followed(parts: Parts) -> (Rig, Arc<DnsTap>, Receiver<DnsPacket>) {
    let mut rig = Rig::new(parts);
    let (tap, copies) = DnsTap::new(16, MAX_HOLD);
    rig.follow_dns(&tap);
    (rig, tap, copies)
}

fn ask(rig: &mut Rig) {
    rig.pass(POD, udp(ASKS, SERVER).payload(b"question").build(), RESOLVER);
}

fn answer() -> Packet {
    udp(SERVER, ASKS).payload(b"answer")
}

#[test]
fn an_answer_leaves_when_it_is_released_and_not_before() {
    let (mut rig, tap, copies) = followed(parts(1));
    let free = rig.free();
    ask(&mut rig);
    let question = copies.try_recv().unwrap();
    assert!(question.from_pod && question.held.is_none() && question.segment.is_none());
    assert_eq!((question.pod.0, &*question.payload), (POD, &b"question"[..]));
    assert_eq!(rig.send_all(RESOLVER, vec![answer().build()]), [], "no end yet");
    assert_eq!(rig.receive(POD), None);
    let copy = copies.try_recv().unwrap();
    assert_eq!((copy.flow, copy.from_pod, &*copy.payload), (question.flow, false, &b"answer"[..]));
    let ticket = copy.held.unwrap();
    // A snapshot in between changes nothing about it.
    rig.publish(parts(2));
    assert_eq!(rig.receive(POD), None);
    assert_eq!(rig.release(&[ticket.number + 1]), []);
    assert_eq!(rig.release(&[ticket.number]), [Outcome::Session]);
    assert_is(&rig.receive(POD).unwrap(), &answer().build());
    assert_eq!(rig.release(&[ticket.number]), [], "released already");
    assert_eq!((rig.free(), tap.late.load(Ordering::Relaxed)), (free, 0));
}

/// An answer in fragments arrives, and opens nothing: a part of it is no message, and is not held.
#[test]
fn an_answer_in_fragments_passes_unread() {
    let (mut rig, tap, copies) = followed(parts(1));
    let free = rig.free();
    ask(&mut rig);
    copies.try_recv().unwrap();
    let pieces = udp(SERVER, ASKS).payload(&[7; 2000]).ip_id(9).fragments(1000);
    for order in [[0, 1, 2], [2, 1, 0]] {
        let sent = order.map(|n: usize| pieces[n].clone());
        rig.send_all(RESOLVER, sent.to_vec());
        let received: Vec<_> = std::iter::from_fn(|| rig.receive(POD)).collect();
        assert_eq!(received.len(), 3);
        assert!(copies.try_recv().is_err(), "no copy of any");
    }
    assert_eq!((rig.free(), tap.late.load(Ordering::Relaxed)), (free, 0));
}

#[test]
fn an_answer_that_nobody_releases_leaves_in_time_and_is_counted() {
    let (mut rig, tap, copies) = followed(parts(1));
    ask(&mut rig);
    rig.send_all(RESOLVER, vec![answer().build()]);
    assert_eq!(rig.wait(MAX_HOLD.as_secs()), [Outcome::Session]);
    assert!(rig.receive(POD).is_some());
    assert_eq!(tap.late.load(Ordering::Relaxed), 1);
    assert_eq!(copies.try_iter().count(), 2);
}

#[test]
fn without_a_receiver_nothing_is_held() {
    let (mut rig, _, copies) = followed(parts(1));
    drop(copies);
    ask(&mut rig);
    rig.pass(RESOLVER, answer().build(), POD);
    let mut rig = Rig::new(parts(1));
    ask(&mut rig);
    rig.pass(RESOLVER, answer().build(), POD);
}

#[test]
fn packets_of_other_pods_and_other_ports_are_left_alone() {
    let (mut rig, _, copies) = followed(parts(1));
    rig.pass(OTHER, udp("10.1.0.4:4000", SERVER).payload(b"question").build(), RESOLVER);
    rig.pass(RESOLVER, udp(SERVER, "10.1.0.4:4000").payload(b"answer").build(), OTHER);
    rig.pass(POD, udp(ASKS, "10.1.0.3:5353").payload(b"question").build(), RESOLVER);
    rig.pass(RESOLVER, udp("10.1.0.3:5353", ASKS).payload(b"answer").build(), POD);
    // A packet from port 53 that opens a connection answers nothing, and is not held.
    rig.pass(OTHER, udp("10.1.0.4:53", ASKS).payload(b"answer").build(), POD);
    assert_eq!(copies.try_iter().filter(|it| it.held.is_some()).count(), 0);
}

#[test]
fn held_answers_of_a_pod_are_bounded() {
    let (mut rig, tap, copies) = followed(parts(1));
    ask(&mut rig);
    let answers = vec![answer().build(); MOST_HELD_OF_POD - 2];
    assert_eq!(rig.send_all(RESOLVER, answers), []);
    let more = rig.send_all(RESOLVER, vec![answer().build(); 2]);
    assert_eq!(more, []);
    assert_eq!(rig.send_all(RESOLVER, vec![answer().build()]), [Outcome::Session], "not held");
    assert_eq!(tap.unheld.load(Ordering::Relaxed), 1);
    // Copies are bounded as well: 34 are under way.
    for _ in 0..10 {
        rig.send_all(RESOLVER, vec![answer().build(); 20]);
    }
    assert_eq!(copies.try_iter().count(), 128);
    assert!(tap.uncopied.load(Ordering::Relaxed) > 0);
    ask(&mut rig);
    assert_eq!(copies.try_iter().count(), 1, "the copies were taken");
}

/// An accomplice of the pod may answer as often as it likes.
#[test]
fn a_burst_of_answers_holds_no_more_than_the_pods_share() {
    let mut rig = Rig::new_with_frames(parts(1), 8192);
    let (tap, copies) = DnsTap::new(16, MAX_HOLD);
    rig.follow_dns(&tap);
    ask(&mut rig);
    // No more than a worker takes at once.
    let ends = rig.send_all(RESOLVER, vec![answer().build(); 60]);
    assert_eq!(ends, vec![Outcome::Session; 60 - MOST_HELD_OF_POD]);
    assert_eq!(copies.try_iter().filter(|it| it.held.is_some()).count(), MOST_HELD_OF_POD);
    assert_eq!(rig.wait(MAX_HOLD.as_secs()).len(), MOST_HELD_OF_POD);
    let again = rig.send_all(RESOLVER, vec![answer().build(); 2]);
    assert_eq!(again, [], "there is room again");
}

#[test]
fn pods_that_flood_leave_room_for_an_answer_of_each_other_pod() {
    let mut ports = vec![pod("default/dns", &["10.1.0.3"])];
    for n in 10..20 {
        let port = pod(&format!("default/{n}"), &[&format!("10.1.0.{n}")]);
        ports.push(port.map(|port| PortState { follows_names: true, ..port }));
    }
    let mut rig = Rig::new_with_frames(Parts { ports, ..parts(1) }, 8192);
    let (tap, copies) = DnsTap::new(16, MAX_HOLD);
    rig.follow_dns(&tap);
    let mut held = Vec::new();
    for n in 10..20_u16 {
        let asks = format!("10.1.0.{n}:4000");
        rig.pass(n - 9, udp(&asks, SERVER).payload(b"question").build(), 0);
        rig.send_all(0, vec![udp(SERVER, &asks).payload(b"answer").build(); 40]);
        held.push(copies.try_iter().filter(|it| it.held.is_some()).count());
    }
    assert_eq!(held, [32, 32, 32, 32, 32, 32, 32, 32, 1, 1]);
}

/// Without a receiver of the copies, answers are sent at once and take no place.
#[test]
fn answers_that_cannot_be_copied_take_no_place() {
    let mut rig = Rig::new_with_frames(parts(1), 8192);
    let (tap, copies) = DnsTap::new(16, MAX_HOLD);
    rig.follow_dns(&tap);
    ask(&mut rig);
    drop(copies);
    for _ in 0..300 {
        assert_eq!(rig.send(RESOLVER, answer().build()), Outcome::Session);
        rig.receive(POD);
    }
    let (tap, copies) = DnsTap::new(16, MAX_HOLD);
    rig.follow_dns(&tap);
    assert_eq!(rig.send_all(RESOLVER, vec![answer().build()]), []);
    assert_eq!(copies.try_iter().count(), 1);
}

#[test]
fn answers_end_with_their_pod() {
    let (mut rig, _, copies) = followed(parts(1));
    let free = rig.free();
    ask(&mut rig);
    rig.send_all(RESOLVER, vec![answer().build()]);
    assert_eq!(rig.remove_port(POD), [Outcome::PortGone]);
    assert_eq!((rig.free(), copies.try_iter().count()), (free, 2));
    // Another worker serves the pod's port: the snapshot says that it has gone.
    let (mut rig, _, copies) = followed(parts(1));
    ask(&mut rig);
    rig.send_all(RESOLVER, vec![answer().build()]);
    let number = copies.try_iter().find_map(|it| it.held).unwrap().number;
    let mut without = parts(2);
    without.ports[usize::from(POD)] = None;
    rig.publish(without);
    assert_eq!(rig.release(&[number]), [Outcome::PortGone]);
}

#[test]
fn a_denial_that_comes_first_ends_the_answer() {
    let (mut rig, _, copies) = followed(parts(1));
    ask(&mut rig);
    let mut closed = parts(2);
    closed.ports[usize::from(POD)].as_mut().unwrap().from_pod = AclBinding::Closed;
    rig.publish(closed);
    assert_eq!(rig.send_all(RESOLVER, vec![answer().build()]), [Outcome::Closed]);
    assert!(copies.try_iter().all(|it| it.held.is_none()));
}

#[test]
fn segments_with_data_are_held_and_others_pass() {
    let (mut rig, _, copies) = followed(parts(1));
    rig.pass(POD, tcp(ASKS, SERVER).syn().build(), RESOLVER);
    rig.pass(RESOLVER, tcp(SERVER, ASKS).syn_ack().build(), POD);
    rig.pass(POD, tcp(ASKS, SERVER).ack().build(), RESOLVER);
    let flags: Vec<u8> = copies.try_iter().map(|it| it.segment.unwrap().1).collect();
    assert_eq!(flags, [tcp_flags::SYN, tcp_flags::SYN | tcp_flags::ACK]);
    rig.pass(POD, tcp(ASKS, SERVER).data(b"question").build(), RESOLVER);
    let sent = tcp(SERVER, ASKS).data(b"answer").tcp_header(|it| it.sequence_number = 77).build();
    assert_eq!(rig.send_all(RESOLVER, vec![sent]), []);
    let copies: Vec<DnsPacket> = copies.try_iter().collect();
    assert_eq!((&*copies[0].payload, &*copies[1].payload), (&b"question"[..], &b"answer"[..]));
    assert_eq!(copies[1].segment.unwrap().0, 77);
    assert_eq!(rig.release(&[copies[1].held.unwrap().number]), [Outcome::Session]);
    assert!(rig.receive(POD).is_some());
}

#[test]
fn a_resolver_behind_a_service_is_seen_as_the_pod_sees_it() {
    let backends = |to: &str, port| Backends::new(vec![Backend { address: ip(to).into(), port }]);
    for (backend, port) in [("10.1.0.3", 5353), ("10.1.0.2", 53)] {
        let all = backends(backend, port);
        let service = ServicePort {
            name: "kube-system/kube-dns:dns".into(),
            internal: all.clone(),
            any: all.clone(),
            external: all,
            affinity_s: None,
        };
        let mut services = Services::default();
        let entry = Entry { port: Arc::new(service), scope: Scope::Cluster };
        services.add(ip("10.96.0.10").into(), protocol::UDP, 53, entry);
        services.claim(ip("10.96.0.10").into());
        let (mut rig, _, copies) = followed(Parts { services: Arc::new(services), ..parts(1) });
        let question = udp(ASKS, "10.96.0.10:53").payload(b"question").build();
        if port == 53 {
            // The pod is its own resolver: what it says to itself is no answer.
            let seen = rig.pass(POD, question, POD);
            let flow = dataplane::wire::parse(&seen).unwrap().flow.reversed();
            let back = format!("{}:{}", flow.destination.to_ip(), flow.destination_port);
            rig.pass(POD, udp("10.1.0.2:53", &back).payload(b"answer").build(), POD);
            assert_eq!(copies.try_iter().count(), 0);
            continue;
        }
        rig.pass(POD, question, RESOLVER);
        let reply = udp("10.1.0.3:5353", ASKS).payload(b"answer").build();
        assert_eq!(rig.send_all(RESOLVER, vec![reply]), []);
        let copies: Vec<DnsPacket> = copies.try_iter().collect();
        assert_eq!(copies.len(), 2);
        for copy in &copies {
            assert_eq!(copy.flow.destination.to_ip(), ip("10.96.0.10"));
            assert_eq!((copy.flow.source_port, copy.flow.destination_port), (4000, 53));
        }
        rig.release(&[copies[1].held.unwrap().number]);
        let built = udp("10.96.0.10:53", ASKS).payload(b"answer").build();
        assert_is(&rig.receive(POD).unwrap(), &built);
    }
}

/// Fragments and answers wait in different places, and go on or end by the same way.
#[test]
fn what_waits_for_different_things_ends_in_one_round_and_is_counted_once() {
    let (mut rig, _, copies) = followed(parts(1));
    let free = rig.free();
    ask(&mut rig);
    let count = |rig: &Rig, outcome| rig.counters().of(outcome);
    let sessions = count(&rig, Outcome::Session);
    assert_eq!(rig.send_all(RESOLVER, vec![answer().build()]), []);
    let datagram = |id| udp("10.1.0.4:9", SERVER).payload(&[7; 2000]).ip_id(id).fragments(1000);
    assert_eq!(rig.send_all(OTHER, datagram(1)[1..].to_vec()), []);
    assert_eq!(rig.send_all(OTHER, datagram(2)[1..].to_vec()), []);
    // The first datagram's fragments follow their first one; the second's end, and the answer leaves.
    let ends = rig.send_all(OTHER, datagram(1)[..1].to_vec());
    assert_eq!(ends, [Outcome::PolicyAllowed, Outcome::Fragment, Outcome::Fragment]);
    let mut ends = rig.wait(3);
    ends.sort_by_key(|outcome| outcome.name());
    assert_eq!(ends, [Outcome::FragmentUnknown, Outcome::FragmentUnknown, Outcome::Session]);
    assert_is(&rig.receive(POD).unwrap(), &answer().build());
    assert_eq!(count(&rig, Outcome::Session), sessions + 1);
    assert_eq!(count(&rig, Outcome::Fragment), 2);
    assert_eq!(count(&rig, Outcome::FragmentUnknown), 2);
    assert_eq!((rig.free(), copies.try_iter().count()), (free, 2));
}

#[test]
fn a_released_answer_is_traced_from_the_node_that_held_it() {
    let (mut rig, _, copies) = followed(parts(1));
    ask(&mut rig);
    let tracing = Arc::new(Tracing::new(Filter::default(), 100));
    rig.follow(Some(Arc::clone(&tracing)));
    rig.send_all(RESOLVER, vec![answer().build()]);
    let number = copies.try_iter().find_map(|it| it.held).unwrap().number;
    rig.release(&[number]);
    let traces: Vec<PacketTrace> = std::iter::from_fn(|| tracing.take()).collect();
    let nodes = |trace: &PacketTrace| trace.steps.iter().map(|it| it.node).collect::<Vec<_>>();
    let [waits, leaves] = &traces[..] else { panic!("{traces:?}") };
    assert_eq!(nodes(waits)[nodes(waits).len() - 2..], [Node::Dns, Node::Hold]);
    assert_eq!(waits.end, End::Waits);
    assert_eq!(nodes(leaves), [Node::Dns]);
    let out_port = Some("default/pod".into());
    assert_eq!(leaves.end, End::Done { outcome: Outcome::Session, out_port, answered: false });
}
