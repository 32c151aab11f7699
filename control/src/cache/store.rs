//! The objects of one kind, by name.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

/// An object before and after a change; `None` where there was none, or is none any more.
pub(crate) type Replaced<T> = (Option<Arc<T>>, Option<Arc<T>>);

/// Objects of one kind, shared; `K` names one within its namespace or within the cluster.
#[derive(Debug)]
pub(crate) struct Store<K, T>(BTreeMap<K, Arc<T>>);

impl<K, T> Default for Store<K, T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord, T: PartialEq> Store<K, T> {
    /// Adds or replaces an object; `None` if it equals the one that is there.
    pub(super) fn apply(&mut self, name: K, object: Arc<T>) -> Option<Replaced<T>> {
        match self.0.entry(name) {
            Entry::Occupied(known) if **known.get() == *object => None,
            Entry::Occupied(mut known) => {
                Some((Some(known.insert(Arc::clone(&object))), Some(object)))
            }
            Entry::Vacant(place) => Some((None, Some(Arc::clone(place.insert(object))))),
        }
    }

    /// Removes an object; `None` if there is none of this name.
    pub(super) fn delete<Q: Ord + ?Sized>(&mut self, name: &Q) -> Option<Replaced<T>>
    where
        K: Borrow<Q>,
    {
        self.0.remove(name).map(|before| (Some(before), None))
    }
}

impl<K: Ord, T> Store<K, T> {
    /// Gives memory back that single insertions left unused: in ascending order they leave nodes half full.
    pub(super) fn pack(&mut self) {
        self.0 = std::mem::take(&mut self.0).into_iter().collect();
    }
}

impl<K, T> std::ops::Deref for Store<K, T> {
    type Target = BTreeMap<K, Arc<T>>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}
