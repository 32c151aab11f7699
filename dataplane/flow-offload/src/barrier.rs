//! Waits until no program runs any more that read what was there before.
//!
//! A program that has compared generations may still be on its way to deliver a packet when they
//! change. So a snapshot with new generations for what has entries counts as in force only after
//! the kernel has seen every program of before end (a grace period of RCU, which
//! `membarrier(MEMBARRIER_CMD_GLOBAL)` waits for). That takes some tens of milliseconds, on a
//! thread of its own.

#![allow(unsafe_code, reason = "a system call")]

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dataplane::Switch;

/// `MEMBARRIER_CMD_GLOBAL` of linux/membarrier.h.
const GLOBAL: i32 = 1;
/// How long is waited where the kernel has no barrier; a grace period is far shorter.
const INSTEAD: Duration = Duration::from_millis(500);

#[derive(Default)]
struct State {
    /// Generation that waits for the barrier.
    wanted: Option<u64>,
    stop: bool,
}

/// Where barriers are requested.
#[derive(Default)]
pub(crate) struct Barrier {
    state: Mutex<State>,
    changed: Condvar,
}

impl Barrier {
    /// Keeps `generation` from being in force before the barrier; `before` is the one that is.
    pub(crate) fn request(&self, switch: &Switch, before: u64, generation: u64) {
        let mut state = self.lock();
        if state.wanted.replace(generation).is_none() {
            switch.set_beside(before);
        }
        self.changed.notify_all();
    }

    /// Serves requests until the end.
    pub(crate) fn run(&self, switch: &Arc<Switch>) {
        let mut state = self.lock();
        while !state.stop {
            let Some(generation) = state.wanted else {
                let waited = self.changed.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            wait_for_programs();
            state = self.lock();
            if state.wanted == Some(generation) {
                state.wanted = None;
                switch.set_beside(u64::MAX);
            } else {
                switch.set_beside(generation);
            }
        }
        switch.set_beside(u64::MAX);
    }

    pub(crate) fn stop(&self) {
        self.lock().stop = true;
        self.changed.notify_all();
    }

    /// Nothing that can fail runs under the lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until every program that runs now has ended.
pub(crate) fn wait_for_programs() {
    // SAFETY: takes plain numbers.
    let error = unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL, 0, 0) };
    if error != 0 {
        std::thread::sleep(INSTEAD);
    }
}
