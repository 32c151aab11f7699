use std::sync::atomic::AtomicBool;

use acl::Address;

use super::*;
use crate::PortId;
use proptest::prelude::*;

/// The short form of the models: one thread ends sessions and opens others in one record, two
/// read it and note things about what they have read.
#[test]
fn a_record_shows_whole_sessions_while_it_changes() {
    let flow = |n: u64| Flow {
        source: Address::from_bits(u128::from(n) << 64 | u128::from(n)),
        destination: Address::from_bits(!u128::from(n)),
        source_port: n as u16,
        destination_port: !n as u16,
        protocol: n as u8,
    };
    let record = Record::default();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let Some(entry) = record.read() else { continue };
                    let n = entry.sequence >> 1;
                    assert_eq!(entry.words.flow(), flow(n), "all of one session");
                    let generation = (entry.forwarding >> 32) as u32;
                    assert!(generation == n as u32 || generation == n as u32 + 1);
                    assert!(entry.owner() == Owner::port(PortId(n as u16 & 0x3fff)));
                    record.set_forwarding(entry.sequence, n + 1, true, Adjacency(1));
                    record.change_owner(entry.sequence, entry.owner(), entry.owner());
                    record.set_life(
                        entry.life,
                        life_word(entry.life, n as u32, ConnectionState(n as u8)),
                    );
                }
            });
        }
        for n in 0..30_000_u64 {
            let forwarding = forwarding_word(n, Adjacency(2), Adjacency(3));
            let owner = Owner::port(PortId(n as u16 & 0x3fff));
            let life = (n as u32, ConnectionState(n as u8));
            let sequence = record.open(&flow(n), owner, forwarding, life, None::<fn()>);
            assert_eq!(sequence >> 1, n);
            let entry = record.read().expect("it is open");
            assert_eq!((entry.life >> 32, entry.life as u8), (n, n as u8), "its own life");
            assert!(record.close(sequence));
        }
        done.store(true, Ordering::Relaxed);
    });
}

proptest! {
    #[test]
    fn words_tell_a_flow_from_its_reverse(
        a in any::<u128>(), b in any::<u128>(), from in any::<u16>(), to in any::<u16>(),
        protocol in any::<u8>(), payer in any::<u16>(), flip in 0..5_usize,
    ) {
        let flow = Flow {
            source: Address::from_bits(a),
            destination: Address::from_bits(b),
            source_port: from,
            destination_port: to,
            protocol,
        };
        let mut stored = Words::of(&flow);
        stored.ends |= TRANSLATED | u64::from(payer);
        prop_assert_eq!(stored.flow(), flow);
        prop_assert_eq!(stored.direction_of(&Words::of(&flow)), Some(true));
        let reversed = Words::of(&flow.reversed());
        prop_assert_eq!(stored.direction_of(&reversed), Some(flow == flow.reversed()));
        let mut other = Words::of(&flow).values();
        other[flip] ^= 1 << 40;
        let other = Words::from_values(other);
        let is_reverse = other == reversed;
        prop_assert_eq!(stored.direction_of(&other), is_reverse.then_some(false));
    }
}
