//! Fragments in any order.

use std::sync::Arc;

use acl::{Action, AddressMap, PortRange, Rule, Table};
use dataplane::services::{Backend, Backends, Entry, Scope, ServicePort, Services};
use dataplane::wire::protocol;
use dataplane::{AclBinding, Outcome, Parts};
use proptest::prelude::*;
use testkit::packet::{tcp, udp};

use crate::nodes::rig::{FRAMES, Rig, assert_is, host, ip, pod, uplink};

const CLIENT: u16 = 0;
const SERVER: u16 = 1;
const OTHER: u16 = 2;
const UPLINK: u16 = 4;

/// Clients, and a server that takes UDP on port 5353 only, also as services on port 53.
fn parts() -> Parts {
    let map = Arc::new(AddressMap::default());
    let rules = vec![
        Rule::new(Action::Permit, "5353")
            .protocol(protocol::UDP)
            .destination_ports(PortRange::one(5353)),
        Rule::new(Action::Deny, "the rest"),
    ];
    let mut ports = vec![
        pod("default/client", &["10.1.0.2", "fd01::2"]),
        pod("default/server", &["10.1.0.3", "fd01::3"]),
        pod("default/other", &["10.1.0.4", "fd01::4"]),
        host(),
        uplink([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 9], 1500),
    ];
    let table = Table::compile(rules.into(), &map);
    ports[usize::from(SERVER)].as_mut().unwrap().to_pod = AclBinding::Table(Arc::new(table));
    let mut services = Services::default();
    for (vip, server) in [("10.96.0.1", "10.1.0.3"), ("fd96::1", "fd01::3")] {
        let backend = Backend { address: ip(server).into(), port: 5353 };
        let port = ServicePort { internal: Backends::new(vec![backend]), ..ServicePort::default() };
        let entry = Entry { port: Arc::new(port), scope: Scope::Cluster };
        services.add(ip(vip).into(), protocol::UDP, 53, entry);
    }
    let node_addresses = vec![ip("192.0.2.1")];
    let services = Arc::new(services);
    Parts { generation: 1, ports, addresses: map, services, node_addresses, ..Parts::default() }
}

/// Packets that left by a port.
fn received(rig: &mut Rig, port: u16) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| rig.receive(port)).collect()
}

fn datagram(from: &str, to: &str, id: u32) -> Vec<Vec<u8>> {
    udp(from, to).payload(&[7; 600]).ip_id(id).fragments(104)
}

/// Lets so much time pass that nothing waits any more.
fn wait(rig: &mut Rig) -> Vec<Outcome> {
    rig.now_s += 3;
    rig.send_all(CLIENT, Vec::new())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// However a datagram's fragments are ordered and grouped into vectors, the same leave.
    #[test]
    fn any_order_gives_the_same_fragments(
        v4: bool,
        through_service: bool,
        order in Just((0..6_usize).collect::<Vec<_>>()).prop_shuffle(),
        vectors in prop::collection::vec(1..4_usize, 6),
    ) {
        let (client, server, vip) = match v4 {
            true => ("10.1.0.2:4000", "10.1.0.3:5353", "10.96.0.1:53"),
            false => ("[fd01::2]:4000", "[fd01::3]:5353", "[fd96::1]:53"),
        };
        let to = if through_service { vip } else { server };
        let sent = datagram(client, to, 9);
        prop_assert_eq!(sent.len(), 6);
        let mut rig = Rig::new(parts());
        let mut ends = Vec::new();
        let mut left = order.iter().map(|n| sent[*n].clone());
        for count in vectors {
            ends.extend(rig.send_all(CLIENT, left.by_ref().take(count).collect()));
        }
        ends.sort_by_key(|outcome| outcome.name());
        let mut expected = vec![Outcome::Fragment; 5];
        expected.push(Outcome::PolicyAllowed);
        prop_assert_eq!(ends, expected);
        let mut came = received(&mut rig, SERVER);
        prop_assert_eq!(came.len(), 6);
        for wanted in datagram(client, server, 9) {
            let essence = crate::nodes::rig::essence(&wanted);
            let at = came.iter().position(|frame| crate::nodes::rig::essence(frame) == essence);
            prop_assert!(at.is_some(), "one is missing");
            came.remove(at.unwrap());
        }
        prop_assert_eq!(rig.free(), FRAMES);
    }
}

#[test]
fn what_waits_follows_its_first_at_once_and_in_order() {
    let mut rig = Rig::new(parts());
    let sent = datagram("10.1.0.2:4000", "10.1.0.3:5353", 9);
    assert!(rig.send_all(CLIENT, sent[1..].to_vec()).is_empty(), "they have no end yet");
    assert!(rig.receive(SERVER).is_none());
    assert_eq!(rig.free(), FRAMES - 5);
    let ends = rig.send_all(CLIENT, sent[..1].to_vec());
    assert_eq!(ends[0], Outcome::PolicyAllowed);
    assert_eq!(ends[1..], [Outcome::Fragment; 5]);
    for fragment in sent {
        assert_is(&rig.receive(SERVER).unwrap(), &fragment);
    }
}

#[test]
fn a_first_fragment_that_is_refused_ends_the_others() {
    let mut rig = Rig::new(parts());
    let sent = datagram("10.1.0.2:4000", "10.1.0.3:80", 9);
    assert!(rig.send_all(CLIENT, sent[1..3].to_vec()).is_empty());
    let ends = rig.send_all(CLIENT, sent[..1].to_vec());
    assert_eq!(ends, [Outcome::PolicyDenied, Outcome::FragmentUnknown, Outcome::FragmentUnknown]);
    // Those that come after it need not wait.
    assert_eq!(rig.send_all(CLIENT, sent[3..].to_vec()), [Outcome::FragmentUnknown; 3]);
    assert!(rig.receive(SERVER).is_none());
    assert_eq!(rig.free(), FRAMES);
}

