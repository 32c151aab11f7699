//! Lookup tables in use, found by their backends: the scopes of a service, its ports and all
//! switches of a process share them. The ports of a large service have the same addresses, and
//! share what chooses among these.

use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use ahash::{AHashMap, RandomState};

use super::maglev::{Maglev, is_of_addresses};
use super::{Backend, Table};

/// Number of tables below which unused ones stay listed.
const FEW: usize = 512;

static TABLES: LazyLock<Mutex<Tables>> = LazyLock::new(Mutex::default);

/// Tables by the hash of their list; of two lists with one hash, the later is found.
#[derive(Default)]
struct Tables {
    hasher: RandomState,
    by_hash: AHashMap<u64, Weak<Table>>,
    /// Number of tables at which unused ones are removed.
    full: usize,
    /// By two hashes of the addresses, which no two lists share.
    choices: AHashMap<[u64; 2], Weak<Maglev>>,
    hashers: [RandomState; 2],
    full_of_choices: usize,
}

impl Tables {
    fn add(&mut self, hash: u64, table: &Arc<Table>) {
        if self.by_hash.len() >= self.full {
            self.by_hash.retain(|_, table| table.strong_count() > 0);
            self.full = FEW.max(2 * self.by_hash.len());
        }
        self.by_hash.insert(hash, Arc::downgrade(table));
    }

    /// Identifies the addresses of backends whose choice depends on these alone.
    fn addresses(&self, list: &[Backend]) -> Option<[u64; 2]> {
        let hash = |hasher: &RandomState| {
            let mut state = hasher.build_hasher();
            list.iter().for_each(|backend| state.write_u128({ backend.address }.bits()));
            state.finish()
        };
        is_of_addresses(list).then(|| self.hashers.each_ref().map(hash))
    }

    fn add_choice(&mut self, addresses: [u64; 2], choice: &Arc<Maglev>) {
        if self.choices.len() >= self.full_of_choices {
            self.choices.retain(|_, choice| choice.strong_count() > 0);
            self.full_of_choices = FEW.max(2 * self.choices.len());
        }
        self.choices.insert(addresses, Arc::downgrade(choice));
    }
}

/// The table of a list, which is sorted and without duplicates.
pub(super) fn table(list: Vec<Backend>) -> Arc<Table> {
    let lock = || TABLES.lock().unwrap_or_else(PoisonError::into_inner);
    let (hash, known) = {
        let tables = lock();
        let hash = tables.hasher.hash_one(&list);
        (hash, tables.by_hash.get(&hash).and_then(Weak::upgrade))
    };
    if let Some(known) = known.filter(|known| *known.list == *list) {
        return known;
    }
    let (addresses, choice) = {
        let tables = lock();
        let addresses = tables.addresses(&list);
        (addresses, addresses.and_then(|it| tables.choices.get(&it)).and_then(Weak::upgrade))
    };
    // Made without the lock: at worst, two threads make the same.
    let choice = choice.unwrap_or_else(|| Arc::new(Maglev::new(&list)));
    let table = Arc::new(Table { choice, list: list.into() });
    let mut tables = lock();
    if let Some(addresses) = addresses {
        tables.add_choice(addresses, &table.choice);
    }
    tables.add(hash, &table);
    table
}

#[cfg(test)]
mod tests {
    use super::super::Backends;
    use super::*;

    fn backends(first: u32, count: u32) -> Backends {
        let backend =
            |n| Backend { address: acl::Address::from_v4_bits(0x0a01_0000 + n), port: 80 };
        Backends::new((first..first + count).map(backend).collect())
    }

    #[test]
    fn equal_lists_share_one_table_of_a_few_kilobytes() {
        let one = backends(0, 20);
        assert!(Arc::ptr_eq(&one.0, &backends(0, 20).0));
        assert_ne!(one, backends(1, 20));
        let bytes = size_of_val(&*one.0.list) + one.0.choice.bytes();
        assert!(bytes <= 3 << 10, "{bytes}");
    }

    #[test]
    fn ports_of_the_same_addresses_share_the_choice() {
        let at = |port: u16, count: u32| {
            let list = (0..count)
                .map(|n| Backend { address: acl::Address::from_v4_bits(0x0a02_0000 + n), port });
            Backends::new(list.collect())
        };
        let (one, other) = (at(80, 500), at(81, 500));
        assert_ne!(one, other);
        assert!(Arc::ptr_eq(&one.0.choice, &other.0.choice));
        assert!(!Arc::ptr_eq(&one.0.choice, &at(80, 499).0.choice));
        for hash in (0..1000_u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)) {
            let [one, other] = [&one, &other].map(|it| it.choose(hash).unwrap());
            assert_eq!(({ one.address }, { other.port }), ({ other.address }, 81));
        }
    }

    #[test]
    fn unused_tables_are_removed() {
        let mut tables = Tables::default();
        let used = Arc::new(Table::default());
        tables.add(0, &used);
        for hash in 1..10_000 {
            tables.add(hash, &Arc::default());
            assert!(tables.by_hash.len() <= FEW);
        }
        assert!(tables.by_hash[&0].upgrade().is_some_and(|it| Arc::ptr_eq(&it, &used)));
    }
}
