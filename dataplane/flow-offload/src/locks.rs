//! Locks that are taken in one order.
//!
//! Each has a rank. A thread that holds one takes only locks of higher ranks; debug builds check that, so that every
//! test does.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

thread_local! {
    /// The ranks of the locks that this thread holds, as bits.
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// A lock of this rank, below 32.
#[derive(Default)]
pub(crate) struct Lock<const RANK: u32, T>(Mutex<T>);

impl<const RANK: u32, T> Lock<RANK, T> {
    /// Nothing that can fail half-way runs under these locks.
    pub(crate) fn lock(&self) -> Guard<'_, RANK, T> {
        let held = HELD.get();
        debug_assert!(held >> RANK == 0, "lock {RANK} is taken behind {held:#b}");
        Guard::new(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The same if no other thread has it. Waits for nothing, so the order does not matter.
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, RANK, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(Guard::new(guard)),
            Err(TryLockError::Poisoned(poisoned)) => Some(Guard::new(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

pub(crate) struct Guard<'a, const RANK: u32, T>(MutexGuard<'a, T>);

impl<'a, const RANK: u32, T> Guard<'a, RANK, T> {
    fn new(guard: MutexGuard<'a, T>) -> Self {
        HELD.set(HELD.get() | 1 << RANK);
        Self(guard)
    }
}

impl<const RANK: u32, T> Drop for Guard<'_, RANK, T> {
    fn drop(&mut self) {
        HELD.set(HELD.get() & !(1 << RANK));
    }
}

impl<const RANK: u32, T> Deref for Guard<'_, RANK, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<const RANK: u32, T> DerefMut for Guard<'_, RANK, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_taken_by_rising_ranks() {
        let (low, high) = (Lock::<1, u8>::default(), Lock::<3, u8>::default());
        {
            let _low = low.lock();
            *high.lock() += 1;
        }
        *high.lock() += 1;
        assert_eq!((*low.lock(), *high.lock()), (0, 2));
        assert!(low.try_lock().is_some());
    }

    #[cfg(debug_assertions)]
    #[test]
    #[should_panic(expected = "lock 1 is taken behind 0b1000")]
    fn another_order_is_found() {
        let (low, high) = (Lock::<1, u8>::default(), Lock::<3, u8>::default());
        let _high = high.lock();
        drop(low.lock());
    }
}
