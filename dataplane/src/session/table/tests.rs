//! Sessions found, charged, ended, taken up again.

use std::sync::atomic::Ordering;

use super::*;
use crate::wire::protocol;
use crate::wire::tcp_flags::{ACK, FIN, RST, SYN};

fn flow(n: u32) -> Flow {
    Flow {
        source: acl::Address::from_v4_bits(0x0a01_0002),
        destination: acl::Address::from_v4_bits(0x0a02_0000 + (n >> 16)),
        source_port: n as u16,
        destination_port: 80,
        protocol: protocol::TCP,
    }
}

fn opening(port: u16) -> Opening {
    Opening {
        owner: Owner::port(PortId(port)),
        adjacency: Adjacency(9),
        generation: 1,
        tcp_flags: SYN,
    }
}

fn id(opened: Opened) -> SessionId {
    match opened {
        Opened::New(id) => id,
        Opened::Known(found) => found.id,
    }
}

fn open_one(sessions: &Sessions, flow: &Flow, port: u16) -> Result<SessionId, Refusal> {
    sessions.open(&Tuples::plain(*flow), &opening(port), 0).map(id)
}

fn find(sessions: &Sessions, flow: &Flow, now_s: u32) -> Option<Found> {
    sessions.find(sessions.hash(flow), flow, TupleOrigin::Entering, now_s)
}

#[test]
fn both_directions_find_the_session() {
    let sessions = Sessions::new(16, 1, Timeouts::default());
    open_one(&sessions, &flow(1), 0).unwrap();
    let forward = find(&sessions, &flow(1), 0).unwrap();
    let reverse = find(&sessions, &flow(1).reversed(), 0).unwrap();
    assert!(forward.forward && !reverse.forward);
    assert_eq!(forward.id, reverse.id);
    assert_eq!((forward.adjacency(), reverse.adjacency()), (Adjacency(9), Adjacency::NONE));
    assert!(find(&sessions, &flow(2), 0).is_none());
}

#[test]
fn output_ports_belong_to_one_generation() {
    let sessions = Sessions::new(16, 1, Timeouts::default());
    open_one(&sessions, &flow(1), 0).unwrap();
    let back = flow(1).reversed();
    sessions.stamp(&find(&sessions, &back, 0).unwrap(), 1, Adjacency(4));
    assert_eq!(find(&sessions, &flow(1), 0).unwrap().adjacency(), Adjacency(9));
    assert_eq!(find(&sessions, &back, 0).unwrap().adjacency(), Adjacency(4));
    sessions.stamp(&find(&sessions, &back, 0).unwrap(), 2, Adjacency(5));
    let forward = find(&sessions, &flow(1), 0).unwrap();
    assert!(forward.is_of(2) && forward.adjacency() == Adjacency::NONE);
}

#[test]
fn a_connection_lives_as_long_as_its_state_says() {
    let sessions = Sessions::new(16, 1, Timeouts::default());
    open_one(&sessions, &flow(1), 0).unwrap();
    let see = |flags, flow: &Flow| {
        sessions.touch(&find(&sessions, flow, 0).unwrap(), flags, 0);
    };
    assert!(find(&sessions, &flow(1), 30).is_some(), "no handshake yet");
    assert!(find(&sessions, &flow(1), 31).is_none(), "half open");
    see(SYN | ACK, &flow(1).reversed());
    see(ACK, &flow(1));
    assert!(find(&sessions, &flow(1), 24 * 3600).is_some(), "established");
    see(FIN | ACK, &flow(1));
    assert!(!find(&sessions, &flow(1), 0).unwrap().state().is_over());
    assert!(find(&sessions, &flow(1), 120).is_some(), "one end has closed");
    assert!(find(&sessions, &flow(1), 121).is_none());
    see(RST, &flow(1).reversed());
    assert!(find(&sessions, &flow(1), 0).unwrap().state().is_over());
    assert!(find(&sessions, &flow(1), 10).is_some(), "its last segments are known");
    assert!(find(&sessions, &flow(1), 11).is_none(), "reset");
}

