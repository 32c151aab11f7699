//! Lifetime and number of addresses, and their return after a restart.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use domain_names::{Change, Limits, NameTable, SavedAddress};
use proptest::prelude::*;

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn ip(n: u16) -> IpAddr {
    let [high, low] = n.to_be_bytes();
    [192, 0, high, low].into()
}

fn limits() -> Limits {
    Limits {
        least: s(30),
        most: s(3600),
        grace: s(5),
        per_name: 3,
        per_pod: 5,
        ..Limits::default()
    }
}

fn table() -> NameTable<String> {
    NameTable::new(limits())
}

fn open(changes: &[Change<String>], n: usize) -> Vec<IpAddr> {
    changes[n].open.clone()
}

#[test]
fn an_address_counts_for_its_ttl_within_bounds() {
    for (ttl_s, life) in [(0, 30), (60, 65), (1_000_000, 3600)] {
        let (mut table, pod, name) = (table(), "x/p".to_owned(), Arc::from("a.b"));
        let answered = table.answer(&pod, &name, &[(ip(1), ttl_s)], s(10));
        assert_eq!(open(&answered.changes, 0), [ip(1)]);
        assert!(table.expire(s(9 + life)).is_empty(), "{ttl_s}");
        let changes = table.expire(s(10 + life));
        assert_eq!((open(&changes, 0), changes[0].lingering.as_slice()), (vec![], &[ip(1)][..]));
    }
}

#[test]
fn an_answer_waits_until_its_addresses_are_in_force() {
    let (mut table, pod, name) = (table(), "x/p".to_owned(), Arc::from("a.b"));
    let first = table.answer(&pod, &name, &[(ip(1), 60)], s(0));
    let again = table.answer(&pod, &name, &[(ip(1), 60)], s(0));
    assert!(again.changes.is_empty() && again.waits_for == first.waits_for, "still under way");
    let more = table.answer(&pod, &name, &[(ip(1), 60), (ip(2), 60)], s(0));
    assert!(more.waits_for > first.waits_for);
    table.in_force(&pod, first.waits_for.unwrap());
    assert!(table.is_pending(&pod, more.waits_for.unwrap()));
    assert_eq!(table.answer(&pod, &name, &[(ip(1), 60)], s(0)).waits_for, None);
    assert_eq!(table.answer(&pod, &name, &[(ip(2), 60)], s(0)).waits_for, more.waits_for);
    // One that lingers has to be opened again.
    table.in_force(&pod, more.waits_for.unwrap());
    assert!(!table.is_pending(&pod, more.waits_for.unwrap()));
    table.expire(s(65));
    let reopened = table.answer(&pod, &name, &[(ip(1), 60)], s(66));
    assert!(reopened.waits_for > more.waits_for);
    assert_eq!(reopened.changes[0].lingering, [ip(2)]);
}

#[test]
fn lingering_addresses_go_with_their_last_connection() {
    let (mut table, pod, name) = (table(), "x/p".to_owned(), Arc::from("a.b"));
    table.answer(&pod, &name, &[(ip(1), 0), (ip(2), 0)], s(0));
    table.expire(s(30));
    assert!(table.has_lingering());
    assert!(table.end_lingering(s(30), |_, _| false).is_empty(), "a worker may be behind");
    let changes = table.end_lingering(s(40), |pod, it| pod == "x/p" && it == ip(2));
    assert_eq!(changes[0].lingering, [ip(2)]);
    assert_eq!(table.end_lingering(s(50), |_, _| false).len(), 1);
    assert!(!table.has_lingering() && table.changes().is_empty());
}

#[test]
fn the_oldest_make_room_and_are_counted() {
    let (mut table, pod) = (table(), "x/p".to_owned());
    let name = |n: u16| Arc::from(format!("n{n}.b"));
    table.answer(&pod, &name(1), &[(ip(1), 100), (ip(2), 200), (ip(3), 300)], s(0));
    let changes = table.answer(&pod, &name(1), &[(ip(4), 400)], s(0)).changes;
    assert_eq!(open(&changes, 0), [ip(2), ip(3), ip(4)]);
    assert_eq!((changes[0].lingering.as_slice(), table.counters().evicted), (&[ip(1)][..], 1));
    let changes =
        table.answer(&pod, &name(2), &[(ip(5), 500), (ip(6), 600), (ip(7), 700)], s(0)).changes;
    assert_eq!(changes.len(), 2, "another name of the pod made room");
    assert_eq!(table.rows(s(0)).filter(|row| row.left.is_some()).count(), 5);
    table.answer(&"x/q".to_owned(), &name(1), &[(ip(1), 100)], s(0));
    assert_eq!(table.rows(s(0)).filter(|row| row.left.is_some()).count(), 6, "pods do not share");
    assert_eq!(table.forget(&pod).len(), 2);
    assert_eq!(table.changes().len(), 1);
}

