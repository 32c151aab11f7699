//! Free records: a list for each thread that opens or ends sessions, and those never used.
//!
//! The lock of a thread's own list is uncontended, unless another thread has run out.

use std::cell::Cell;
use std::sync::PoisonError;
use std::sync::atomic::AtomicUsize;

use crate::sync::{AtomicU32, Mutex, MutexGuard, Ordering, OwnLines, yield_now};

/// Threads beyond this number share lists.
pub(super) const LISTS: usize = 64;
/// Records that a thread takes at a time out of those never used.
const BATCH: u32 = 64;
/// Times that all lists are searched for a record that must be there.
const ATTEMPTS: u32 = if cfg!(podgate_loom) { 3 } else { 100 };

/// Lines of its own for each list, so that threads do not disturb each other.
#[derive(Default)]
#[repr(align(128))]
struct List(Mutex<Vec<u32>>);

impl List {
    fn lock(&self) -> MutexGuard<'_, Vec<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct FreeRecords {
    capacity: u32,
    lists: Box<[List]>,
    /// Records from here on have never been used.
    fresh: OwnLines<AtomicU32>,
}

impl FreeRecords {
    /// All of them.
    pub(super) fn new(capacity: u32) -> Self {
        let lists = (0..LISTS).map(|_| List::default()).collect();
        Self { capacity, lists, fresh: OwnLines(AtomicU32::new(0)) }
    }

    /// Those from `fresh` on, and some before.
    pub(super) fn restore(&self, fresh: u32, returned: impl IntoIterator<Item = u32>) {
        self.fresh.0.store(fresh, Ordering::Release);
        self.lists[own()].lock().extend(returned);
    }

    /// This thread's list.
    #[inline]
    pub(super) fn own(&self) -> Own<'_> {
        let number = own();
        Own { number, records: self.lists[number].lock() }
    }

    /// A record of another list, or one never used, if there is one. The caller's own list is not
    /// locked.
    ///
    /// After a [reservation](super::quota) there is one: while another thread moves records from
    /// list to list this searches again.
    #[cold]
    pub(super) fn find(&self) -> Option<u32> {
        self.find_for(own())
    }

    /// Records below this number may have been used.
    pub(super) fn end_of_used(&self) -> u32 {
        self.fresh.0.load(Ordering::Acquire)
    }

    fn find_for(&self, own: usize) -> Option<u32> {
        for _ in 0..ATTEMPTS {
            if let Some(record) = self.take_fresh(own).or_else(|| self.take_of_others(own)) {
                return Some(record);
            }
            yield_now();
        }
        None
    }

    fn take_fresh(&self, own: usize) -> Option<u32> {
        let end = |fresh: u32| fresh.saturating_add(BATCH).min(self.capacity);
        let take = |fresh| (fresh < self.capacity).then(|| end(fresh));
        let first = self.fresh.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, take).ok()?;
        // Backwards, so that the lowest is used first.
        self.lists[own].lock().extend((first + 1..end(first)).rev());
        Some(first)
    }

    /// Takes half of the first list that has any.
    fn take_of_others(&self, own: usize) -> Option<u32> {
        self.lists.iter().find_map(|list| {
            let mut records = list.lock();
            let half = records.len() / 2;
            let mut taken = records.split_off(half);
            drop(records);
            let one = taken.pop();
            if !taken.is_empty() {
                self.lists[own].lock().append(&mut taken);
            }
            one
        })
    }
}

/// A thread's own list, locked.
pub(super) struct Own<'a> {
    number: usize,
    records: MutexGuard<'a, Vec<u32>>,
}

impl Own<'_> {
    /// The number of the list; below [`LISTS`].
    #[inline]
    pub(super) fn number(&self) -> usize {
        self.number
    }

    /// A record, if the list has one.
    #[inline]
    pub(super) fn take(&mut self) -> Option<u32> {
        self.records.pop()
    }

    /// The record that is taken so many times later.
    #[inline]
    pub(super) fn later(&self, times: usize) -> Option<u32> {
        self.records.len().checked_sub(times).map(|place| self.records[place])
    }

    /// Gives a record back.
    #[inline]
    pub(super) fn put(&mut self, record: u32) {
        self.records.push(record);
    }
}

/// The number of this thread's list.
#[inline]
fn own() -> usize {
    thread_local! {
        static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    if NUMBER.get() == usize::MAX {
        NUMBER.set(NEXT.fetch_add(1, Ordering::Relaxed) % LISTS);
    }
    NUMBER.get()
}

#[cfg(podgate_loom)]
mod models {
    use std::sync::Arc;

    use super::*;

    /// Three records, one of which is given back while two threads want one each.
    #[test]
    fn model_every_thread_gets_a_record_of_its_own() {
        loom::model(|| {
            let lists = (0..2).map(|_| List::default()).collect();
            let free = FreeRecords { capacity: 2, lists, fresh: OwnLines(AtomicU32::new(0)) };
            let free = Arc::new(free);
            let other = Arc::clone(&free);
            let take = |free: &FreeRecords, own: usize| {
                let record = free.lists[own].lock().pop();
                record.or_else(|| free.find_for(own)).expect("one for each")
            };
            let thread = loom::thread::spawn(move || {
                let record = take(&other, 1);
                other.lists[1].lock().push(record);
                take(&other, 1)
            });
            let one = take(&free, 0);
            let two = thread.join().unwrap();
            assert_ne!(one, two);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_record_is_given_twice_and_none_is_lost() {
        let free = FreeRecords::new(1000);
        let take_one = || {
            let record = free.own().take();
            record.or_else(|| free.find())
        };
        let taken: Vec<u32> = std::thread::scope(|scope| {
            let take = || std::iter::from_fn(take_one).take(250).collect::<Vec<_>>();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let sorted = |mut records: Vec<u32>| {
            records.sort_unstable();
            records
        };
        assert_eq!(sorted(taken.clone()), (0..1000).collect::<Vec<_>>());
        assert_eq!(take_one(), None);
        taken.into_iter().for_each(|record| free.own().put(record));
        // Whoever gave them back, another thread finds them.
        let again = std::thread::scope(|scope| {
            let take = || std::iter::from_fn(take_one).take(1000).collect::<Vec<_>>();
            scope.spawn(take).join().unwrap()
        });
        assert_eq!(sorted(again), (0..1000).collect::<Vec<_>>());
    }
}