/// Packets after the handshake, of the initiator (`>`) and of the responder: seconds without a packet after which
/// the session ends. A reset is what it says only if no end goes on.
#[test]
fn a_connection_that_goes_on_after_a_reset_is_established() {
    for (packets, idle) in [
        ("<R", 10),
        ("<R >A", 86_400),
        ("<R <A", 86_400),
        (">R <A", 86_400),
        (">R <A >R", 10),
        // Refused by the responder, then a challenge (RFC 5961, section 4).
        (">R >S", 10),
        (">R >S <A", 86_400),
        (">R >S <SA", 30),
        (">R >S <SA >A", 86_400),
        ("<F >R", 10),
        ("<F >R <A", 120),
        ("<F >F <R >A", 10),
    ] {
        let sessions = Sessions::new(16, 1, Timeouts::default());
        open_one(&sessions, &flow(1), 0).unwrap();
        for packet in ["<SA", ">A"].into_iter().chain(packets.split(' ')) {
            let (end, letters) = packet.split_at(1);
            let flags = letters.bytes().map(|letter| match letter {
                b'S' => SYN,
                b'A' => ACK,
                b'F' => FIN | ACK,
                _ => RST,
            });
            let flow = if end == ">" { flow(1) } else { flow(1).reversed() };
            let flags = flags.fold(0, |all, flag| all | flag);
            sessions.touch(&find(&sessions, &flow, 0).unwrap(), flags, 0);
        }
        assert!(find(&sessions, &flow(1), idle).is_some(), "{packets}: {idle}");
        assert!(find(&sessions, &flow(1), idle + 1).is_none(), "{packets}: {idle}");
    }
}

/// Seconds without a packet after which each session ends: packets of the initiator (`>`) and of the responder.
#[test]
fn datagrams_have_a_session_for_as_long_as_an_exchange_needs() {
    const GRE: u8 = 47;
    let (udp, icmp, icmpv6) = (protocol::UDP, protocol::ICMP, protocol::ICMPV6);
    for (protocol, port, packets, idle) in [
        (udp, 80, ">", 30),
        (udp, 80, ">>", 30),
        (udp, 80, "><", 30),
        (udp, 80, "><<<", 30),
        (udp, 80, "><>", 30),
        (udp, 80, "><><", 120),
        (udp, 53, ">", 30),
        (udp, 53, "><", 5),
        (udp, 53, ">><", 5),
        (udp, 53, "><>", 30),
        (udp, 53, "><><", 5),
        (icmp, 0, ">", 10),
        (icmp, 0, "><", 10),
        (icmpv6, 0, "><><", 10),
        (GRE, 0, ">", 30),
        (GRE, 0, "><", 600),
    ] {
        let sessions = Sessions::new(16, 1, Timeouts::default());
        let flow = Flow { protocol, destination_port: port, ..flow(1) };
        open_one(&sessions, &flow, 0).unwrap();
        for packet in packets[1..].chars() {
            let flow = if packet == '>' { flow } else { flow.reversed() };
            sessions.touch(&find(&sessions, &flow, 0).unwrap(), 0, 0);
        }
        let lives = |now_s| find(&sessions, &flow, now_s).is_some();
        assert_eq!((lives(idle), lives(idle + 1)), (true, false), "{protocol} {port} {packets}");
    }
}

#[test]
fn idle_sessions_are_swept_and_their_room_used_again() {
    let sessions = Sessions::new(100, 1, Timeouts::default());
    for n in 0..100 {
        open_one(&sessions, &flow(n), 0).unwrap();
    }
    assert_eq!((sessions.sweep(60, 1000), sessions.used()), (60, 40));
    assert_eq!((sessions.sweep(60, 1000), sessions.used_by(PortId(0))), (40, 0));
    assert_eq!((sessions.sweep(4000, 1000), sessions.used()), (100, 0));
    for n in 0..100 {
        open_one(&sessions, &flow(1000 + n), 0).unwrap();
    }
}

