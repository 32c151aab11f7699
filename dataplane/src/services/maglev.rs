//! Consistent choice of a backend: Maglev hashing (Eisenbud et al., "Maglev: A Fast and Reliable
//! Software Network Load Balancer", NSDI 2016, section 3.4).
//!
//! Every node fills the same table from the same backends, so all of them choose alike,
//! and a backend that comes or goes moves few connections of the others.

use super::Backend;

/// Table sizes: primes, at least a hundred places a backend until the last (as the paper has it). Each is twice
/// the one before, so that a table is at most twice as large as it must be.
const SIZES: [usize; 11] =
    [251, 509, 1021, 2039, 4093, 8191, 16_381, 32_749, 65_521, 131_071, 262_139];

/// Lookup table from hashes to backends of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Maglev {
    /// Up to 255 backends: most services have fewer, and there is a table for each service. Empty for
    /// lists of up to one.
    Few(Box<[u8]>),
    Many(Box<[u16]>),
}

impl Default for Maglev {
    fn default() -> Self {
        Self::Few(Box::default())
    }
}

impl Maglev {
    /// The table of these backends, which depends on their addresses alone where
    /// [`is_of_addresses`] holds.
    pub(super) fn new(backends: &[Backend]) -> Self {
        let is_of_addresses = is_of_addresses(backends);
        let hash = |backend: &Backend, seed| {
            let port = if is_of_addresses { 0 } else { backend.port };
            hash(&Backend { port, ..*backend }, seed)
        };
        let count = backends.len().min(usize::from(u16::MAX));
        if count < 2 {
            return Self::default();
        }
        let size = SIZES.into_iter().find(|size| *size >= 100 * count);
        let size = size.unwrap_or(SIZES[SIZES.len() - 1]);
        const FREE: u16 = u16::MAX;
        let mut table = vec![FREE; size];
        let mut turns: Vec<(usize, usize)> = backends[..count]
            .iter()
            .map(|backend| {
                (hash(backend, 1) as usize % size, hash(backend, 2) as usize % (size - 1) + 1)
            })
            .collect();
        let mut filled = 0;
        loop {
            for (n, (at, skip)) in turns.iter_mut().enumerate() {
                // The size is prime, so a backend's turns visit every place.
                while table[*at] != FREE {
                    *at = (*at + *skip) % size;
                }
                table[*at] = n as u16;
                filled += 1;
                if filled == size {
                    return match count <= usize::from(u8::MAX) {
                        true => Self::Few(table.iter().map(|n| *n as u8).collect()),
                        false => Self::Many(table.into()),
                    };
                }
            }
        }
    }

    /// Size of the table.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Few(table) => size_of_val(&**table),
            Self::Many(table) => size_of_val(&**table),
        }
    }

    /// The place in the list.
    #[inline]
    pub(super) fn choose(&self, hash: u64) -> usize {
        // The upper half of the product with the size: hashes spread over it without a division.
        let place = |size: usize| ((u128::from(hash) * size as u128) >> 64) as usize;
        match self {
            Self::Few(table) if table.is_empty() => 0,
            Self::Few(table) => usize::from(table[place(table.len())]),
            Self::Many(table) => usize::from(table[place(table.len())]),
        }
    }

    /// The backends of all places, in order.
    #[cfg(test)]
    fn places(&self) -> Vec<usize> {
        match self {
            Self::Few(table) => table.iter().copied().map(usize::from).collect(),
            Self::Many(table) => table.iter().copied().map(usize::from).collect(),
        }
    }
}

/// Backends whose tables are small enough for each port to have its own.
const FEW: usize = 64;

/// Whether the choice is that of any other port at the same addresses: there are many, all with one
/// port.
pub(super) fn is_of_addresses(backends: &[Backend]) -> bool {
    backends.len() > FEW && backends.windows(2).all(|pair| pair[0].port == pair[1].port)
}

/// The same on every node, so not keyed at random (FNV-1a with a last mix).
fn hash(backend: &Backend, seed: u8) -> u64 {
    let address = backend.address.bits().to_be_bytes();
    let bytes = address.into_iter().chain(backend.port.to_be_bytes()).chain([seed]);
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    (hash ^ hash >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 11
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backends(numbers: impl IntoIterator<Item = u32>) -> Vec<Backend> {
        let backend =
            |n| Backend { address: acl::Address::from_v4_bits(0x0a01_0000 + n), port: 80 };
        numbers.into_iter().map(backend).collect()
    }

    fn choices(list: &[Backend]) -> Vec<Backend> {
        let maglev = Maglev::new(list);
        let hashes = (0..10_000_u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        hashes.map(|hash| list[maglev.choose(hash)]).collect()
    }

    #[test]
    fn every_backend_gets_its_share() {
        for count in [2, 3, 10, 100, 1000] {
            let list = backends(0..count);
            let maglev = Maglev::new(&list);
            let mut places = vec![0_usize; list.len()];
            maglev.places().iter().for_each(|n| places[*n] += 1);
            let (least, most) = (places.iter().min().unwrap(), places.iter().max().unwrap());
            // The table is filled in turns, so shares differ by one place at most.
            assert!(most - least <= 1, "{count}: {least} to {most}");
        }
    }

    #[test]
    fn one_that_goes_moves_few_connections_of_the_others() {
        let all = backends(0..20);
        let (before, after) = (choices(&all), choices(&all[1..]));
        let kept = std::iter::zip(&before, &after).filter(|(before, after)| before == after);
        let stays = before.iter().filter(|backend| **backend != all[0]).count();
        // The paper finds a few percent moved; an ordinary modulus would move nearly all.
        assert!(kept.count() * 100 > stays * 90);
    }

    #[test]
    fn the_choice_does_not_depend_on_chance() {
        assert_eq!(choices(&backends(0..7)), choices(&backends(0..7)));
        assert_eq!(Maglev::new(&backends(0..2)).places()[..8], [1, 0, 0, 0, 0, 0, 0, 0]);
    }
}
