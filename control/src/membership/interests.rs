//! Indexes peer sets and port names by the pods that may be in them.
//!
//! Sets and port names that look into one namespace are found by it; those that select
//! namespaces by label are held against each namespace once, until they or its labels change.

use std::collections::HashMap;
use std::sync::Arc;

use acl::PeerSetId;
use ahash::RandomState;

use crate::model::Labels;
use crate::peers::{NameId, NameOf, PeerSet};

/// A peer set or port name that depends on pods.
#[derive(Clone, Debug)]
pub(super) enum Interest {
    Set(PeerSetId, Arc<PeerSet>),
    Name(NameId, Arc<NameOf>),
}

impl Interest {
    fn only_namespace(&self) -> Option<&Arc<str>> {
        match self {
            Self::Set(_, set) => set.only_namespace(),
            Self::Name(_, name) if name.peers.blocks().is_empty() => name.peers.only_namespace(),
            Self::Name(..) => None,
        }
    }

    /// Whether pods of this namespace matter.
    fn covers(&self, name: &str, labels: &Labels) -> bool {
        match self {
            Self::Set(_, set) => set.is_of_pods() && set.covers_namespace(name, labels),
            Self::Name(_, it) => it.peers.may_mean(name, labels),
        }
    }

    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Set(a, _), Self::Set(b, _)) => a == b,
            (Self::Name(a, _), Self::Name(b, _)) => a == b,
            _ => false,
        }
    }
}

/// Interests by the namespaces they cover.
#[derive(Debug, Default)]
pub(super) struct Interests {
    own: HashMap<Arc<str>, Vec<Interest>, RandomState>,
    anywhere: Vec<Interest>,
    /// Grows with each change of `anywhere`.
    epoch: u64,
    /// The sets that cover a namespace, with the epoch of their computation.
    covering: HashMap<Arc<str>, (u64, Arc<[Interest]>), RandomState>,
}

impl Interests {
    pub(super) fn add(&mut self, interest: Interest) {
        match interest.only_namespace() {
            Some(namespace) => {
                self.covering.remove(namespace);
                self.own.entry(Arc::clone(namespace)).or_default().push(interest);
            }
            None => {
                self.epoch += 1;
                self.anywhere.push(interest);
            }
        }
    }

    pub(super) fn remove(&mut self, interest: &Interest) {
        match interest.only_namespace() {
            Some(namespace) => {
                self.covering.remove(namespace);
                if let Some(list) = self.own.get_mut(namespace) {
                    list.retain(|it| !it.is(interest));
                    if list.is_empty() {
                        self.own.remove(namespace);
                    }
                }
            }
            None => {
                self.epoch += 1;
                self.anywhere.retain(|it| !it.is(interest));
            }
        }
    }

    /// The namespace's labels changed.
    pub(super) fn forget(&mut self, namespace: &Arc<str>) {
        self.covering.remove(namespace);
    }

    /// All that covers a namespace.
    pub(super) fn covering(&mut self, namespace: &Arc<str>, labels: &Labels) -> Arc<[Interest]> {
        if let Some((epoch, covering)) = self.covering.get(namespace)
            && *epoch == self.epoch
        {
            return Arc::clone(covering);
        }
        let own = self.own.get(namespace).into_iter().flatten();
        let all = own.chain(&self.anywhere).filter(|interest| interest.covers(namespace, labels));
        let covering: Arc<[Interest]> = all.cloned().collect();
        self.covering.insert(Arc::clone(namespace), (self.epoch, Arc::clone(&covering)));
        covering
    }
}
