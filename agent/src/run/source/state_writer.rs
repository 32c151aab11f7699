//! Saves the API server's last objects on disk: they are in force at a start until every kind is
//! listed. The journal's history of objects is written alike.
//!
//! A thread of its own writes, since a large cluster takes a while: soon after policies change,
//! later after other changes, and once more at the end.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant, SystemTime};

use control::history::History;
use control::state::{self, ObjectSnapshot};
use control::{Control, Object};

use super::Restored;
use crate::run::error::StartError;
use crate::run::thread::Thread;

/// Delay after a change of policies.
const SOON: Duration = Duration::from_secs(1);
/// Delay after any other change.
const LEISURE: Duration = Duration::from_secs(10);
/// No history is written before this time after the start.
const HISTORY: Duration = Duration::from_secs(60);
/// Writing takes at most one part in so many of the time: after changes of policies, and after others alone.
const SHARE: u32 = 20;
const SHARE_OF_OTHERS: u32 = 100;

/// The writing thread and the time of its next write.
pub(in crate::run) struct StateWriter {
    work: Sender<ObjectSnapshot>,
    done: Receiver<Outcome>,
    _thread: Thread,
    is_writing: bool,
    due: Option<Instant>,
    /// Policies are among the changes since the last write.
    has_policies: bool,
    /// Duration of the last write, and its end.
    took: Duration,
    ended: Instant,
}

struct Outcome {
    took: Duration,
    result: io::Result<()>,
}

impl StateWriter {
    /// Starts the thread that writes to `state_dir`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(in crate::run) fn start(state_dir: &Path) -> Result<Self, StartError> {
        let path = file(state_dir);
        let save = move |snapshot| {
            state::save(&snapshot, &path)
                .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
        };
        Self::start_with("state_writer", save)
    }

    /// Starts the thread that writes the history of objects into a journal's folder: of at most so many
    /// bytes, and not within the first minute, so that processes that start again and again do not fill it.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(in crate::run) fn start_history(
        folder: &Path,
        most_bytes: u64,
    ) -> Result<Self, StartError> {
        let mut history = History::new(folder, most_bytes);
        let write = move |snapshot| history.write(snapshot, SystemTime::now());
        let mut started = Self::start_with("history", write)?;
        started.ended = Instant::now() + HISTORY;
        Ok(started)
    }

    fn start_with(
        thread: &'static str,
        mut write: impl FnMut(ObjectSnapshot) -> io::Result<()> + Send + 'static,
    ) -> Result<Self, StartError> {
        let (work, wanted) = channel::<ObjectSnapshot>();
        let (results, done) = channel();
        let write = move || {
            for snapshot in wanted {
                let began = Instant::now();
                let result = write(snapshot);
                if results.send(Outcome { took: began.elapsed(), result }).is_err() {
                    return;
                }
            }
        };
        let thread = Thread::start(thread, write)?;
        let (is_writing, due, has_policies) = (false, None, false);
        let (took, ended) = (Duration::ZERO, Instant::now());
        Ok(Self { work, done, _thread: thread, is_writing, due, has_policies, took, ended })
    }

    /// Schedules a write, soon if policies changed.
    pub(in crate::run) fn changed(&mut self, has_policies: bool) {
        let due = Instant::now() + if has_policies { SOON } else { LEISURE };
        self.due = Some(self.due.map_or(due, |known| known.min(due)));
        self.has_policies |= has_policies;
    }

    fn is_due(&self, now: Instant) -> bool {
        let share = if self.has_policies { SHARE } else { SHARE_OF_OTHERS };
        !self.is_writing
            && self.due.is_some_and(|due| due.max(self.ended + self.took * share) <= now)
    }

    /// Starts a write if it is due.
    pub(in crate::run) fn begin_if_due(&mut self, control: &Control) {
        if self.is_due(Instant::now()) {
            self.begin(control);
        }
    }

    fn begin(&mut self, control: &Control) {
        (self.due, self.has_policies) = (None, false);
        self.is_writing = self.work.send(ObjectSnapshot::of(control)).is_ok();
    }

    /// Returns the result of a write that ended since the last call.
    pub(in crate::run) fn take_result(&mut self) -> Option<Result<SystemTime, String>> {
        let outcome = self.done.try_recv().ok()?;
        Some(self.finish_write(outcome))
    }

    fn finish_write(&mut self, outcome: Outcome) -> Result<SystemTime, String> {
        self.is_writing = false;
        (self.took, self.ended) = (outcome.took, Instant::now());
        if outcome.result.is_err() {
            self.changed(false);
        }
        outcome.result.map(|()| SystemTime::now()).map_err(|error| error.to_string())
    }

    /// Writes pending changes and ends the thread.
    pub(in crate::run) fn finish(mut self, control: &Control) {
        if self.is_writing
            && let Ok(outcome) = self.done.recv()
        {
            let _ = self.finish_write(outcome);
        }
        if self.due.is_some() {
            self.begin(control);
            if let Ok(Outcome { result: Err(error), .. }) = self.done.recv() {
                tracing::error!("state-dir: {error}");
            }
        }
    }
}

/// Loads the saved objects; the second value describes the result.
pub(in crate::run) fn load(state_dir: &Path) -> (Vec<Object>, Restored) {
    let path = file(state_dir);
    let written = |path: &Path| std::fs::metadata(path).and_then(|meta| meta.modified());
    match state::load(&path).and_then(|objects| Ok((objects, written(&path)?))) {
        Ok((objects, at)) => (objects, Restored::From(at)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => (Vec::new(), Restored::Nothing),
        Err(error) => (Vec::new(), Restored::Refused(format!("{}: {error}", path.display()))),
    }
}

/// The file of the saved objects.
pub(super) fn file(state_dir: &Path) -> PathBuf {
    state_dir.join("cluster-state")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_takes_long_comes_late_and_later_without_policies() {
        let mut writer = StateWriter::start_with("test", |_| Ok(())).unwrap();
        let seconds = Duration::from_secs;
        (writer.took, writer.ended) = (seconds(1), Instant::now() + seconds(60));
        let ended = writer.ended;
        writer.changed(false);
        assert!(!writer.is_due(ended + seconds(99)) && writer.is_due(ended + seconds(100)));
        writer.changed(true);
        assert!(!writer.is_due(ended + seconds(19)) && writer.is_due(ended + seconds(20)));
        writer.changed(false);
        assert!(writer.is_due(ended + seconds(20)), "the policies are not written yet");
        writer.is_writing = true;
        assert!(!writer.is_due(ended + seconds(200)));
    }
}