/// Bytes that overlap the headers which decided: of a second first fragment, and of a later one that begins inside
/// of TCP's header (RFC 1858, RFC 3128).
#[test]
fn fragments_that_overlap_headers_carry_nothing_past_policies() {
    for (client, server) in [("10.1.0.2", "10.1.0.3"), ("[fd01::2]", "[fd01::3]")] {
        let mut rig = Rig::new(parts());
        let from = format!("{client}:4000");
        let of = |port: u16| datagram(&from, &format!("{server}:{port}"), 9);
        let (allowed, denied) = (of(5353), of(80));
        assert_eq!(rig.send_all(CLIENT, allowed[..1].to_vec()), [Outcome::PolicyAllowed]);
        assert_eq!(rig.send_all(CLIENT, denied[..1].to_vec()), [Outcome::PolicyDenied]);
        assert_eq!(received(&mut rig, SERVER).len(), 1, "not the second");
        // What follows belongs to the one that the receiver has.
        assert_eq!(rig.send_all(CLIENT, allowed[1..2].to_vec()), [Outcome::Fragment]);
        received(&mut rig, SERVER);

        let segment = tcp(&from, &format!("{server}:80")).ip_id(10);
        for bytes in [&[0; 8][..], &[0; 64]] {
            let over_the_ports = vec![segment.fragment(8, true, bytes)];
            assert_eq!(rig.send_all(CLIENT, over_the_ports), [Outcome::MalformedIp]);
        }
        // A first fragment without all of its header decides nothing.
        let cut = vec![segment.fragment(0, true, &[0; 8])];
        assert_eq!(rig.send_all(CLIENT, cut), [Outcome::MalformedTransport]);
        assert_eq!(received(&mut rig, SERVER).len(), 0);
        wait(&mut rig);
        assert_eq!(rig.free(), FRAMES);
    }
}

#[test]
fn who_waits_in_vain_ends_after_a_while() {
    let mut rig = Rig::new(parts());
    let sent = datagram("10.1.0.2:4000", "10.1.0.3:5353", 9);
    assert!(rig.send_all(CLIENT, sent[1..].to_vec()).is_empty());
    assert_eq!(wait(&mut rig), [Outcome::FragmentUnknown; 5]);
    assert_eq!(rig.free(), FRAMES);
    // The first does not find them any more.
    assert_eq!(rig.send(CLIENT, sent[0].clone()), Outcome::PolicyAllowed);
    assert_eq!(received(&mut rig, SERVER).len(), 1);
}

#[test]
fn fragments_without_end_leave_room_for_other_ports() {
    let mut rig = Rig::new(parts());
    let patient = datagram("10.1.0.4:4000", "10.1.0.3:5353", 9);
    assert!(rig.send_all(OTHER, patient[1..].to_vec()).is_empty());
    let mut limited = 0;
    for id in 0..5_000 {
        let flood = datagram("10.1.0.2:4000", "10.1.0.3:5353", id);
        let ends = rig.send_all(CLIENT, flood[1..].to_vec());
        assert!(ends.iter().all(|end| *end == Outcome::FragmentLimit), "{ends:?}");
        limited += ends.len();
        assert!(rig.free() >= FRAMES * 7 / 8, "frames wait without bound");
    }
    let held = FRAMES - rig.free() - (patient.len() - 1);
    assert_eq!(limited + held, 25_000);
    // The flood pushed out its own fragments only.
    let ends = rig.send_all(OTHER, patient[..1].to_vec());
    assert_eq!(ends.len(), 6);
    assert_eq!(received(&mut rig, SERVER).len(), 6);
    assert_eq!(wait(&mut rig).len(), held);
    assert_eq!(rig.free(), FRAMES);
}

#[test]
fn one_datagram_has_only_so_many_fragments_waiting() {
    let mut rig = Rig::new_with_frames(parts(), 4096);
    let fragment = |n: usize| {
        udp("10.1.0.2:4000", "10.1.0.3:5353").ip_id(9).fragment(64 + 8 * n, true, &[1; 8])
    };
    let mut ends = Vec::new();
    for n in 0..200 {
        ends.extend(rig.send_all(CLIENT, vec![fragment(n)]));
    }
    assert_eq!(ends, [Outcome::FragmentLimit; 72]);
    assert_eq!(wait(&mut rig).len(), 128);
    assert_eq!(rig.free(), 4096);
}

#[test]
fn a_port_that_goes_takes_what_waits_with_it() {
    let mut rig = Rig::new(parts());
    let sent = datagram("10.1.0.2:4000", "10.1.0.3:5353", 9);
    rig.send_all(CLIENT, sent[1..].to_vec());
    assert_eq!(rig.remove_port(CLIENT), [Outcome::PortGone; 5]);
    assert_eq!(rig.free(), FRAMES);
}

#[test]
fn fragments_from_outside_wait_as_well() {
    let mut rig = Rig::new(parts());
    let sent = datagram("198.51.100.1:4000", "10.1.0.3:5353", 9);
    assert!(rig.send_all(UPLINK, sent[1..].to_vec()).is_empty());
    assert_eq!(rig.send_all(UPLINK, sent[..1].to_vec()).len(), 6);
    // The same identification from another port is another datagram.
    assert!(
        rig.send_all(SERVER, datagram("10.1.0.3:5353", "10.1.0.2:1", 9)[1..].to_vec()).is_empty()
    );
}