/// Sixteen places are looked at for each that is new, in twenty steps a second; a session lives for 30 seconds.
#[test]
fn a_sweep_keeps_pace_with_a_table_that_grows() {
    let sessions = Sessions::new(100_000, 1, Timeouts::default());
    for step in 0..2_000 {
        for n in 0..25 {
            let tuples = Tuples::plain(flow(25 * step + n));
            sessions.open(&tuples, &opening(0), step / 20).unwrap();
        }
        sessions.sweep(400, step / 20);
        assert!(sessions.used() < 36 * 20 * 25, "step {step}");
    }
}

#[test]
fn a_full_table_finds_every_session() {
    let sessions = Sessions::new(1000, 1, Timeouts::default());
    let open: Vec<u32> = (0..1000).filter(|n| open_one(&sessions, &flow(*n), 0).is_ok()).collect();
    assert_eq!((open.len(), sessions.used()), (1000, 1000));
    assert!(open.iter().all(|n| find(&sessions, &flow(*n), 0).is_some()));
    assert!((1000..3000).all(|n| find(&sessions, &flow(n), 0).is_none()));
}

#[test]
fn a_flood_leaves_every_other_port_its_guarantee() {
    let sessions = Sessions::new(1000, 10, Timeouts::default());
    sessions.set_ports(10, false);
    let flood = |flows: Range<u32>| {
        for n in flows {
            open_one(&sessions, &flow(n), 0).unwrap();
        }
    };
    flood(0..5000);
    assert!((490..=500).contains(&sessions.used_by(PortId(0))), "the shared half");
    for port in 1..10 {
        let flows = (0..50).map(|n| flow(0x1_0000 * u32::from(port) + n));
        for flow in flows.clone() {
            open_one(&sessions, &flow, port).unwrap();
        }
        assert!(flows.clone().all(|flow| find(&sessions, &flow, 0).is_some()));
    }
    flood(5000..9000);
    assert!(
        (1..10).all(|port| sessions.used_by(PortId(port)) == 50),
        "no other port lost a session"
    );
}

/// A pod that asks questions or opens short connections for ever.
#[test]
fn the_oldest_sessions_of_an_owner_make_room_for_its_new_ones() {
    let sessions = Sessions::new(1000, 2, Timeouts::default());
    sessions.set_ports(2, false);
    let see = |flow: &Flow, flags, now_s| {
        sessions.touch(&find(&sessions, flow, now_s).unwrap(), flags, now_s);
    };
    // Established, never to be given up while there are others.
    for n in 0..100 {
        open_one(&sessions, &flow(n), 0).unwrap();
        see(&flow(n).reversed(), SYN | ACK, 0);
        see(&flow(n), ACK, 0);
    }
    for n in 100..20_000 {
        let (now_s, flow) = (n / 2000, flow(n));
        sessions.open(&Tuples::plain(flow), &opening(0), now_s).unwrap();
        see(&flow.reversed(), SYN | ACK, now_s);
        see(&flow, FIN | ACK, now_s);
        see(&flow.reversed(), FIN | ACK, now_s);
    }
    let evicted = sessions.evicted();
    assert!(evicted.closed > 18_000 && evicted.established == 0, "{evicted:?}");
    assert!((0..100).all(|n| find(&sessions, &flow(n), 9).is_some()));
    assert!(
        find(&sessions, &flow(19_999), 9).is_some() && find(&sessions, &flow(101), 9).is_none()
    );
    // Unanswered connections are evicted before established ones.
    for n in 20_000..30_000 {
        sessions.open(&Tuples::plain(flow(n)), &opening(0), 9).unwrap();
    }
    assert_eq!(sessions.evicted().established, 0);
    assert!(sessions.evicted().unanswered > 1000);
    for n in 20_000..30_000 {
        let Some(found) = find(&sessions, &flow(n), 9) else { continue };
        sessions.touch(&find(&sessions, &flow(n).reversed(), 9).unwrap(), SYN | ACK, 9);
        sessions.touch(&sessions.found(found.id).unwrap(), ACK, 9);
    }
    for n in 30_000..30_400 {
        sessions.open(&Tuples::plain(flow(n)), &opening(0), 9).unwrap();
        see(&flow(n).reversed(), SYN | ACK, 9);
        see(&flow(n), ACK, 9);
    }
    assert!(sessions.evicted().established > 200, "{:?}", sessions.evicted());
    assert!(find(&sessions, &flow(30_399), 9).is_some());
}