/// A pod with an accomplice that answers with another address every time.
#[test]
fn answers_that_open_addresses_have_a_pace() {
    let limits = Limits { burst: 3, per_second: 2, ..limits() };
    let (mut table, pod, name) = (NameTable::new(limits), "x/p".to_owned(), Arc::from("a.b"));
    let opens = |table: &mut NameTable<String>, pod: &str, n, now| {
        let answered = table.answer(&pod.to_owned(), &name, &[(ip(n), 60)], now);
        assert_eq!(answered.waits_for.is_some(), !answered.changes.is_empty());
        !answered.changes.is_empty()
    };
    let opened = (0..10).filter(|n| opens(&mut table, &pod, *n, s(1)));
    assert_eq!((opened.count(), table.counters().paced), (3, 7));
    // What is open needs no place; another pod has places of its own.
    table.in_force(&pod, 3);
    let again = table.answer(&pod, &name, &[(ip(2), 60), (ip(50), 60)], s(1));
    assert_eq!((again.changes.len(), again.waits_for), (0, None));
    assert!(!opens(&mut table, &pod, 60, s(1)) && opens(&mut table, "x/q", 60, s(1)));
    let opened = (20..30).filter(|n| opens(&mut table, &pod, *n, s(2)));
    assert_eq!(opened.count(), 2);
    let opened = (30..40).filter(|n| opens(&mut table, &pod, *n, s(100)));
    assert_eq!(opened.count(), 3);
}

#[test]
fn a_restart_keeps_what_is_left() {
    let (mut before, pod, name) = (table(), "x/p".to_owned(), Arc::from("a.b"));
    before.answer(&pod, &name, &[(ip(1), 60), (ip(2), 600)], s(1000));
    let at = SystemTime::UNIX_EPOCH + s(1_800_000_000);
    let mut file = Vec::new();
    SavedAddress::write(&before.to_save(s(1000)), &mut file, at).unwrap();
    let (saved, elapsed) = SavedAddress::<String>::read(&file[..], at + s(100)).unwrap();
    assert_eq!(elapsed, s(100));
    let mut after = table();
    after.restore(saved, elapsed, s(5));
    let rows: Vec<_> = after.rows(s(5)).map(|row| (row.address, row.left)).collect();
    assert_eq!(rows, [(ip(1), None), (ip(2), Some(s(505)))]);
    let changes = after.changes();
    assert_eq!(
        (changes[0].open.as_slice(), changes[0].lingering.as_slice()),
        (&[ip(2)][..], &[ip(1)][..])
    );
    let (_, elapsed) = SavedAddress::<String>::read(&file[..], at - s(100)).unwrap();
    assert_eq!(elapsed, s(0), "a clock that was set back");
    let damaged = b"{\"saved_at\":1}\n{\"pod\":3}";
    assert!(SavedAddress::<String>::read(&damaged[..], at).is_err());
    assert!(SavedAddress::<String>::read(&b""[..], at).is_err());
}

proptest! {
    /// The bounds hold, nothing is open beyond its time, and what was answered last within its time
    /// is open, whatever happens in between.
    #[test]
    fn bounds_hold_at_any_time(
        steps in prop::collection::vec((0..2_u8, 0..3_u8, prop::collection::vec((0..12_u16, 0..100_u32), 0..5), 0..40_u64), 1..60),
    ) {
        let mut table = table();
        let mut now = s(0);
        for (pod, name, addresses, wait) in steps {
            now += s(wait);
            let pod = format!("x/{pod}");
            let name: Arc<str> = format!("{name}.b").into();
            let addresses: Vec<_> = addresses.into_iter().map(|(n, ttl_s)| (ip(n), ttl_s)).collect();
            table.expire(now);
            let answered = table.answer(&pod, &name, &addresses, now);
            if let Some(change) = answered.changes.iter().find(|change| change.name == name) {
                let newest = change.open.iter().filter(|it| addresses.iter().any(|(a, _)| a == *it));
                prop_assert!(newest.count() > 0 || addresses.is_empty());
            }
            table.end_lingering(now, |_, address| address == ip(3));
            for at in ["x/0", "x/1"] {
                let rows: Vec<_> = table.rows(now).filter(|row| row.pod == at).collect();
                let open: Vec<_> = rows.iter().filter(|row| row.left.is_some()).collect();
                prop_assert!(open.len() <= 5 && rows.len() - open.len() <= 5);
                prop_assert!(open.iter().all(|row| row.left <= Some(limits().most)));
                for n in 0..3 {
                    let of_name = open.iter().filter(|row| *row.name == *format!("{n}.b"));
                    prop_assert!(of_name.count() <= 3);
                }
            }
        }
        table.expire(now + limits().most);
        prop_assert!(table.rows(now).all(|row| row.left.is_none()));
    }
}
