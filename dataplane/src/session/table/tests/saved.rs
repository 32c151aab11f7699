//! Sessions of an earlier process.

use super::*;

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