/// A remote owner stands for many senders.
#[test]
fn no_remote_sender_ends_an_established_connection_of_another() {
    let sessions = Sessions::new(1000, 2, Timeouts::default());
    sessions.set_ports(2, true);
    let owner = sessions.remote_owner(Address::from_v4_bits(0xc633_6401), false);
    let opening = Opening { owner, ..opening(0) };
    let mut refused = 0;
    for n in 0..2000 {
        let flow = flow(n);
        if sessions.open(&Tuples::plain(flow), &opening, 0).is_err() {
            refused += 1;
            continue;
        }
        sessions.touch(&find(&sessions, &flow.reversed(), 0).unwrap(), SYN | ACK, 0);
        sessions.touch(&find(&sessions, &flow, 0).unwrap(), ACK, 0);
    }
    let open = (0..2000).filter(|n| find(&sessions, &flow(*n), 0).is_some()).count();
    assert_eq!((open + refused, sessions.evicted()), (2000, Default::default()));
    assert!(refused > 1000);
}

#[test]
fn a_port_that_is_gone_takes_no_room() {
    let sessions = Sessions::new(1000, 2, Timeouts::default());
    for n in 0..100 {
        open_one(&sessions, &flow(n), (n % 2) as u16).unwrap();
    }
    sessions.end_of(PortId(0));
    assert_eq!((sessions.used(), sessions.used_by(PortId(0))), (50, 0));
    assert_eq!(sessions.used_by(PortId(1)), 50);
    assert!(find(&sessions, &flow(0), 0).is_none() && find(&sessions, &flow(1), 0).is_some());
}

