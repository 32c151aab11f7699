//! The port of each address here, in a flat table: looked up for every packet from outside and for every
//! one that opens a connection.
//!
//! Slots are tried one after the other from the one that the hash says, up to an empty one. At least half
//! of them are empty, and the addresses in the others are the cluster's own, so that every lookup is
//! short, whatever a packet asks for.

use std::sync::Arc;

use acl::Address;

use super::PortId;

#[derive(Clone, Copy, Debug)]
struct Slot {
    address: Address,
    /// `None` in an empty slot.
    port: Option<PortId>,
}

const EMPTY: Slot = Slot { address: Address::from_bits(0), port: None };

/// Ports by address; copies share them.
#[derive(Clone, Debug)]
pub(super) struct Owners {
    /// A power of two of them, some of which are empty.
    slots: Arc<[Slot]>,
}

impl Owners {
    /// The last port of each address.
    pub(super) fn new(all: &[(Address, PortId)]) -> Self {
        let count = (2 * all.len() + 1).next_power_of_two();
        let mut slots = vec![EMPTY; count];
        for &(address, port) in all {
            let mut at = place(address) & (count - 1);
            while slots[at].port.is_some() && slots[at].address != address {
                at = (at + 1) & (count - 1);
            }
            slots[at] = Slot { address, port: Some(port) };
        }
        Self { slots: slots.into() }
    }

    /// The port of an address.
    #[inline]
    pub(super) fn find(&self, address: Address) -> Option<PortId> {
        let mask = self.slots.len() - 1;
        let mut at = place(address);
        loop {
            let slot = &self.slots[at & mask];
            if slot.address == address || slot.port.is_none() {
                return slot.port;
            }
            at += 1;
        }
    }
}

/// The slot at which the search for an address begins, in the low bits.
#[inline(always)]
fn place(address: Address) -> usize {
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let (high, low) = ((address.bits() >> 64) as u64, address.bits() as u64);
    ((low ^ high.rotate_left(32)).wrapping_mul(SPREAD) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn address() -> impl Strategy<Value = Address> {
        prop_oneof![
            (0..64_u32).prop_map(|n| Address::from_v4_bits(0x0a01_0000 | n)),
            (0..8_u128).prop_map(|n| Address::from_bits(0xfd01 << 112 | n)),
            Just(Address::from_bits(0)),
            Just(Address::from_bits(u128::MAX)),
        ]
    }

    proptest! {
        #[test]
        fn each_address_has_the_port_that_it_got_last(
            all in prop::collection::vec((address(), any::<u16>()), 0..100),
            asked in prop::collection::vec(address(), 20),
        ) {
            let all: Vec<_> = all.into_iter().map(|(address, n)| (address, PortId(n))).collect();
            let owners = Owners::new(&all);
            let expected: HashMap<Address, PortId> = all.iter().copied().collect();
            for address in all.iter().map(|(address, _)| *address).chain(asked) {
                prop_assert_eq!(owners.find(address), expected.get(&address).copied());
            }
        }
    }

    /// Addresses of one network, as pods have them, must not gather.
    #[test]
    fn few_slots_are_tried() {
        let v4 = |n: u32| Address::from_v4_bits(0x0a01_0000 + n);
        let v6 = |n: u32| Address::from_bits(0xfd01 << 112 | u128::from(n));
        let all: Vec<_> =
            (0..1000).flat_map(|n| [(v4(n), PortId(0)), (v6(n), PortId(0))]).collect();
        let owners = Owners::new(&all);
        let longest = owners.slots.split(|slot| slot.port.is_none()).map(<[Slot]>::len).max();
        assert!(longest < Some(16), "{longest:?} slots in a row");
    }
}
