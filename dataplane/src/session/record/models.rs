//! Models of a record under loom: small, and run in every order of their threads that matters.

use std::sync::Arc;

use acl::Address;

use super::*;
use crate::PortId;

const OWNER: Owner = Owner::port(PortId(1));

fn flow(n: u32) -> Flow {
    Flow {
        source: Address::from_v4_bits(n),
        destination: Address::from_v4_bits(!n),
        source_port: n as u16,
        destination_port: !n as u16,
        protocol: 17,
    }
}

fn open(record: &Record, n: u32) -> u64 {
    let forwarding = forwarding_word(1, Adjacency(2), Adjacency::NONE);
    record.open(&flow(n), OWNER, forwarding, (5, ConnectionState::default()), None::<fn()>)
}

fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(run);
}

#[test]
fn model_a_reader_sees_one_session_whole() {
    model(|| {
        let record = Arc::new(Record::default());
        let first = open(&record, 1);
        let other = Arc::clone(&record);
        let writer = loom::thread::spawn(move || {
            assert!(other.close(first));
            open(&other, 2);
        });
        if let Some(entry) = record.read() {
            let n = if entry.sequence == first { 1 } else { 2 };
            assert_eq!(entry.words.flow(), flow(n));
        }
        writer.join().unwrap();
    });
}

/// A note about a session never reaches the next session in the record, whatever both have in common.
#[test]
fn model_a_note_is_about_the_session_that_was_read() {
    model(|| {
        let record = Arc::new(Record::default());
        let first = open(&record, 1);
        let entry = record.read().expect("a session");
        let other = Arc::clone(&record);
        let writer = loom::thread::spawn(move || {
            assert!(other.close(first));
            open(&other, 1)
        });
        record.set_forwarding(entry.sequence, 2, true, Adjacency(9));
        record.set_life(entry.life, life_word(entry.life, 6, ConnectionState(32)));
        let second = writer.join().unwrap();
        let entry = record.read().expect("the second session");
        assert_eq!(entry.sequence, second);
        assert_eq!(
            entry.forwarding,
            forwarding_word(1, Adjacency(2), Adjacency::NONE),
            "generation 2 never saw it"
        );
        assert_eq!((entry.life >> 32, entry.life as u8), (5, 0));
    });
}

#[test]
fn model_a_session_ends_once_and_has_one_owner() {
    model(|| {
        let record = Arc::new(Record::default());
        let sequence = open(&record, 1);
        let threads = [7, 8].map(|port| {
            let record = Arc::clone(&record);
            loom::thread::spawn(move || {
                let changed = record.change_owner(sequence, OWNER, Owner::port(PortId(port)));
                (changed, record.close(sequence))
            })
        });
        let [one, other] = threads.map(|thread| thread.join().unwrap());
        assert!(one.1 ^ other.1, "one of them ended it");
        assert!(!(one.0 && other.0), "one at most changed the owner");
        let changed = if one.0 { Some(7) } else { other.0.then_some(8) };
        let owner = changed.map_or(OWNER, |port| Owner::port(PortId(port)));
        assert!(record.remains().owner() == owner);
    });
}
