//! IPv6 networks, one change after the other.

use super::exact::Exact;
use super::{V6, network};
use crate::lpm::memory::Pool;

/// Makes versions of a [`V6`].
#[derive(Debug, Default)]
pub(in crate::lpm) struct Editor {
    tables: Option<Tables>,
    /// Changes since the last version: bits, length and value, in order.
    changes: Vec<(u128, u8, Option<u32>)>,
}

#[derive(Debug)]
struct Tables {
    pool: Pool,
    hosts: Exact,
    nets: Exact,
    /// Networks of each length.
    counts: Box<[u32; 128]>,
}

impl Editor {
    /// Sets the value of a network, which is not 0, or forgets it.
    pub(in crate::lpm) fn set(&mut self, bits: u128, length: u8, value: Option<u32>) {
        self.changes.push((bits, length, value));
        let entries = self.tables.as_ref().map_or(0, |tables| tables.entries());
        if self.changes.len() > (1 << 16) + 8 * entries {
            self.apply();
        }
    }

    /// The networks as they are now; `None` if there are none.
    pub(in crate::lpm) fn version(&mut self) -> Option<V6> {
        self.apply();
        let tables = self.tables.as_mut()?;
        if tables.entries() == 0 {
            self.tables = None;
            return None;
        }
        let lengths = (0..128).rev().filter(|length| tables.counts[usize::from(*length)] != 0);
        Some(V6 {
            version: tables.pool.publish(),
            hosts: tables.hosts.clone(),
            nets: tables.nets.clone(),
            lengths: lengths.collect(),
        })
    }

    fn apply(&mut self) {
        if self.changes.is_empty() {
            return;
        }
        let tables = self.tables.get_or_insert_with(Tables::new);
        let more = |host: bool| {
            let more = |change: &&(u128, u8, Option<u32>)| (change.1 == 128) == host;
            self.changes.iter().filter(more).filter(|(_, _, value)| value.is_some()).count()
        };
        Tables::make_room(&mut tables.hosts, more(true), &mut tables.pool);
        Tables::make_room(&mut tables.nets, more(false), &mut tables.pool);
        for (bits, length, value) in self.changes.drain(..) {
            tables.set(bits, length, value);
        }
    }
}

impl Tables {
    fn new() -> Self {
        let mut pool = Pool::new();
        let mut table = || Exact::with_room(0, crate::seed(), &mut pool);
        let (hosts, nets) = (table(), table());
        Self { pool, hosts, nets, counts: Box::new([0; 128]) }
    }

    fn entries(&self) -> usize {
        self.hosts.entries + self.nets.entries
    }

    /// Makes a table larger if so many more keys do not fit.
    fn make_room(table: &mut Exact, more: usize, pool: &mut Pool) {
        if table.has_room(more) {
            return;
        }
        let mut larger = Exact::with_room(table.entries + more, crate::seed(), pool);
        let mut entries = Vec::with_capacity(table.entries);
        table.for_each(pool, |key, value| entries.push((key, value)));
        table.release(pool);
        for (key, value) in entries {
            larger.insert(key, value, pool);
        }
        *table = larger;
    }

    fn set(&mut self, bits: u128, length: u8, value: Option<u32>) {
        let Self { pool, hosts, nets, counts } = self;
        let (table, key) = match length {
            128.. => (hosts, bits),
            _ => (nets, network(bits, length)),
        };
        let changed = match value {
            Some(value) => table.insert(key, value, pool),
            None => table.remove(key, pool),
        };
        if let Some(count) = counts.get_mut(usize::from(length)).filter(|_| changed) {
            *count = if value.is_some() { *count + 1 } else { *count - 1 };
        }
    }
}
