//! One part of the kernel's configuration, kept in the desired state by a thread of its own.
//!
//! Setting the desired state never waits. The thread applies the newest one, retries failures with
//! growing pauses, and applies it again at intervals and after reports of changes. Applying is
//! idempotent, so this restores what other programs changed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::backoff::Backoff;
use super::error::KernelError;
use crate::run::error::StartError;
use crate::run::thread::Thread;

/// Least time between two verifications.
const BETWEEN: Duration = Duration::from_millis(500);
/// Least time between a failure and an attempt after a report of a change.
const AFTER_FAILURE: Duration = Duration::from_secs(2);

/// An attempt that takes longer is reported, as one that failed is.
pub(super) const LONG: Duration = Duration::from_secs(5);

/// The thread and its desired state. Dropping it applies the state set last and ends the thread.
pub(in crate::run) struct Programmer<D> {
    name: &'static str,
    shared: Arc<Shared<D>>,
    _thread: Thread,
}

/// A programmer of any part.
pub(in crate::run) trait Programs {
    /// State of the kernel's configuration, by part.
    fn programming(&self) -> Programming;

    /// Waits until the desired state was tried, for `timeout` at most.
    fn wait(&self, timeout: Duration);
}

/// State of the kernel's configuration, by part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::run) struct Programming {
    /// The part of the configuration.
    pub(in crate::run) name: &'static str,
    /// Whether the kernel has the desired state.
    pub(in crate::run) in_sync: bool,
    /// Error of the last attempt, if it failed.
    pub(in crate::run) error: Option<String>,
}

struct Shared<D> {
    state: Mutex<State<D>>,
    changed: Condvar,
}

struct State<D> {
    desired: Option<D>,
    /// Number of the desired state, and of the one that was tried last.
    version: u64,
    tried: u64,
    verify: bool,
    stop: bool,
    error: Option<String>,
    /// When the attempt began that is under way.
    began: Option<Instant>,
}

/// The thread's next action.
enum Next<D> {
    Apply(D, u64),
    Wait(Option<Duration>),
    Stop,
}

/// The thread's schedule, as a function of time.
struct Timer {
    verify_every: Duration,
    last: Option<Instant>,
    retry: Backoff,
}

impl<D: Clone + PartialEq + Send + 'static> Programmer<D> {
    /// Starts the thread. `apply` brings the kernel into the given state from any other.
    ///
    /// # Errors
    /// If there is no thread.
    pub(in crate::run) fn start(
        name: &'static str,
        verify_every: Duration,
        apply: impl FnMut(&D) -> Result<(), KernelError> + Send + 'static,
    ) -> Result<Self, StartError> {
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new() });
        let timer = Timer { verify_every, last: None, retry: Backoff::default() };
        let theirs = Arc::clone(&shared);
        let run = move || run(name, &theirs, timer, apply);
        let thread = Thread::start(name, run)?;
        Ok(Self { name, shared, _thread: thread })
    }

    /// Sets the desired state; the thread applies it at once if it changed.
    pub(in crate::run) fn set(&self, desired: D) {
        let mut state = self.shared.state.lock();
        if state.desired.as_ref() != Some(&desired) {
            state.desired = Some(desired);
            state.version += 1;
            self.shared.changed.notify_all();
        }
    }

    /// Schedules a check after a change in the kernel.
    pub(in crate::run) fn verify(&self) {
        self.shared.state.lock().verify = true;
        self.shared.changed.notify_all();
    }
}

impl<D> Programs for Programmer<D> {
    fn programming(&self) -> Programming {
        let state = self.shared.state.lock();
        let in_sync = state.tried == state.version && state.error.is_none();
        Programming { name: self.name, in_sync, error: state.error(Instant::now()) }
    }

    fn wait(&self, timeout: Duration) {
        let mut state = self.shared.state.lock();
        let is_open = |state: &mut State<D>| state.tried != state.version;
        self.shared.changed.wait_while_for(&mut state, is_open, timeout);
    }
}

impl<D> Drop for Programmer<D> {
    fn drop(&mut self) {
        self.shared.state.lock().stop = true;
        self.shared.changed.notify_all();
    }
}

impl<D> Default for State<D> {
    fn default() -> Self {
        Self {
            desired: None,
            version: 0,
            tried: 0,
            verify: false,
            stop: false,
            error: None,
            began: None,
        }
    }
}

impl<D> State<D> {
    /// The error of the last attempt, or that the one for a new desired state does not end.
    fn error(&self, now: Instant) -> Option<String> {
        let is_late = self.tried != self.version && self.began.is_some_and(|it| now - it > LONG);
        let late = || is_late.then(|| "the kernel does not finish".to_owned());
        self.error.clone().or_else(late)
    }
}

impl<D: Clone> State<D> {
    fn next(&self, timer: &Timer, now: Instant) -> Next<D> {
        let Some(desired) = self.desired.clone() else {
            return if self.stop { Next::Stop } else { Next::Wait(None) };
        };
        if self.tried != self.version {
            return Next::Apply(desired, self.version);
        }
        if self.stop {
            return Next::Stop;
        }
        match timer.due(self.verify).checked_duration_since(now) {
            Some(wait) if !wait.is_zero() => Next::Wait(Some(wait)),
            _ => Next::Apply(desired, self.version),
        }
    }
}

