//! A map without room to spare, for tables with an entry for each pod of a cluster: half of a hash table is empty once it
//! has grown.

use std::hash::Hash;
use std::mem;

use ahash::RandomState;

/// A map as parts of some entries each, sorted by key; the hash of a key says in which part it is.
#[derive(Debug)]
pub(crate) struct CompactMap<K, V> {
    hasher: RandomState,
    /// A power of two.
    parts: Vec<Vec<(K, V)>>,
    len: usize,
}

/// Entries of a part, on average at most.
const IN_PART: usize = 32;

impl<K, V> Default for CompactMap<K, V> {
    fn default() -> Self {
        Self { hasher: RandomState::new(), parts: vec![Vec::new()], len: 0 }
    }
}

impl<K: Copy + Hash + Ord, V> CompactMap<K, V> {
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        let (part, at) = self.find(key);
        Some(&self.parts[part][at.ok()?].1)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let (part, at) = self.find(key);
        Some(&mut self.parts[part][at.ok()?].1)
    }

    /// Adds or replaces a value; returns the one before.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let (number, at) = self.find(&key);
        let part = &mut self.parts[number];
        let at = match at {
            Ok(at) => return Some(mem::replace(&mut part[at].1, value)),
            Err(at) => at,
        };
        if part.len() == part.capacity() {
            part.reserve_exact(part.len() / 8 + 1);
        }
        part.insert(at, (key, value));
        self.len += 1;
        if self.len > self.parts.len() * IN_PART {
            self.split();
        }
        None
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let (part, at) = self.find(key);
        let (_, value) = self.parts[part].remove(at.ok()?);
        self.len -= 1;
        Some(value)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// All entries, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &(K, V)> {
        self.parts.iter().flatten()
    }

    /// The part of a key, and its place there, or the place where it would be.
    fn find(&self, key: &K) -> (usize, Result<usize, usize>) {
        let part = self.hash(key) & (self.parts.len() - 1);
        (part, self.parts[part].binary_search_by(|(known, _)| known.cmp(key)))
    }

    fn hash(&self, key: &K) -> usize {
        self.hasher.hash_one(key) as usize
    }

    /// Makes two parts of each.
    fn split(&mut self) {
        let count = self.parts.len();
        for number in 0..count {
            let part = mem::take(&mut self.parts[number]);
            let (mut first, mut second): (Vec<_>, Vec<_>) =
                part.into_iter().partition(|(key, _)| self.hash(key) & count == 0);
            first.shrink_to_fit();
            second.shrink_to_fit();
            self.parts[number] = first;
            self.parts.push(second);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_has_what_a_map_has(edits in vec((0..400_u16, any::<Option<u32>>()), 0..2_000)) {
            let (mut map, mut expected) = (CompactMap::default(), BTreeMap::new());
            for (key, value) in edits {
                prop_assert_eq!(map.get(&key), expected.get(&key));
                let (before, known) = match value {
                    Some(value) => (map.insert(key, value), expected.insert(key, value)),
                    None => (map.remove(&key), expected.remove(&key)),
                };
                prop_assert_eq!(before, known);
            }
            let all: BTreeMap<u16, u32> = map.iter().copied().collect();
            prop_assert_eq!((map.len(), map.iter().count()), (expected.len(), expected.len()));
            prop_assert_eq!(all, expected);
        }
    }

    #[test]
    fn it_has_hardly_more_room_than_entries() {
        let mut map = CompactMap::default();
        for n in 1..=100_000_u32 {
            map.insert(n, n);
            if n % 7_919 == 0 {
                let room: usize = map.parts.iter().map(Vec::capacity).sum();
                assert!(room < n as usize * 5 / 4, "room for {room} of {n}");
                assert!(map.parts.len() <= (n as usize).div_ceil(IN_PART / 2), "{n}");
            }
        }
    }
}
