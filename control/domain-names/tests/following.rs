//! Answers that count, and their addresses.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use domain::base::iana::{Rcode, Rtype};
use domain::base::{MessageBuilder, Name, Ttl};
use domain::rdata::{A, Aaaa, Cname, Txt};
use domain_names::message::{question, response};
use domain_names::{Answer, Follower, Seen, Segment};

const POD: &str = "10.1.1.2:40000";
const RESOLVER: &str = "10.96.0.10:53";

fn name(text: &str) -> Name<Vec<u8>> {
    text.parse().unwrap()
}

fn ask(id: u16, asked: &str, rtype: Rtype) -> Vec<u8> {
    let mut builder = MessageBuilder::new_vec();
    builder.header_mut().set_id(id);
    builder.header_mut().set_rd(true);
    let mut builder = builder.question();
    builder.push((name(asked), rtype)).unwrap();
    let mut builder = builder.additional();
    builder
        .opt(|opt| {
            opt.set_udp_payload_size(1232);
            Ok(())
        })
        .unwrap();
    builder.finish()
}

/// Records as text: owner, TTL, and an address or `-> ALIAS`.
fn answer(id: u16, asked: &str, rtype: Rtype, records: &[(&str, u32, &str)]) -> Vec<u8> {
    let mut builder = MessageBuilder::new_vec();
    builder.header_mut().set_id(id);
    builder.header_mut().set_qr(true);
    let mut builder = builder.question();
    builder.push((name(asked), rtype)).unwrap();
    let mut builder = builder.answer();
    for (owner, ttl_s, data) in records {
        let (owner, ttl) = (name(owner), Ttl::from_secs(*ttl_s));
        match (data.strip_prefix("-> "), data.parse::<IpAddr>()) {
            (Some(alias), _) => builder.push((owner, ttl, Cname::new(name(alias)))).unwrap(),
            (_, Ok(IpAddr::V4(address))) => builder.push((owner, ttl, A::new(address))).unwrap(),
            (_, Ok(IpAddr::V6(address))) => builder.push((owner, ttl, Aaaa::new(address))).unwrap(),
            _ => {
                let text: Txt<Vec<u8>> = Txt::build_from_slice(data.as_bytes()).unwrap();
                builder.push((owner, ttl, text)).unwrap();
            }
        }
    }
    builder.finish()
}

fn seen(from_pod: bool, payload: &[u8]) -> Seen<'_> {
    let (pod, resolver) = (POD.parse().unwrap(), RESOLVER.parse().unwrap());
    Seen { pod, resolver, from_pod, segment: None, payload }
}

fn wants(name: &str) -> bool {
    name.to_ascii_lowercase().ends_with("example.org")
}

const NOW: Duration = Duration::from_secs(100);

fn addresses(answers: &[Answer]) -> Vec<(String, u32)> {
    let all = answers.iter().flat_map(|answer| &answer.addresses);
    all.map(|(address, ttl_s)| (address.to_string(), *ttl_s)).collect()
}

#[test]
fn aliases_are_followed_inside_the_answer() {
    let records = [
        ("other.example.org", 60, "192.0.2.9"),
        ("a.example.net", 20, "-> b.example.net"),
        ("www.Example.org", 300, "-> a.example.net"),
        ("b.example.net", 60, "192.0.2.1"),
        ("B.example.net", 10, "192.0.2.2"),
        ("b.example.net", 60, "2001:db8::1"),
        ("b.example.net", 60, "a text"),
    ];
    let message = answer(1, "www.example.org", Rtype::A, &records);
    let found = response(&message).unwrap();
    let expected = [("192.0.2.1", 20), ("192.0.2.2", 10)];
    assert_eq!(found.addresses, expected.map(|(it, ttl_s)| (it.parse().unwrap(), ttl_s)));
    let message = answer(1, "www.example.org", Rtype::AAAA, &records);
    let found = response(&message).unwrap();
    assert_eq!(found.addresses, [("2001:db8::1".parse().unwrap(), 20)]);
}

/// A message with an OPT record (RFC 6891) that holds padding (RFC 7830).
fn padded(mut message: Vec<u8>, padding: u16) -> Vec<u8> {
    let additional = u16::from_be_bytes([message[10], message[11]]) + 1;
    message[10..12].copy_from_slice(&additional.to_be_bytes());
    message.extend([0, 0, 41, 0x04, 0xd0, 0, 0, 0, 0]);
    message.extend((padding + 4).to_be_bytes());
    message.extend([0, 12]);
    message.extend(padding.to_be_bytes());
    message.resize(message.len() + usize::from(padding), 0);
    message
}

