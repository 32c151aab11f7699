//! Identities: one number for each combination of peer sets in use.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ahash::RandomState;

use super::PeerSetId;
use crate::Identity;
use crate::paged::Paged;

/// Numbers combinations in the order in which they first come up.
///
/// A number keeps its meaning for as long as the lineage lasts, even when no address has it
/// any more: tables may still know it.
#[derive(Debug)]
pub(super) struct Identities {
    known: HashMap<Arc<[PeerSetId]>, Identity, RandomState>,
    pub(super) members: Arc<Paged<Arc<[PeerSetId]>, 64>>,
    /// Networks that have each identity.
    uses: Vec<u32>,
    unused: usize,
    pub(super) lineage: u64,
}

impl Default for Identities {
    fn default() -> Self {
        static LINEAGES: AtomicU64 = AtomicU64::new(1);
        let none: Arc<[PeerSetId]> = Arc::default();
        Self {
            known: HashMap::from_iter([(Arc::clone(&none), Identity::NONE)]),
            members: Arc::new(Paged::filled(1, &none)),
            uses: vec![1],
            unused: 0,
            lineage: LINEAGES.fetch_add(1, Ordering::Relaxed),
        }
    }
}

impl Identities {
    /// Identities there are.
    pub(super) fn count(&self) -> u32 {
        self.uses.len() as u32
    }

    /// The identity of these sets (sorted), for one more network.
    pub(super) fn acquire(&mut self, sets: &[PeerSetId]) -> Identity {
        if let Some(identity) = self.known.get(sets) {
            let uses = &mut self.uses[identity.0 as usize];
            self.unused -= usize::from(*uses == 0);
            *uses += 1;
            return *identity;
        }
        let identity = Identity(self.count());
        let sets: Arc<[PeerSetId]> = sets.into();
        let members = Arc::make_mut(&mut self.members);
        members.grow(self.uses.len() + 1, &Arc::default());
        *members.get_mut(self.uses.len()) = Arc::clone(&sets);
        self.known.insert(sets, identity);
        self.uses.push(1);
        identity
    }

    /// One network less has this identity.
    pub(super) fn release(&mut self, identity: Identity) {
        let uses = &mut self.uses[identity.0 as usize];
        *uses -= 1;
        self.unused += usize::from(*uses == 0);
    }

    /// Whether so many numbers are out of use that it pays to begin anew.
    pub(super) fn is_worn(&self) -> bool {
        self.unused > self.uses.len() / 2 + 4096
    }
}
