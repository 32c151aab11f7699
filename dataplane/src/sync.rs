//! Atomics and locks of the lock-free parts: the standard library's, or those of the model checker loom
//! (`scripts/model`), which runs a model's threads in every order that matters.

#[cfg(not(podgate_loom))]
mod imp {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};

    pub(crate) use std::hint::spin_loop;
    pub(crate) use std::thread::yield_now;
}

#[cfg(podgate_loom)]
mod imp {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};

    pub(crate) use loom::thread::yield_now;
    /// To the model a spinning thread is one that lets others go first.
    pub(crate) use loom::thread::yield_now as spin_loop;
}

pub(crate) use imp::*;

/// A value in cache lines of its own, so that threads that write it do not disturb those that read its
/// neighbours. (Processors fetch lines in pairs.)
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct OwnLines<T>(pub(crate) T);