#[test]
fn padding_and_other_options_change_nothing() {
    let records = [("www.example.org", 300, "192.0.2.1")];
    for padding in [0, 1, 400, 468, 4000] {
        let message = padded(answer(1, "www.example.org", Rtype::A, &records), padding);
        let expected = [("192.0.2.1".parse().unwrap(), 300)];
        assert_eq!(response(&message).unwrap().addresses, expected, "{padding}");
        // Over TCP, in pieces.
        let mut follower = Follower::default();
        let ask = padded(ask(1, "www.example.org", Rtype::A), padding.min(468));
        follower.take(&segment(true, 100, true, b""), wants, NOW);
        follower.take(&segment(false, 900, true, b""), wants, NOW);
        let (ask, message) = (framed(&ask), framed(&message));
        assert!(follower.take(&segment(true, 101, false, &ask), wants, NOW).is_empty());
        let mut found = Vec::new();
        for (piece, at) in message.chunks(700).zip((901..).step_by(700)) {
            found.extend(follower.take(&segment(false, at, false, piece), wants, NOW));
        }
        assert_eq!(addresses(&found), [("192.0.2.1".to_owned(), 300)], "{padding}");
    }
    // Bytes behind the answers are not read: a record that is cut changes nothing either.
    let mut cut = padded(answer(1, "www.example.org", Rtype::A, &records), 400);
    cut.truncate(cut.len() - 1);
    assert_eq!(response(&cut).map(|it| it.addresses.len()), Some(1));
}

#[test]
fn a_circle_of_aliases_ends() {
    let records =
        [("a.example.org", 1, "-> b.example.org"), ("b.example.org", 1, "-> a.example.org")];
    let found = response(&answer(1, "a.example.org", Rtype::A, &records)).unwrap();
    assert!(found.addresses.is_empty());
}

#[test]
fn only_questions_for_addresses_are_questions() {
    let asked = question(&ask(7, "wWw.example.ORG.", Rtype::AAAA)).unwrap();
    assert_eq!((asked.id, &*asked.name, asked.rtype), (7, "wWw.example.ORG", 28));
    assert_eq!(question(&ask(7, "www.example.org", Rtype::MX)), None);
    assert_eq!(question(&answer(7, "www.example.org", Rtype::A, &[])), None);
    assert_eq!(question(b"short"), None);
    assert_eq!(question(&ask(7, "a\\.b.example.org", Rtype::A)), None, "a label with a full stop");
}

#[test]
fn an_answer_counts_once_and_for_its_question_alone() {
    let mut follower = Follower::default();
    let records = [("www.example.org", 60, "192.0.2.1")];
    let good = answer(7, "www.Example.org", Rtype::A, &records);
    let mut take = |seen: &Seen<'_>| addresses(&follower.take(seen, wants, NOW));
    assert!(take(&seen(false, &good)).is_empty(), "never asked");
    take(&seen(true, &ask(7, "www.Example.org", Rtype::A)));
    take(&seen(true, &ask(8, "www.Example.org", Rtype::AAAA)));
    for bad in [
        answer(6, "www.Example.org", Rtype::A, &records),
        answer(7, "www.example.org", Rtype::A, &records),
        answer(7, "ww.Example.org", Rtype::A, &[("ww.example.org", 60, "192.0.2.1")]),
        answer(7, "www.Example.org", Rtype::AAAA, &[("www.example.org", 60, "2001:db8::1")]),
        ask(7, "www.Example.org", Rtype::A),
    ] {
        assert!(take(&seen(false, &bad)).is_empty());
    }
    let elsewhere = |pod: &str, resolver: &str| Seen {
        pod: pod.parse().unwrap(),
        resolver: resolver.parse().unwrap(),
        ..seen(false, &good)
    };
    assert!(take(&elsewhere("10.1.1.2:40001", RESOLVER)).is_empty(), "another port");
    assert!(take(&elsewhere("10.1.1.3:40000", RESOLVER)).is_empty(), "another pod");
    assert!(take(&elsewhere(POD, "10.96.0.11:53")).is_empty(), "another resolver");
    assert!(take(&elsewhere(POD, "10.96.0.10:54")).is_empty(), "another port of it");
    assert_eq!(take(&seen(false, &good)), [("192.0.2.1".to_owned(), 60)]);
    assert!(take(&seen(false, &good)).is_empty(), "answered");
}

#[test]
fn names_that_no_policy_of_the_pod_has_are_not_remembered() {
    let mut follower = Follower::default();
    follower.take(&seen(true, &ask(7, "www.example.net", Rtype::A)), wants, NOW);
    assert_eq!(follower.questions(), 0);
}

#[test]
fn a_truncated_answer_and_an_error_open_nothing() {
    let records = [("www.example.org", 60, "192.0.2.1")];
    let mut truncated = answer(7, "www.example.org", Rtype::A, &records);
    truncated[2] |= 2;
    assert!(response(&truncated).unwrap().is_truncated);
    let mut failed = answer(7, "www.example.org", Rtype::A, &records);
    failed[3] |= Rcode::SERVFAIL.to_int();
    for message in [truncated, failed] {
        let mut follower = Follower::default();
        follower.take(&seen(true, &ask(7, "www.example.org", Rtype::A)), wants, NOW);
        let found = follower.take(&seen(false, &message), wants, NOW);
        assert!(addresses(&found).is_empty());
    }
}

