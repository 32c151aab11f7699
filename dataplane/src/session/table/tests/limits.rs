//! Sessions of a full table, and of ports with too many.

use super::*;

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
