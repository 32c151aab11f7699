//! The identities in each peer set: the members of identities, the other way round.

use std::collections::HashMap;

use ahash::RandomState;

use super::PeerSetId;
use crate::Identity;

/// The identities of each peer set that has any.
#[derive(Debug)]
pub(super) struct BySet {
    /// By set: where its identities begin.
    starts: HashMap<PeerSetId, u32, RandomState>,
    /// For each set the number of its identities, and these, ascending.
    identities: Vec<Identity>,
}

impl BySet {
    /// Those of identities with these members, in order.
    pub(super) fn new<'a>(members: impl Iterator<Item = &'a [PeerSetId]> + Clone) -> Self {
        let mut counts: HashMap<PeerSetId, u32, RandomState> = HashMap::default();
        members.clone().flatten().for_each(|set| *counts.entry(*set).or_default() += 1);
        let mut next = 0;
        let mut identities = Vec::new();
        for start in counts.values_mut() {
            let count = std::mem::replace(start, next);
            identities.push(Identity(count));
            next += count + 1;
            identities.resize(next as usize, Identity::NONE);
        }
        let starts = counts.clone();
        for (identity, sets) in (0..).map(Identity).zip(members) {
            for set in sets {
                let Some(last) = counts.get_mut(set) else { continue };
                *last += 1;
                identities[*last as usize] = identity;
            }
        }
        Self { starts, identities }
    }

    /// Its memory.
    pub(super) fn bytes(&self) -> usize {
        self.starts.capacity() * size_of::<(PeerSetId, u32)>() + size_of_val(&*self.identities)
    }

    /// The identities in a set.
    pub(super) fn of(&self, set: PeerSetId) -> &[Identity] {
        let Some(start) = self.starts.get(&set) else { return &[] };
        let start = *start as usize;
        &self.identities[start + 1..][..self.identities[start].0 as usize]
    }
}
