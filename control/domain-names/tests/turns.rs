//! Turns of pods whose answers open addresses.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use domain_names::{Change, Limits, Turns};

fn change(pod: &str, name: &str, last: u32) -> Change<String> {
    let open = vec![IpAddr::from(Ipv4Addr::from_bits(last))];
    Change { pod: pod.into(), name: name.into(), open, lingering: Vec::new() }
}

fn turns(burst_of_all: u32, per_second_of_all: u32) -> Turns<String, u32> {
    Turns::new(Limits { burst_of_all, per_second_of_all, ..Limits::default() })
}

fn add(turns: &mut Turns<String, u32>, pod: &str, number: u32) {
    let changes = vec![change(pod, "a.test", number)];
    assert_eq!(turns.add(&pod.to_owned(), changes, number), None);
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(1_000_000 + ms)
}

/// A change with so many addresses.
fn add_many(turns: &mut Turns<String, u32>, pod: &str, addresses: u8) {
    let open = (0..addresses).map(|n| IpAddr::from([198, 51, 100, n])).collect();
    let many = Change { open, ..change(pod, "a.test", 0) };
    assert_eq!(turns.add(&pod.to_owned(), vec![many], 0), None);
}

fn take(turns: &mut Turns<String, u32>, at: u64) -> Vec<String> {
    let turns = std::iter::from_fn(|| turns.next(ms(at)));
    turns.map(|turn| turn.changes["a.test"].pod.clone()).collect()
}

#[test]
fn a_pod_that_asks_seldom_waits_for_no_flood() {
    let mut turns = turns(512, 4096);
    let floods: Vec<String> = (0..16).map(|n| format!("x/flood-{n:02}")).collect();
    let mut served = vec![0_u32; 16];
    let mut after = 0;
    for at in 0..20_000 {
        floods.iter().for_each(|pod| add_many(&mut turns, pod, 64));
        // Thirty answers a second.
        if at > 0 && at % 33 == 0 {
            add(&mut turns, "x/quiet", 1);
            let first = turns.next(ms(at)).unwrap();
            assert_eq!(first.changes["a.test"].pod, "x/quiet", "at {at} ms");
        }
        for pod in take(&mut turns, at) {
            let n: usize = pod.strip_prefix("x/flood-").unwrap().parse().unwrap();
            served[n] += 1;
            after += u32::from(at >= 1000) * 64;
        }
    }
    let (least, most) = (served.iter().min().unwrap(), served.iter().max().unwrap());
    assert!(most - least <= 1, "they take turns: {served:?}");
    assert!((19 * 3500..19 * 4600).contains(&after), "{after} addresses in 19 s");
}

#[test]
fn all_pods_together_have_a_pace_in_addresses() {
    let mut turns = turns(100, 1000);
    add_many(&mut turns, "x/a", 60);
    assert_eq!(take(&mut turns, 0).len(), 1);
    add_many(&mut turns, "x/a", 60);
    assert_eq!(take(&mut turns, 0).len(), 1, "below the burst");
    add_many(&mut turns, "x/a", 60);
    assert_eq!((take(&mut turns, 0).len(), take(&mut turns, 20).len()), (0, 0));
    // Another pod halves what each may have.
    add_many(&mut turns, "x/b", 90);
    assert_eq!(take(&mut turns, 21), ["x/b"]);
    add(&mut turns, "x/c", 1);
    assert_eq!(take(&mut turns, 22), ["x/c"], "below its share");
    assert_eq!(take(&mut turns, 600), ["x/a"]);
    add_many(&mut turns, "x/b", 1);
    assert_eq!(take(&mut turns, 60_000), ["x/b"]);
    assert!(!turns.is_waiting() && turns.next(ms(60_001)).is_none());
}

#[test]
fn what_a_pod_has_waiting_is_one_turn_with_the_newest_addresses() {
    let mut turns = turns(4, 4);
    (0..9).for_each(|n| add(&mut turns, "x/p", n));
    let turn = turns.next(ms(0)).unwrap();
    assert_eq!(turn.answers, (0..9).collect::<Vec<_>>());
    assert_eq!((turn.changes.len(), &turn.changes["a.test"]), (1, &change("x/p", "a.test", 8)));
}

#[test]
fn an_answer_waits_behind_what_its_pod_has_waiting_and_for_nothing_else() {
    let mut turns = turns(1, 1);
    let pod = "x/p".to_owned();
    assert_eq!(turns.add(&pod, Vec::new(), 1), Some(1));
    add(&mut turns, "x/p", 2);
    assert_eq!(turns.add(&pod, Vec::new(), 3), None);
    assert_eq!(turns.add(&"x/q".to_owned(), Vec::new(), 4), Some(4));
    // A newer change that is applied out of turn is not undone by the older one.
    turns.supersede(&change("x/p", "a.test", 9));
    let turn = turns.next(ms(0)).unwrap();
    assert!(turn.changes.is_empty() && turn.answers == [2, 3]);
}