#[test]
fn workers_that_race_for_a_session_get_the_same_one() {
    let sessions = Sessions::new(4096, 1, Timeouts::default());
    let opened: Vec<Vec<SessionId>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|worker| {
                let sessions = &sessions;
                scope.spawn(move || {
                    let seen = |n| if worker % 2 == 0 { flow(n) } else { flow(n).reversed() };
                    (0..1000).map(|n| open_one(sessions, &seen(n), 0).unwrap()).collect()
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    assert!(opened.iter().all(|ids| *ids == opened[0]));
    assert_eq!(sessions.used(), 1000);
}

/// A client's connection to a service, as the client and the pod behind it see it.
fn service(n: u32) -> Tuples {
    let initiator = flow(n);
    let responder = Flow {
        destination: acl::Address::from_v4_bits(0x0a01_0009),
        destination_port: 8080,
        ..initiator
    };
    Tuples { initiator, responder, return_mac: [1, 2, 3, 4, 5, 6] }
}

#[test]
fn a_translated_session_is_found_where_its_packets_enter_and_where_they_left() {
    let sessions = Sessions::new(16, 1, Timeouts::default());
    let Tuples { initiator, responder, .. } = service(1);
    sessions.open(&service(1), &opening(0), 0).unwrap();
    let find = |flow: &Flow, origin| {
        let found = sessions.find(sessions.hash(flow), flow, origin, 0)?;
        assert_eq!(sessions.tuples(&found), Some(service(1)));
        Some(found.forward)
    };
    let cases = [
        (initiator, Some(true), None),
        (initiator.reversed(), None, Some(false)),
        (responder, None, Some(true)),
        (responder.reversed(), Some(false), None),
    ];
    for (flow, entering, quoted) in cases {
        assert_eq!(find(&flow, TupleOrigin::Entering), entering, "{flow:?}");
        assert_eq!(find(&flow, TupleOrigin::Quoted), quoted, "{flow:?}");
    }
    assert_eq!(sessions.iter().map(|(_, tuples)| tuples).collect::<Vec<_>>(), [service(1)]);
    sessions.end_of(PortId(0));
    assert_eq!(find(&initiator, TupleOrigin::Entering), None);
    assert_eq!(sessions.used(), 0);
    // Nothing of it is left in the index either: its room can be used again.
    for n in 0..16 {
        sessions.open(&service(n), &opening(0), 0).unwrap();
    }
}

#[test]
fn a_responder_can_tell_its_connections_apart() {
    let sessions = Sessions::new(16, 1, Timeouts::default());
    sessions.open(&service(1), &opening(0), 0).unwrap();
    let direct = service(1).responder;
    assert_eq!(open_one(&sessions, &direct, 0), Err(Refusal::Taken));
    let reply = sessions.open(&Tuples::plain(direct.reversed()), &opening(0), 0);
    assert!(matches!(reply, Ok(Opened::Known(found)) if !found.forward));
    // The same connection is found, not made twice.
    let again = sessions.open(&service(1), &opening(0), 0);
    assert!(matches!(again, Ok(Opened::Known(_))));
    // As seen from another port it can be told apart.
    let elsewhere = Flow { source_port: 999, ..direct };
    let tuples = Tuples { responder: elsewhere, ..Tuples::plain(direct) };
    assert!(matches!(sessions.open(&tuples, &opening(0), 0), Ok(Opened::New(_))));
    let found = find(&sessions, &direct, 0).unwrap();
    assert_eq!(sessions.tuples(&found), Some(tuples));
    // What is idle is in nobody's way.
    let later = sessions.open(&Tuples::plain(direct), &opening(0), 100_000);
    assert!(matches!(later, Ok(Opened::New(_))));
}

/// A pod uses a port with the pod behind a service, and then with the service.
#[test]
fn a_port_serves_again_once_its_connection_is_over() {
    let sessions = Sessions::new(16, 1, Timeouts::default());
    let direct = service(1).responder;
    open_one(&sessions, &direct, 0).unwrap();
    for (flags, forward) in [(FIN | ACK, true), (FIN | ACK, false)] {
        assert!(matches!(sessions.open(&service(1), &opening(0), 0), Err(Refusal::Taken)));
        let flow = if forward { direct } else { direct.reversed() };
        sessions.touch(&find(&sessions, &flow, 0).unwrap(), flags, 0);
    }
    let late = Opening { tcp_flags: ACK, ..opening(0) };
    assert!(matches!(sessions.open(&service(1), &late, 0), Err(Refusal::Taken)), "no SYN");
    assert!(matches!(sessions.open(&service(1), &opening(0), 0), Ok(Opened::New(_))));
    assert_eq!(sessions.used(), 1);
}

#[test]
fn sessions_outlive_the_process() {
    let folder = testkit::TempDir::new("sessions");
    let path = folder.path().join("sessions");
    let open = |capacity| Sessions::in_file(&path, capacity, 4, Timeouts::default()).unwrap();
    let sessions = open(100);
    for n in 0..20 {
        open_one(&sessions, &flow(n), 1).unwrap();
    }
    sessions.open(&service(40), &opening(2), 0).unwrap();
    sessions.end(&find(&sessions, &flow(3), 0).unwrap());
    drop(sessions);

    let sessions = open(100);
    assert_eq!((sessions.used(), sessions.used_by(PortId(1))), (20, 0));
    assert!(find(&sessions, &flow(3), 0).is_none());
    let found = find(&sessions, &flow(7).reversed(), 0).unwrap();
    assert!(!found.is_of(1) && found.adjacency() == Adjacency::NONE, "to be re-evaluated");
    let translated = find(&sessions, &service(40).initiator, 0).unwrap();
    assert_eq!(sessions.tuples(&translated), Some(service(40)));
    sessions.claim(&found, || Owner::port(PortId(1)));
    sessions.claim(&found, || Owner::port(PortId(2)));
    assert_eq!((sessions.used_by(PortId(1)), sessions.used_by(PortId(2))), (1, 0));
    sessions.end(&find(&sessions, &flow(7), 0).unwrap());
    sessions.end(&find(&sessions, &flow(8), 0).unwrap());
    assert_eq!((sessions.used(), sessions.used_by(PortId(1))), (18, 0));
    // There is room for the rest, and no place is given twice.
    for n in 100..182 {
        open_one(&sessions, &flow(n), 3).unwrap();
    }
    assert!((100..182).all(|n| find(&sessions, &flow(n), 0).is_some()));
    open_one(&sessions, &flow(200), 3).unwrap();
    assert!(sessions.used() <= 100 && sessions.used_by(PortId(1)) == 0);
    drop(sessions);
    // A larger table keeps what was in the smaller one.
    let before = open(100);
    let lived: Vec<u32> = (100..182).filter(|n| find(&before, &flow(*n), 0).is_some()).collect();
    assert!(lived.len() > 50);
    drop(before);
    let sessions = open(300);
    assert!(lived.iter().all(|n| find(&sessions, &flow(*n), 0).is_some()));
    let used = sessions.used();
    for n in 300..450 {
        open_one(&sessions, &flow(n), 2).unwrap();
    }
    assert_eq!(sessions.used(), used + 150);
    drop(sessions);
    let sessions = open(300);
    assert_eq!(sessions.used(), used + 150);
    drop(sessions);
    // A smaller one keeps as many as it has room for.
    assert_eq!(open(50).used(), 50);
    std::fs::write(&path, vec![0xff; 20_000]).unwrap();
    assert_eq!(open(100).used(), 0);
}

/// A switch that is replaced by one with a smaller table: the size is the next process's, and what fits stays,
/// wherever in the larger table it was.
#[test]
fn a_smaller_table_keeps_the_sessions_that_fit() {
    let folder = testkit::TempDir::new("sessions");
    let path = folder.path().join("sessions");
    let open = |capacity| Sessions::in_file(&path, capacity, 4, Timeouts::default()).unwrap();
    let sessions = open(400);
    for n in 0..300 {
        open_one(&sessions, &flow(n), 1).unwrap();
    }
    sessions.open(&service(1000), &opening(2), 7).unwrap();
    (20..290).for_each(|n| sessions.end(&find(&sessions, &flow(n), 0).unwrap()));
    drop(sessions);
    let sessions = open(100);
    assert_eq!((sessions.capacity(), sessions.used()), (100, 31));
    assert!((0..20).chain(290..300).all(|n| find(&sessions, &flow(n), 0).is_some()));
    let translated = find(&sessions, &service(1000).initiator, 7).unwrap();
    assert_eq!(sessions.tuples(&translated), Some(service(1000)));
    assert_eq!(sessions.usage(&translated).created_s, Some(7));
    for n in 400..469 {
        open_one(&sessions, &flow(n), 3).unwrap();
    }
    assert_eq!((sessions.used(), sessions.evicted()), (100, Default::default()));
}

#[test]
fn a_session_has_an_age_an_expiry_and_on_demand_counters() {
    let folder = testkit::TempDir::new("sessions");
    let path = folder.path().join("sessions");
    let open = || Sessions::in_file(&path, 64, 4, Timeouts::default()).unwrap();
    let sessions = open();
    let opened = Opening { generation: (1 << 31) + 3, ..opening(0) };
    sessions.open(&Tuples::plain(flow(1)), &opened, 40).unwrap();
    let found = find(&sessions, &flow(1), 45).unwrap();
    let unused = Usage { created_s: Some(40), generation: 3, ..Usage::default() };
    assert_eq!(sessions.usage(&found), unused);
    assert_eq!(sessions.expires_in_s(&found, 45), 25, "30 s without a reply");
    assert!(!sessions.counts_packets());
    sessions.count(found.id, 100);
    sessions.count_at(sessions.guess(sessions.hash(&flow(1))), 60);
    let used = Usage { packets: 2, bytes: 160, ..unused };
    assert_eq!(sessions.usage(&found), used);
    drop(sessions);
    // The next process goes on counting.
    let sessions = open();
    let found = find(&sessions, &flow(1), 45).unwrap();
    assert_eq!(sessions.usage(&found), used);
    // A session in the same record starts anew, and the one before has no usage any more.
    sessions.end(&found);
    sessions.open(&Tuples::plain(flow(2)), &opening(0), 50).unwrap();
    assert_eq!(sessions.usage(&found), Usage::default());
    let found = find(&sessions, &flow(2), 50).unwrap();
    let unused = Usage { created_s: Some(50), generation: 1, ..Usage::default() };
    assert_eq!(sessions.usage(&found), unused);
}

#[test]
fn a_file_without_accounts_is_taken_over() {
    let folder = testkit::TempDir::new("sessions");
    let path = folder.path().join("sessions");
    let open = || Sessions::in_file(&path, 64, 4, Timeouts::default()).unwrap();
    open_one(&open(), &flow(1), 0).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(4096 + 64 * (64 + 48)).unwrap();
    let sessions = open();
    let found = find(&sessions, &flow(1), 0).expect("it outlives the upgrade");
    assert_eq!(sessions.usage(&found), Usage::default(), "of unknown age");
    sessions.count(found.id, 7);
    assert_eq!(sessions.usage(&found).packets, 1);
}

/// Whatever stands in the records, the table is sound: everything in use can be ended, and
/// then there is room for as many sessions as ever.
#[test]
fn a_damaged_file_loses_sessions_and_nothing_else() {
    let folder = testkit::TempDir::new("sessions");
    let path = folder.path().join("sessions");
    let open = || Sessions::in_file(&path, 64, 4, Timeouts::default()).unwrap();
    let sessions = open();
    for n in 0..40 {
        open_one(&sessions, &flow(n), 1).unwrap();
    }
    drop(sessions);
    let mut bytes = std::fs::read(&path).unwrap();
    // The addresses alone: sessions of others.
    let mut state = 1_u64;
    for record in bytes[4096..4096 + 64 * 64].chunks_mut(64) {
        for byte in &mut record[8..40] {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (state >> 56) as u8;
        }
    }
    std::fs::write(&path, bytes).unwrap();
    let sessions = open();
    assert_eq!((sessions.used(), sessions.damaged()), (40, 0));
    let found: Vec<Found> = sessions.iter().map(|(found, _)| found).collect();
    found.iter().for_each(|found| sessions.end(found));
    assert_eq!(sessions.used(), 0);
    for n in 0..64 {
        open_one(&sessions, &flow(n), 1).unwrap();
    }
}

/// Records that no process leaves take no place: a table full of them opened no connection.
#[test]
fn damaged_records_are_dropped_and_counted() {
    let folder = testkit::TempDir::new("sessions");
    let path = folder.path().join("sessions");
    let open = || Sessions::in_file(&path, 64, 4, Timeouts::default()).unwrap();
    let sessions = open();
    for n in 0..40 {
        open_one(&sessions, &flow(n), 1).unwrap();
    }
    drop(sessions);
    let whole = std::fs::read(&path).unwrap();
    let mut state = 1_u64;
    let mut noise = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    for all_ones in [true, false] {
        let mut bytes = whole.clone();
        bytes[4096..4096 + 64 * 32].fill_with(|| if all_ones { 0xff } else { noise() });
        std::fs::write(&path, bytes).unwrap();
        let sessions = open();
        assert_eq!(sessions.used(), 8, "the undamaged ones");
        let in_use = if all_ones { 32 } else { sessions.damaged() };
        assert!(in_use > 8 && sessions.damaged() == in_use);
        assert!((32..40).all(|n| find(&sessions, &flow(n), 0).is_some()));
        for n in 100..156 {
            open_one(&sessions, &flow(n), 1).unwrap();
        }
    }
}

/// A worker may still hold what it found when the session has ended and another one has its record.
#[test]
fn a_session_found_before_its_end_changes_no_later_one() {
    let sessions = Sessions::new(16, 1, Timeouts::default());
    let old = open_one(&sessions, &flow(1), 0).unwrap();
    let found = find(&sessions, &flow(1), 0).unwrap();
    sessions.end(&found);
    let new = open_one(&sessions, &flow(2), 0).unwrap();
    assert_eq!(old.index, new.index, "the same record");
    sessions.stamp(&found, 2, Adjacency(9));
    sessions.touch(&found, RST, 0);
    sessions.claim(&found, || Owner::port(PortId(0)));
    let other = find(&sessions, &flow(2), 0).unwrap();
    assert!(!other.is_of(2), "generation 2 never allowed it");
    assert!(!other.state().is_over(), "it was not reset");
    sessions.stamp(&other, 2, Adjacency(9));
    assert!(find(&sessions, &flow(2), 0).unwrap().is_of(2));
}

/// Every bucket is full, so no session finds a place; meanwhile another thread ends whatever it
/// sees.
#[test]
fn a_session_without_a_place_gives_its_record_back_once() {
    let sessions = Sessions::new(64, 1, Timeouts::default());
    for n in 0..100_000_u64 {
        sessions.index.insert(n.wrapping_mul(0x9e37_79b9_7f4a_7c15), 1_000);
    }
    let done = std::sync::atomic::AtomicBool::new(false);
    let mut opened = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                sessions.end_of(PortId(0));
            }
        });
        opened = (0..100_000).filter(|n| open_one(&sessions, &flow(*n), 0).is_ok()).count();
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(opened, 0);
    assert_eq!((sessions.used(), sessions.used_by(PortId(0))), (0, 0));
    let mut free: Vec<u32> = std::iter::from_fn(|| {
        let record = sessions.free.own().take();
        record.or_else(|| sessions.free.find())
    })
    .collect();
    free.sort_unstable();
    assert_eq!(free, (0..64).collect::<Vec<_>>());
}

