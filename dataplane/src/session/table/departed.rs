//! Addresses that have changed their pod: no session goes on with the next one.
//!
//! The snapshot that takes an address from a pod has a generation. A session that an earlier generation
//! allowed and that touches the address is the former pod's:
//!
//! - Every session is evaluated again under the new snapshot; at that moment it ends here.
//! - Once every worker decides by that snapshot, no such session can be made any more. One pass over
//!   the table ends those that are left, and the address is forgotten.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use acl::Address;
use ahash::AHashMap;

use super::super::found::is_later;
use super::{Found, Sessions, Tuples};

#[derive(Default)]
pub(super) struct Departed {
    /// Whether there are any, so that workers mostly pay a load.
    any: AtomicBool,
    known: RwLock<Known>,
}

#[derive(Default)]
struct Known {
    /// With the first generation that does not know the address's former pod.
    addresses: AHashMap<Address, u64>,
    /// The first generation after all addresses departed; `None` if they did not.
    all: Option<u64>,
}

impl Known {
    fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.all.is_none()
    }

    fn generations(&self) -> impl Iterator<Item = u64> {
        self.addresses.values().copied().chain(self.all)
    }
}

impl Departed {
    /// Whether a session that `allowed` (the low half of a generation) last was allowed by is a
    /// former pod's.
    fn has(&self, tuples: &Tuples, allowed: u32) -> bool {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let is_before = |generation: &u64| is_later(*generation as u32, allowed);
        if known.all.as_ref().is_some_and(is_before) {
            return true;
        }
        let Tuples { initiator, responder, .. } = tuples;
        let ends =
            [initiator.source, initiator.destination, responder.source, responder.destination];
        ends.iter().any(|end| known.addresses.get(end).is_some_and(is_before))
    }
}

impl Sessions {
    /// Ends every session that touches one of these addresses and was allowed by a generation before
    /// `generation`, which is still to be published: at its next packet under that one, or by
    /// [`Self::end_departed`].
    pub fn depart(&self, addresses: impl IntoIterator<Item = Address>, generation: u64) {
        let mut known = self.departed.known.write().unwrap_or_else(PoisonError::into_inner);
        known.addresses.extend(addresses.into_iter().map(|address| (address, generation)));
        self.departed.any.store(!known.is_empty(), Ordering::Release);
    }

    /// The same of all addresses: what they were is not known any more.
    pub fn depart_all(&self, generation: u64) {
        let mut known = self.departed.known.write().unwrap_or_else(PoisonError::into_inner);
        known.all = Some(generation);
        self.departed.any.store(true, Ordering::Release);
    }

    /// Whether a session is that of a pod which has one of its addresses no longer.
    #[inline]
    pub fn has_departed(&self, found: &Found, tuples: &Tuples) -> bool {
        self.any_departed() && self.departed.has(tuples, (found.forwarding >> 32) as u32)
    }

    /// Whether there are such addresses.
    #[inline]
    pub fn any_departed(&self) -> bool {
        self.departed.any.load(Ordering::Acquire)
    }

    /// Ends the sessions of departed addresses whose generation every worker decides by; `in_force`
    /// is the oldest that one still decides by. Returns whether addresses are left to wait for.
    pub fn end_departed(&self, in_force: u64) -> bool {
        let known = &self.departed.known;
        let done = |generation: u64| generation <= in_force;
        let any = known.read().unwrap_or_else(PoisonError::into_inner).generations().any(done);
        if any {
            for (found, tuples) in self.iter() {
                if self.has_departed(&found, &tuples) {
                    self.end(&found);
                }
            }
        }
        let mut known = known.write().unwrap_or_else(PoisonError::into_inner);
        known.addresses.retain(|_, generation| !done(*generation));
        known.all = known.all.filter(|generation| !done(*generation));
        self.departed.any.store(!known.is_empty(), Ordering::Release);
        !known.is_empty()
    }
}
