//! A worker's thread: it polls its ports, or sleeps until the kernel or the doorbell wakes it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Now;
use crate::doorbell::Doorbell;
use crate::port::Port;
use crate::worker::Worker;

/// Receive mode of a worker: the times at which it polls its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RxMode {
    /// Always: the lowest latency, a whole core.
    Polling,
    /// While packets arrive, and for a moment after; then the kernel wakes it.
    #[default]
    Adaptive,
    /// Whenever the kernel wakes it.
    Interrupt,
}

/// Time that an adaptive worker polls before it sleeps.
const PATIENCE: Duration = Duration::from_micros(100);
/// Longest sleep of a worker; idle sessions are swept after it.
const LONGEST_SLEEP: Duration = Duration::from_millis(250);

/// Time since the system was started, so that it means the same to a later process.
#[derive(Clone, Copy)]
pub(super) struct Clock {
    instant: Instant,
    since_boot: Duration,
}

impl Clock {
    pub(super) fn start() -> Self {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let since_boot = Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec as u32);
        Self { instant: Instant::now(), since_boot }
    }

    pub(super) fn at(self, instant: Instant) -> Now {
        Now(self.since_boot + instant.saturating_duration_since(self.instant))
    }
}

/// Runs a worker until `stop` is set.
pub(super) fn run(
    mut worker: Worker,
    doorbell: &Doorbell,
    stop: &AtomicBool,
    mode: RxMode,
    clock: Clock,
) {
    while !stop.load(Ordering::Acquire) {
        let now = clock.at(Instant::now());
        if worker.round(now) > 0 {
            continue;
        }
        let rests = match mode {
            RxMode::Polling => false,
            RxMode::Adaptive => now.0 - worker.arrived().0 > PATIENCE,
            RxMode::Interrupt => true,
        };
        if rests {
            sleep(&worker, doorbell);
        } else {
            std::hint::spin_loop();
        }
    }
}

/// Sleeps until a port has frames, the doorbell rings, or the longest sleep is over.
fn sleep(worker: &Worker, doorbell: &Doorbell) {
    doorbell.arm();
    if !worker.has_work() {
        worker.counters().sleeps.add(1);
        let timeout = worker.ports().filter_map(Port::due).min().unwrap_or(LONGEST_SLEEP);
        let sources = worker.ports().filter_map(Port::readable).chain(doorbell.readable());
        let mut sources: Vec<PollFd<'_>> =
            sources.map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN)).collect();
        let timeout = Timespec { tv_sec: 0, tv_nsec: timeout.min(LONGEST_SLEEP).as_nanos() as _ };
        // Whatever it says, the worker looks at every port in its next round.
        let _ = poll(&mut sources, Some(&timeout));
    }
    doorbell.disarm();
}