/// A session that ends while it is opened leaves nothing in the index.
#[test]
fn a_session_ended_while_it_is_opened_leaves_no_trace() {
    let sessions = Sessions::new(64, 1, Timeouts::default());
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                sessions.end_of(PortId(0));
            }
        });
        for n in 0..300_000 {
            let _ = open_one(&sessions, &flow(n), 0);
        }
        done.store(true, Ordering::Relaxed);
    });
    sessions.end_of(PortId(0));
    assert_eq!((sessions.used(), sessions.used_by(PortId(0))), (0, 0));
    assert_eq!(sessions.index.in_use(), 0, "slots that lead nowhere");
}

#[test]
fn a_session_of_a_departed_address_is_known_until_it_has_ended() {
    let sessions = Sessions::new(16, 1, Timeouts::default());
    open_one(&sessions, &flow(1), 0).unwrap();
    sessions.open(&service(2), &opening(0), 0).unwrap();
    let other = Flow { destination: acl::Address::from_v4_bits(7), ..flow(3) };
    open_one(&sessions, &other, 0).unwrap();
    let departed = [flow(1).destination, service(2).responder.destination];
    let is_departed = |flow: &Flow| {
        let found = find(&sessions, flow, 0).unwrap();
        sessions.has_departed(&found, &sessions.tuples(&found).unwrap())
    };
    assert!(!is_departed(&flow(1)));
    sessions.depart(departed, 5);
    assert!(is_departed(&flow(1)) && is_departed(&service(2).initiator) && !is_departed(&other));
    // A worker that decides by generation 4 may still make sessions of the pod that is gone.
    assert!(sessions.end_departed(4));
    assert_eq!(sessions.used(), 3);
    // One that generation 5 allowed is the next pod's.
    let next = Opening { generation: 5, ..opening(0) };
    sessions.open(&Tuples::plain(flow(4)), &next, 0).unwrap();
    assert!(!is_departed(&flow(4)));
    assert!(!sessions.end_departed(5));
    assert_eq!(sessions.used(), 2);
    assert!(find(&sessions, &other, 0).is_some() && find(&sessions, &flow(4), 0).is_some());
    // All addresses at once.
    sessions.depart_all(6);
    assert!(is_departed(&other) && is_departed(&flow(4)));
    let last = Opening { generation: 6, ..opening(0) };
    sessions.open(&Tuples::plain(flow(5)), &last, 0).unwrap();
    assert!(sessions.end_departed(5) && !is_departed(&flow(5)));
    assert_eq!(sessions.used(), 3);
    assert!(!sessions.end_departed(6));
    assert_eq!(sessions.used(), 1);
    assert!(find(&sessions, &flow(5), 0).is_some());
}