impl Timer {
    fn due(&self, verify: bool) -> Instant {
        let last = self.last.unwrap_or_else(Instant::now);
        match self.retry.due() {
            // What failed may succeed now: a pod's interface has come.
            Some(due) if verify => due.min(last + AFTER_FAILURE),
            Some(due) => due,
            None if verify => last + BETWEEN.min(self.verify_every),
            None => last + self.verify_every,
        }
    }

    fn applied(&mut self, is_ok: bool, now: Instant) {
        self.last = Some(now);
        match is_ok {
            true => self.retry.stop(),
            false => self.retry.fail(now),
        }
    }
}

fn run<D: Clone>(
    name: &str,
    shared: &Shared<D>,
    mut timer: Timer,
    mut apply: impl FnMut(&D) -> Result<(), KernelError>,
) {
    let mut state = shared.state.lock();
    loop {
        match state.next(&timer, Instant::now()) {
            Next::Stop => return,
            Next::Wait(None) => shared.changed.wait(&mut state),
            Next::Wait(Some(wait)) => {
                shared.changed.wait_for(&mut state, wait);
            }
            Next::Apply(desired, version) => {
                state.verify = false;
                state.began = Some(Instant::now());
                let result = MutexGuard::unlocked(&mut state, || apply(&desired));
                timer.applied(result.is_ok(), Instant::now());
                let error = result.err().map(|error| error.to_string());
                match (&error, &state.error) {
                    (Some(new), old) if Some(new) != old.as_ref() => {
                        tracing::error!("{name}: {new}")
                    }
                    (None, Some(_)) => tracing::info!("{name}: in sync again"),
                    _ => {}
                }
                (state.tried, state.error, state.began) = (version, error, None);
                shared.changed.notify_all();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// A programmer whose attempts arrive here; those of odd numbers fail the first time.
    fn programmer(verify_every: Duration) -> (Programmer<u32>, Receiver<u32>) {
        let (attempts, attempted) = channel();
        let mut failed = false;
        let apply = move |desired: &u32| {
            attempts.send(*desired).unwrap();
            let fails = desired % 2 == 1 && !failed;
            failed |= fails;
            if fails { Err("odd".into()) } else { Ok(()) }
        };
        (Programmer::start("test", verify_every, apply).unwrap(), attempted)
    }

    #[test]
    fn what_failed_is_tried_again_and_said_meanwhile() {
        let (programmer, attempted) = programmer(PATIENCE);
        programmer.set(1);
        programmer.wait(PATIENCE);
        let programming = programmer.programming();
        assert_eq!((programming.in_sync, programming.error.as_deref()), (false, Some("odd")));
        assert_eq!(attempted.recv_timeout(PATIENCE), Ok(1));
        assert_eq!(attempted.recv_timeout(PATIENCE), Ok(1), "after a pause");
        while !programmer.programming().in_sync {
            std::thread::yield_now();
        }
        // A failure does not delay the next desired state.
        programmer.set(2);
        assert_eq!(attempted.recv_timeout(PATIENCE), Ok(2));
        drop(programmer);
        assert!(attempted.recv().is_err(), "nothing is done twice");
    }

    #[test]
    fn a_change_waits_for_no_long_pause_after_failures() {
        let began = Instant::now();
        let mut timer = Timer { verify_every: PATIENCE, last: None, retry: Backoff::default() };
        (0..6).for_each(|_| timer.applied(false, began));
        assert_eq!(timer.due(false), began + Duration::from_secs(30));
        assert_eq!(timer.due(true), began + AFTER_FAILURE);
        // The first pause is shorter.
        let mut once = Timer { verify_every: PATIENCE, last: None, retry: Backoff::default() };
        once.applied(false, began);
        assert_eq!(once.due(true), began + Duration::from_secs(1));
    }

    #[test]
    fn an_attempt_that_does_not_end_is_an_error_until_it_ends() {
        let began = Instant::now();
        let state = State { version: 1, began: Some(began), ..State::<u32>::default() };
        assert_eq!(state.error(began + LONG), None);
        let late = began + LONG + Duration::from_secs(1);
        assert_eq!(state.error(late).as_deref(), Some("the kernel does not finish"));
        // What was tried is in force, and only looked at.
        assert_eq!(State { tried: 1, ..state }.error(late), None);
    }

    #[test]
    fn the_state_is_applied_anew_at_intervals_and_when_something_changed() {
        let (often, attempted) = programmer(Duration::from_millis(1));
        often.set(2);
        for _ in 0..3 {
            assert_eq!(attempted.recv_timeout(PATIENCE), Ok(2));
        }
        drop(often);
        let (seldom, attempted) = programmer(PATIENCE);
        seldom.set(2);
        assert_eq!(attempted.recv_timeout(PATIENCE), Ok(2));
        seldom.verify();
        assert_eq!(attempted.recv_timeout(PATIENCE), Ok(2));
    }

    #[test]
    fn what_was_set_last_is_applied_at_the_end() {
        let (programmer, attempted) = programmer(PATIENCE);
        programmer.set(2);
        programmer.set(4);
        drop(programmer);
        assert_eq!(attempted.iter().last(), Some(4));
    }
}
