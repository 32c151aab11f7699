//! Longest-prefix match on IPv6: exact matches, of the whole address first and then of each
//! prefix length in use.
//!
//! IPv6 plans use few prefix lengths, so a probe for each of them, longest first, answers in
//! few steps, and a change touches one cache line. Hosts and networks have a table each.

mod editor;
mod exact;

use super::memory::Version;
use crate::prefix::mask;
use crate::simd::VECTOR;
use crate::simd::prefetch;
pub(super) use editor::Editor;
use exact::{Exact, View};

/// IPv6 networks as of one version.
#[derive(Debug)]
pub(super) struct V6 {
    version: Version,
    hosts: Exact,
    /// By [`network`].
    nets: Exact,
    /// Lengths of networks in use, longest first.
    lengths: Box<[u8]>,
}

impl V6 {
    /// The number of the longest network around an address, or 0.
    #[inline(always)]
    pub(super) fn lookup(&self, bits: u128) -> u32 {
        let (hosts, nets) = self.views();
        let mut found = hosts.lookup(bits);
        for length in &self.lengths {
            if found != 0 {
                break;
            }
            found = nets.lookup(network(bits, *length));
        }
        found
    }

    /// The same of many, no more than [`VECTOR`].
    #[inline(always)]
    pub(super) fn lookup_each(&self, keys: &[u128], found: &mut [u32]) {
        let (hosts, nets) = self.views();
        let mut homes = [hosts.line(0); VECTOR];
        for (key, home) in keys.iter().zip(&mut homes) {
            *home = hosts.line(hosts.home(*key));
            prefetch(*home);
        }
        // Unresolved keys, by index. Written always and kept if counted, so that nothing depends on
        // guessing a branch right.
        let mut left = [0_u8; VECTOR];
        let mut count = 0;
        for (place, (key, found)) in keys.iter().zip(found.iter_mut()).enumerate() {
            *found = hosts.find(homes[place], *key);
            left[count % VECTOR] = place as u8;
            count += usize::from(*found == 0);
        }
        for length in &self.lengths {
            let places = left;
            let places = &places[..std::mem::take(&mut count)];
            for (place, home) in places.iter().zip(&mut homes) {
                let net = network(keys[usize::from(*place)], *length);
                *home = nets.line(nets.home(net));
                prefetch(*home);
            }
            for (place, home) in places.iter().zip(homes) {
                let at = usize::from(*place);
                found[at] = nets.find(home, network(keys[at], *length));
                left[count % VECTOR] = *place;
                count += usize::from(found[at] == 0);
            }
        }
    }

    #[inline(always)]
    fn views(&self) -> (View<'_>, View<'_>) {
        let memory = self.version.view();
        (self.hosts.view(memory), self.nets.view(memory))
    }

    /// Memory in use, whatever versions share of it.
    pub(super) fn bytes(&self) -> usize {
        self.version.bytes() + self.hosts.bytes() + self.nets.bytes()
    }
}

/// The network of `length` (below 128) around an address in one number: its bits, and after them a
/// 1 that marks the length.
#[inline(always)]
fn network(bits: u128, length: u8) -> u128 {
    bits & mask(length) | 1 << (127 - length)
}
