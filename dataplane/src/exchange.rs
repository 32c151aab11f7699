//! Between workers: who serves which port, rings that carry frames to it, bells that wake.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crossbeam_queue::ArrayQueue;
use rustix::event::{EventfdFlags, eventfd};

use crate::{Frame, PortId};

/// Frames that the ring towards one worker holds.
const RING: usize = 4096;
const NOBODY: u8 = u8::MAX;

/// A packet on its way to the worker that serves its output port.
pub(crate) struct Handoff {
    pub(crate) frame: Frame,
    pub(crate) out_port: PortId,
}

/// Why a frame could not be handed over; it comes back.
pub(crate) enum Refused {
    /// No worker serves the port.
    NoWorker(Frame),
    /// The ring is full.
    Full(Frame),
}

/// What the workers of a switch share.
pub(crate) struct Exchange {
    owners: Box<[AtomicU8]>,
    rings: Box<[ArrayQueue<Handoff>]>,
    bells: Box<[Arc<Bell>]>,
}

impl Exchange {
    pub(crate) fn new(workers: usize, ports: u16) -> Arc<Self> {
        Arc::new(Self {
            owners: (0..ports).map(|_| AtomicU8::new(NOBODY)).collect(),
            rings: (0..workers).map(|_| ArrayQueue::new(RING)).collect(),
            bells: (0..workers).map(|_| Arc::default()).collect(),
        })
    }

    pub(crate) fn bell(&self, worker: usize) -> Arc<Bell> {
        Arc::clone(&self.bells[worker])
    }

    pub(crate) fn set_owner(&self, port: PortId, worker: Option<usize>) {
        if let Some(owner) = self.owners.get(usize::from(port.0)) {
            owner.store(worker.map_or(NOBODY, |n| n as u8), Ordering::Release);
        }
    }

    pub(crate) fn owner(&self, port: PortId) -> Option<usize> {
        let owner = self.owners.get(usize::from(port.0))?.load(Ordering::Acquire);
        (owner != NOBODY).then_some(usize::from(owner))
    }

    /// Sends a frame towards the worker that serves `out_port`.
    pub(crate) fn hand_over(&self, frame: Frame, out_port: PortId) -> Result<(), Refused> {
        let Some(owner) = self.owner(out_port) else { return Err(Refused::NoWorker(frame)) };
        let pushed = self.rings[owner].push(Handoff { frame, out_port });
        pushed.map_err(|handoff| Refused::Full(handoff.frame))?;
        self.bells[owner].ring();
        Ok(())
    }

    #[inline]
    pub(crate) fn take(&self, worker: usize) -> Option<Handoff> {
        self.rings[worker].pop()
    }

    pub(crate) fn has_frames(&self, worker: usize) -> bool {
        !self.rings[worker].is_empty()
    }
}

/// Wakes a worker that sleeps; costs a load while it does not.
pub(crate) struct Bell {
    asleep: AtomicBool,
    /// Missing only where the kernel gave no descriptor; then a sleeper wakes by its timeout.
    event: Option<OwnedFd>,
}

impl Default for Bell {
    fn default() -> Self {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).ok();
        Self { asleep: AtomicBool::new(false), event }
    }
}

impl Bell {
    /// Wakes the worker if it sleeps.
    pub(crate) fn ring(&self) {
        // Pairs with the store in `lie_down`: either the sleeper sees the work that was left
        // before this call, or this call sees the sleeper.
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed)
            && self.asleep.swap(false, Ordering::AcqRel)
            && let Some(event) = &self.event
        {
            // Full means it rings already.
            let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
        }
    }

    /// From here on a ring is heard; the sleeper looks for work once more before it sleeps.
    pub(crate) fn lie_down(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    pub(crate) fn get_up(&self) {
        self.asleep.store(false, Ordering::Relaxed);
        if let Some(event) = &self.event {
            let _ = rustix::io::read(event, &mut [0_u8; 8]);
        }
    }

    pub(crate) fn readable(&self) -> Option<BorrowedFd<'_>> {
        self.event.as_ref().map(AsFd::as_fd)
    }
}