#[test]
fn questions_are_bounded_and_grow_old() {
    let mut follower = Follower::default();
    for id in 0..300 {
        follower.take(&seen(true, &ask(id, "www.example.org", Rtype::A)), wants, NOW);
    }
    assert_eq!(follower.questions(), 256);
    let records = [("www.example.org", 60, "192.0.2.1")];
    let reply = |id| answer(id, "www.example.org", Rtype::A, &records);
    assert!(follower.take(&seen(false, &reply(43)), wants, NOW).is_empty(), "made room");
    assert_eq!(follower.take(&seen(false, &reply(44)), wants, NOW).len(), 1);
    let late = NOW + Duration::from_secs(15);
    assert!(follower.take(&seen(false, &reply(45)), wants, late).is_empty(), "too late");
    follower.expire(late);
    assert_eq!(follower.questions(), 0);
}

fn segment(from_pod: bool, sequence: u32, syn: bool, payload: &[u8]) -> Seen<'_> {
    Seen { segment: Some(Segment { sequence, syn, rst: false }), ..seen(from_pod, payload) }
}

fn framed(message: &[u8]) -> Vec<u8> {
    [&(message.len() as u16).to_be_bytes()[..], message].concat()
}

#[test]
fn answers_over_tcp_count_with_their_last_missing_byte() {
    let mut follower = Follower::default();
    let two = [("www.example.org", 60, "192.0.2.1")];
    let asked: Vec<u8> =
        [7, 8].iter().flat_map(|id| framed(&ask(*id, "www.example.org", Rtype::A))).collect();
    let replied: Vec<u8> = [8, 7]
        .iter()
        .flat_map(|id| framed(&answer(*id, "www.example.org", Rtype::A, &two)))
        .collect();
    let mut take = |seen: &Seen<'_>| follower.take(seen, wants, NOW).len();
    let (here, there) = (u32::MAX - 3, 5000);
    take(&segment(true, here, true, b""));
    take(&segment(false, there, true, b""));
    let (first, second) = asked.split_at(9);
    assert_eq!(take(&segment(true, here.wrapping_add(1), false, first)), 0);
    assert_eq!(take(&segment(true, here.wrapping_add(10), false, second)), 0);
    let half = replied.len() / 2;
    assert_eq!(take(&segment(false, there + 1 + half as u32 + 3, false, &replied[half + 3..])), 0);
    assert_eq!(take(&segment(false, there + 1, false, &replied[..half + 3])), 2);
    assert_eq!(take(&segment(false, there + 1, false, &replied)), 0, "a retransmission");
}

#[test]
fn a_connection_whose_begin_was_not_seen_opens_nothing() {
    let mut follower = Follower::default();
    let records = [("www.example.org", 60, "192.0.2.1")];
    let asked = framed(&ask(7, "www.example.org", Rtype::A));
    let replied = framed(&answer(7, "www.example.org", Rtype::A, &records));
    assert!(follower.take(&segment(true, 1, false, &asked), wants, NOW).is_empty());
    assert!(follower.take(&segment(false, 1, false, &replied), wants, NOW).is_empty());
    // Nor does one that a resolver opens.
    assert!(follower.take(&segment(false, 1, true, &replied), wants, NOW).is_empty());
}

#[test]
fn an_answer_by_tcp_to_a_question_by_udp_does_not_count() {
    let mut follower = Follower::default();
    let pod: SocketAddr = POD.parse().unwrap();
    follower.take(&seen(true, &ask(7, "www.example.org", Rtype::A)), wants, NOW);
    follower.take(&segment(true, 0, true, b""), wants, NOW);
    follower.take(&segment(false, 0, true, b""), wants, NOW);
    let records = [("www.example.org", 60, "192.0.2.1")];
    let replied = framed(&answer(7, "www.example.org", Rtype::A, &records));
    assert!(follower.take(&segment(false, 1, false, &replied), wants, NOW).is_empty());
    assert_eq!(pod.port(), 40000);
}

#[test]
fn of_too_many_connections_the_one_idle_for_longest_is_not_followed() {
    const MOST: u16 = 16;
    let mut follower = Follower::default();
    let records = [("www.example.org", 60, "192.0.2.1")];
    let asked = framed(&ask(7, "www.example.org", Rtype::A));
    let replied = framed(&answer(7, "www.example.org", Rtype::A, &records));
    let mut take = |n: u16, from_pod, sequence, syn, payload: &[u8]| {
        let seen = segment(from_pod, sequence, syn, payload);
        let pod = SocketAddr::new(seen.pod.ip(), 40000 + n);
        follower.take(&Seen { pod, ..seen }, wants, NOW + Duration::from_millis(n.into())).len()
    };
    for n in 0..=MOST {
        take(n, true, 0, true, b"");
        take(n, false, 0, true, b"");
    }
    for (n, answers) in [(0, 0), (1, 1), (MOST, 1)] {
        take(n, true, 1, false, &asked);
        assert_eq!(take(n, false, 1, false, &replied), answers, "connection {n}");
    }
}
