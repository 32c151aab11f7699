//! Waits for an RCU grace period, so that no program still uses generations that were changed.
//!
//! A program that has compared generations may still be on its way to deliver a packet when they
//! change. So a snapshot with new generations for connections that have entries is in force only once every
//! program that ran before has ended. A change of a map of maps waits for that: some tens of milliseconds, on a
//! thread of its own. `membarrier(MEMBARRIER_CMD_GLOBAL)` waits for the same, but is refused on machines with
//! `nohz_full`.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dataplane::Switch;

use crate::Error;

/// Pause before the next attempt after the kernel refused to wait.
const AGAIN: Duration = Duration::from_millis(100);
/// Number of attempts. A grace period is far shorter than all of their pauses.
const ATTEMPTS: u32 = 10;

#[derive(Default)]
struct State {
    /// Generation that waits for the barrier.
    wanted: Option<u64>,
    stop: bool,
}

/// The request for a barrier, and the thread that serves it.
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

    /// Serves requests until the end; `wait` waits for programs.
    pub(crate) fn run(&self, switch: &Switch, wait: impl Fn()) {
        let mut state = self.lock();
        while !state.stop {
            let Some(generation) = state.wanted else {
                let waited = self.changed.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            wait();
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

/// Waits until every program that runs now has ended, by `wait`.
pub(crate) fn wait_for_programs(mut wait: impl FnMut() -> Result<(), Error>) {
    for _ in 0..ATTEMPTS {
        match wait() {
            Ok(()) => return,
            Err(error) => tracing::warn!("{error}"),
        }
        std::thread::sleep(AGAIN);
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::Kernel;

    #[test]
    fn a_refusal_is_not_the_end_of_programs() {
        let mut answers = vec![Ok(()), Err(()), Err(())];
        wait_for_programs(|| {
            let refused = |()| Error::new("wait", io::ErrorKind::Unsupported.into());
            answers.pop().expect("asked until it has waited").map_err(refused)
        });
        assert_eq!(answers, []);
    }

    /// Not by `membarrier`, which is refused on machines with `nohz_full`.
    #[test]
    fn the_kernel_waits_for_programs() {
        testkit::requires_root!();
        let kernel = Kernel::load(8).unwrap();
        for _ in 0..3 {
            kernel.wait_for_programs().unwrap();
        }
    }
}
