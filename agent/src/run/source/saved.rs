//! What the API server told last, on disk: in force at a start until it tells again.
//!
//! Writing a large cluster takes a while, so a thread of its own does it. It is written soon
//! after policies change, at leisure after anything else, and once more at the end.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use control::state::{self, Kept};
use control::{Control, Object};

use super::Restored;
use crate::run::StartError;

/// After a change of policies.
const SOON: Duration = Duration::from_secs(1);
/// After any other change.
const LEISURE: Duration = Duration::from_secs(10);
/// Writing may take this part of the time, at most.
const SHARE: u32 = 20;

/// The thread that writes, and when it is to write next.
pub(in crate::run) struct Saver {
    work: Option<Sender<Kept>>,
    done: Receiver<Outcome>,
    thread: Option<JoinHandle<()>>,
    is_writing: bool,
    due: Option<Instant>,
    /// Not before, so that writing does not take over.
    not_before: Instant,
}

struct Outcome {
    took: Duration,
    result: io::Result<()>,
}

impl Saver {
    /// Starts the thread that writes to `state_dir`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(in crate::run) fn start(state_dir: &Path) -> Result<Self, StartError> {
        let path = file(state_dir);
        let (work, wanted) = channel::<Kept>();
        let (tell, done) = channel();
        let write = move || {
            for kept in wanted {
                let began = Instant::now();
                let result = state::save(&kept, &path)
                    .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())));
                if tell.send(Outcome { took: began.elapsed(), result }).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("saver".into()).spawn(write);
        let thread = thread.map_err(|error| StartError::Failed(format!("start a thread: {error}")));
        let (is_writing, due, not_before) = (false, None, Instant::now());
        Ok(Self { work: Some(work), done, thread: Some(thread?), is_writing, due, not_before })
    }

    /// Something changed; `soon` if it decides who may reach whom.
    pub(in crate::run) fn changed(&mut self, soon: bool) {
        let due = Instant::now() + if soon { SOON } else { LEISURE };
        self.due = Some(self.due.map_or(due, |known| known.min(due)));
    }

    /// Begins to write if it is time to.
    pub(in crate::run) fn begin_if_due(&mut self, control: &Control) {
        let now = Instant::now();
        if !self.is_writing && self.due.is_some_and(|due| due.max(self.not_before) <= now) {
            self.begin(control);
        }
    }

    fn begin(&mut self, control: &Control) {
        self.due = None;
        if let Some(work) = &self.work {
            self.is_writing = work.send(Kept::of(control)).is_ok();
        }
    }

    /// What came of the last writing, if it ended since this was asked last.
    pub(in crate::run) fn take_result(&mut self) -> Option<Result<SystemTime, String>> {
        let outcome = self.done.try_recv().ok()?;
        Some(self.settle(outcome))
    }

    fn settle(&mut self, outcome: Outcome) -> Result<SystemTime, String> {
        self.is_writing = false;
        self.not_before = Instant::now() + outcome.took * SHARE;
        if outcome.result.is_err() {
            self.changed(false);
        }
        outcome.result.map(|()| SystemTime::now()).map_err(|error| error.to_string())
    }

    /// Writes what is not written yet, and ends.
    pub(in crate::run) fn finish(mut self, control: &Control) {
        if self.is_writing
            && let Ok(outcome) = self.done.recv()
        {
            let _ = self.settle(outcome);
        }
        if self.due.is_some() {
            self.begin(control);
            if let Ok(Outcome { result: Err(error), .. }) = self.done.recv() {
                tracing::error!("state-dir: {error}");
            }
        }
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        drop(self.work.take());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

/// What was saved, and what is to be said about it.
pub(in crate::run) fn load(state_dir: &Path) -> (Vec<Object>, Restored) {
    let path = file(state_dir);
    let written = |path: &Path| std::fs::metadata(path).and_then(|meta| meta.modified());
    match state::load(&path).and_then(|objects| Ok((objects, written(&path)?))) {
        Ok((objects, at)) => (objects, Restored::From(at)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => (Vec::new(), Restored::Nothing),
        Err(error) => (Vec::new(), Restored::Refused(format!("{}: {error}", path.display()))),
    }
}

fn file(state_dir: &Path) -> PathBuf {
    state_dir.join("cluster-state")
}
