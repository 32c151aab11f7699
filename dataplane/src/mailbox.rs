//! The command mailbox of a worker, and the worker's reports.
//!
//! Commands wait in a list behind one flag, so that an empty mailbox costs a worker one load a
//! round. The worker never waits for the list's lock: if the control side holds it, the worker
//! tries again in its next round.
//!
//! Retired snapshots return here, so that the control side frees them and not a worker between two
//! packets.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crate::capture::LiveCapture;
use crate::counters::PortCounters;
use crate::dns::DnsTap;
use crate::doorbell::Doorbell;
use crate::graph::trace::Tracing;
use crate::port::{Port, PortGone, Tag};
use crate::sync::{AtomicBool, AtomicU64, Condvar, Mutex, MutexGuard, Ordering};
use crate::{PortId, Snapshot};

/// One command.
pub enum Command {
    /// Use this snapshot from the next vector on.
    Snapshot(Arc<Snapshot>),
    /// Add this port.
    AddPort(PortId, Box<dyn Port>, Arc<PortCounters>),
    /// Serve this port too, whose frames are on the trunk, under this tag.
    AddMember(Tag, PortId, Arc<PortCounters>),
    /// Remove this port.
    RemovePort(PortId),
    /// Start or stop packet tracing.
    Trace(Option<Arc<Tracing>>),
    /// Send copies of DNS packets here.
    FollowDns(Arc<DnsTap>),
    /// Send these held answers.
    ReleaseAnswers(Vec<u64>),
    /// Capture the packets of this port.
    Capture(PortId, Arc<LiveCapture>),
    /// Call this between two vectors.
    Call(Box<dyn FnOnce() + Send>),
}

/// The mailbox of one worker.
pub struct Mailbox {
    waiting: AtomicBool,
    list: Mutex<Vec<Command>>,
    generation: AtomicU64,
    reports: Mutex<Reports>,
    reported: Condvar,
    doorbell: Arc<Doorbell>,
}

#[derive(Default)]
struct Reports {
    retired: Vec<Arc<Snapshot>>,
    gone: Vec<(PortId, PortGone)>,
}

impl Mailbox {
    pub(crate) fn new() -> Arc<Self> {
        Self::with_doorbell(Arc::new(Doorbell::default()))
    }

    pub(crate) fn with_doorbell(doorbell: Arc<Doorbell>) -> Arc<Self> {
        Arc::new(Self {
            waiting: AtomicBool::new(false),
            list: Mutex::new(Vec::new()),
            generation: AtomicU64::new(0),
            reports: Mutex::new(Reports::default()),
            reported: Condvar::new(),
            doorbell,
        })
    }

    /// Queues a command and wakes the worker if it sleeps.
    pub fn send(&self, command: Command) {
        lock(&self.list).push(command);
        self.waiting.store(true, Ordering::Release);
        self.doorbell.ring();
    }

    /// Generation of the snapshot in use; 0 before the first.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Waits until the worker uses this generation or a later one.
    pub fn wait_for(&self, generation: u64, deadline: Instant) -> bool {
        let mut reports = lock(&self.reports);
        while self.generation() < generation {
            let left = deadline.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return false;
            }
            let waited = self.reported.wait_timeout(reports, left);
            reports = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Frees the retired snapshots.
    pub fn free_retired(&self) {
        let retired = std::mem::take(&mut lock(&self.reports).retired);
        drop(retired);
    }

    /// Takes the ports that the worker removed because of an error.
    pub fn take_gone(&self) -> Vec<(PortId, PortGone)> {
        std::mem::take(&mut lock(&self.reports).gone)
    }

    pub(crate) fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn take(&self) -> Vec<Command> {
        if !self.has_waiting() {
            return Vec::new();
        }
        match self.list.try_lock() {
            Ok(mut list) => {
                self.waiting.store(false, Ordering::Release);
                std::mem::take(&mut *list)
            }
            Err(_) => Vec::new(),
        }
    }

    pub(crate) fn in_force(&self, generation: u64, old: Arc<Snapshot>) {
        let mut reports = lock(&self.reports);
        reports.retired.push(old);
        // Under the lock: a waiter between its test and its sleep would miss the notification.
        self.generation.store(generation, Ordering::Release);
        drop(reports);
        self.reported.notify_all();
    }

    pub(crate) fn report_gone(&self, id: PortId, reason: PortGone) {
        lock(&self.reports).gone.push((id, reason));
    }
}

/// Nothing that can fail runs under these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(podgate_loom)]
mod models {
    use super::*;

    #[test]
    fn model_whoever_waits_for_a_generation_is_woken() {
        loom::model(|| {
            let mailbox = Mailbox::new();
            let worker = Arc::clone(&mailbox);
            let thread = loom::thread::spawn(move || worker.in_force(1, Arc::default()));
            // A wait of the model has no timeout; loom reports one that is never notified.
            assert!(mailbox.wait_for(1, Instant::now() + Duration::from_secs(3600)));
            thread.join().unwrap();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The worker reports just as the control side has looked and is about to wait.
    #[test]
    fn whoever_waits_for_a_generation_is_woken() {
        let mailbox = Mailbox::new();
        let (done, is_done) = std::sync::mpsc::channel();
        let waiter = Arc::clone(&mailbox);
        let far = Instant::now() + Duration::from_secs(3600);
        std::thread::spawn(move || {
            for generation in 1.. {
                if !waiter.wait_for(generation, far) || done.send(generation).is_err() {
                    return;
                }
            }
        });
        for generation in 1..20_000 {
            mailbox.in_force(generation, Arc::default());
            let woken = is_done.recv_timeout(Duration::from_secs(20));
            assert_eq!(woken, Ok(generation), "the wake-up was lost");
            if generation % 1024 == 0 {
                mailbox.free_retired();
            }
        }
    }
}
