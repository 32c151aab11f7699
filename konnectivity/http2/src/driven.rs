//! State that many tasks change and one task, its driver, acts on.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// A state, and the waker of its driver.
#[derive(Debug, Default)]
pub struct Driven<S> {
    inner: Mutex<Inner<S>>,
}

#[derive(Debug, Default)]
struct Inner<S> {
    state: S,
    driver: Option<Waker>,
}

/// Access to the state; the driver is not woken at its end.
#[derive(Debug)]
pub struct Guard<'d, S>(MutexGuard<'d, Inner<S>>);

impl<S> Driven<S> {
    /// A state without a driver.
    pub fn new(state: S) -> Self {
        Self { inner: Mutex::new(Inner { state, driver: None }) }
    }

    /// Locks the state.
    pub fn lock(&self) -> Guard<'_, S> {
        Guard(self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the state, then wakes the driver.
    pub fn change<T>(&self, change: impl FnOnce(&mut S) -> T) -> T {
        let mut guard = self.lock();
        let result = change(&mut guard);
        let driver = guard.0.driver.take();
        drop(guard);
        if let Some(driver) = driver {
            driver.wake();
        }
        result
    }

    /// Wakes the driver.
    pub fn wake(&self) {
        self.change(|_| ());
    }
}

impl<S> Guard<'_, S> {
    /// Sets the driver that the next change wakes.
    pub fn set_driver(&mut self, driver: Option<&Waker>) {
        self.0.driver = driver.cloned();
    }
}

impl<S> Deref for Guard<'_, S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.0.state
    }
}

impl<S> DerefMut for Guard<'_, S> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.0.state
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_change_wakes_the_driver_once_and_a_lock_does_not() {
        let count = Arc::new(Count::default());
        let driven = Driven::new(1);
        driven.lock().set_driver(Some(&Waker::from(Arc::clone(&count))));
        *driven.lock() += 1;
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
        assert_eq!(driven.change(|state| std::mem::replace(state, 5)), 2);
        driven.wake();
        assert_eq!((*driven.lock(), count.0.load(Ordering::Relaxed)), (5, 1));
    }
}
