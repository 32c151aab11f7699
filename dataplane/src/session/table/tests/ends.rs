//! The end of sessions while others look.

use super::*;

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
    sessions.count_at(sessions.candidate(sessions.hash(&flow(1))), 60);
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
