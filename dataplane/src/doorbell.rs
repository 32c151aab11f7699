//! Doorbells: wake-ups of sleeping workers.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

use crate::sync::{AtomicBool, Ordering, fence};

/// Wakes a sleeping worker; costs one load while it runs.
pub(crate) struct Doorbell {
    asleep: AtomicBool,
    /// `None` if the kernel has no descriptor left; a sleeper then wakes by its timeout.
    event: Option<OwnedFd>,
}

impl Default for Doorbell {
    fn default() -> Self {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).ok();
        Self { asleep: AtomicBool::new(false), event }
    }
}

impl Doorbell {
    /// Wakes the worker if it sleeps.
    pub(crate) fn ring(&self) {
        // Pairs with the store in `arm`: either the sleeper sees the work that was queued before
        // this call, or this call sees the sleeper.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed)
            && self.asleep.swap(false, Ordering::AcqRel)
            && let Some(event) = &self.event
        {
            // A full counter is readable already.
            let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
        }
    }

    /// Arms the doorbell: later rings wake the worker. The caller checks for work once more before
    /// it sleeps.
    pub(crate) fn arm(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    pub(crate) fn disarm(&self) {
        self.asleep.store(false, Ordering::Relaxed);
        if let Some(event) = &self.event {
            let _ = rustix::io::read(event, &mut [0_u8; 8]);
        }
    }

    pub(crate) fn readable(&self) -> Option<BorrowedFd<'_>> {
        self.event.as_ref().map(AsFd::as_fd)
    }
}

#[cfg(podgate_loom)]
mod models {
    use std::sync::Arc;

    use super::*;

    /// One side leaves work and rings; the other lies down and looks once more. Either it sees the work,
    /// or it is woken.
    #[test]
    fn model_a_sleeper_sees_the_work_or_is_woken() {
        loom::model(|| {
            let shared = Arc::new((Doorbell::default(), AtomicBool::new(false)));
            let other = Arc::clone(&shared);
            let thread = loom::thread::spawn(move || {
                let (doorbell, work) = &*other;
                work.store(true, Ordering::Relaxed);
                doorbell.ring();
            });
            let (doorbell, work) = &*shared;
            doorbell.arm();
            let saw_work = work.load(Ordering::Relaxed);
            thread.join().unwrap();
            let event = doorbell.event.as_ref().expect("a descriptor");
            let rang = rustix::io::read(event, &mut [0_u8; 8]).is_ok();
            assert!(saw_work || rang);
        });
    }
}
