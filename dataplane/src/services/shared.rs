//! Lookup tables in use, found by their backends: the scopes of a service, its ports and all switches of a
//! process share them.

use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use ahash::{AHashMap, RandomState};

use super::maglev::Maglev;
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
}

impl Tables {
    fn add(&mut self, hash: u64, table: &Arc<Table>) {
        if self.by_hash.len() >= self.full {
            self.by_hash.retain(|_, table| table.strong_count() > 0);
            self.full = FEW.max(2 * self.by_hash.len());
        }
        self.by_hash.insert(hash, Arc::downgrade(table));
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
    // Made without the lock: at worst, two threads make the same.
    let table = Arc::new(Table { choice: Maglev::new(&list), list: list.into() });
    lock().add(hash, &table);
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
