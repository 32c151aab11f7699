//! Exchanges of datagrams, as programs find them (`bpf/exchanges.h`).

use std::net::SocketAddr;

use dataplane::bpf::Map;

use crate::layout::{Exchange, ExchangePlace, WAYS, bytes};

/// The datagrams between a pod's port and another end.
pub(crate) fn exchange(own_port: u16, other: SocketAddr) -> Exchange {
    let (family, address) = bytes(other.ip());
    let port = other.port().to_be_bytes();
    Exchange { address, own_port, port, family, ..Exchange::default() }
}

/// The first place of an exchange's set; there are `sets` less 1, a power of two less 1.
fn first_place(sets: u32, it: &Exchange) -> u32 {
    let mut address = [0; 8];
    let mut half = |at: usize| {
        address.copy_from_slice(&it.address[at..at + 8]);
        u64::from_ne_bytes(address)
    };
    let [front, back] = [half(0), half(8)];
    let port = u64::from(u16::from_ne_bytes(it.port));
    let ends = u64::from(it.family) << 32 | port << 16 | u64::from(it.own_port);
    let mut hash = front.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ hash >> 32 ^ back).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ hash >> 32 ^ ends).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((hash >> 32) as u32 & sets) * WAYS
}

/// Whether an exchange of a pod is known.
pub(crate) fn is_known(
    map: &Map<ExchangePlace, Exchange>,
    pod: u32,
    sets: u32,
    wanted: &Exchange,
) -> bool {
    let first = first_place(sets, wanted);
    (first..first + WAYS).any(|place| {
        let found = map.get(&ExchangePlace { pod, place });
        found.is_some_and(|found| Exchange { seen: 0, ..found } == *wanted)
    })
}

/// Removes the exchanges of a pod that is gone.
pub(crate) fn remove(map: &Map<ExchangePlace, Exchange>, pod: u32, sets: u32) {
    for place in 0..(sets + 1) * WAYS {
        let _ = map.remove(&ExchangePlace { pod, place });
    }
}
