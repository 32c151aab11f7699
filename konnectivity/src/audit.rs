//! The audit log: one line for each connection with client, target, bytes, duration and outcome.
//!
//! A thread of its own writes the lines, since connections are audited under their locks.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Serialize, Serializer};
pub use telemetry::log::Format;

use crate::file::identity;

/// The log's destination.
#[derive(Clone, Debug)]
pub struct Audit {
    format: Format,
    /// True if lines go to the log.
    logs: bool,
    queue: Arc<Closes>,
}

/// Maximum number of lines that wait for the writer. Further ones are lost, and counted in the log.
const MOST_LINES: usize = 16 * 1024;
/// Timeout of writing what waits at the end.
const FLUSH: Duration = Duration::from_secs(1);

#[derive(Debug)]
enum Target {
    /// The log, at level info.
    Log,
    Stdout,
    File(PathBuf, File),
}

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    lines: VecDeque<String>,
    lost: u64,
    writing: bool,
    closed: bool,
}

/// Ends the writer with the last [`Audit`].
#[derive(Debug, Default)]
struct Closes(Arc<Queue>);

/// The content of a line.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Record<'a> {
    pub(crate) role: &'a str,
    pub(crate) who: &'a str,
    pub(crate) target: &'a str,
    pub(crate) agent: &'a str,
    /// 0 if it was never established.
    pub(crate) connection: i64,
    #[serde(rename = "bytes_to_target")]
    pub(crate) to_target: u64,
    #[serde(rename = "bytes_from_target")]
    pub(crate) from_target: u64,
    #[serde(rename = "duration_seconds", serialize_with = "seconds")]
    pub(crate) duration: Duration,
    pub(crate) outcome: &'a str,
}

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    #[serde(flatten)]
    record: &'a Record<'a>,
}

fn seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

impl Audit {
    /// Writes lines in this format to a file, to stdout (`-`), or by default to the log.
    ///
    /// # Errors
    /// Fails if the file cannot be opened, or the writer's thread cannot be started.
    pub fn new(file: Option<&Path>, format: Format) -> io::Result<Self> {
        let target = match file {
            None => Target::Log,
            Some(path) if path == Path::new("-") => Target::Stdout,
            Some(path) => Target::File(path.to_owned(), open(path)?),
        };
        let logs = matches!(target, Target::Log);
        let queue = Arc::<Closes>::default();
        let lines = Arc::clone(&queue.0);
        let thread = std::thread::Builder::new().name("audit".into());
        thread.spawn(move || lines.write_to(target))?;
        Ok(Self { format, logs, queue })
    }

    pub(crate) fn write(&self, record: &Record<'_>) {
        if self.logs && !tracing::enabled!(tracing::Level::INFO) {
            return;
        }
        let line = self.line(record);
        let mut state = self.queue.0.lock();
        if state.lines.len() < MOST_LINES {
            state.lines.push_back(line);
        } else {
            state.lost += 1;
        }
        drop(state);
        self.queue.0.changed.notify_all();
    }

    /// Waits until the lines so far are written, for a moment at most.
    pub(crate) fn flush(&self) {
        let Closes(queue) = &*self.queue;
        let busy = |state: &mut State| state.writing || !state.lines.is_empty();
        // A writer that takes longer is blocked.
        let _blocked = queue.changed.wait_timeout_while(queue.lock(), FLUSH, busy);
    }

    fn line(&self, record: &Record<'_>) -> String {
        match self.format {
            Format::Text => format!(
                "{} -> {} through {} connection {}: {} B out, {} B in, {:.3} s: {}",
                name(record.who),
                name(record.target),
                name(record.agent),
                record.connection,
                record.to_target,
                record.from_target,
                record.duration.as_secs_f64(),
                record.outcome.escape_debug(),
            ),
            Format::Json => {
                let line = Line { time: crate::clock::now(), record };
                serde_json::to_string(&line).unwrap_or_else(|error| error.to_string())
            }
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes lines until the queue is closed and empty.
    fn write_to(&self, mut target: Target) {
        loop {
            let idle = |state: &mut State| state.lines.is_empty() && !state.closed;
            let waited = self.changed.wait_while(self.lock(), idle);
            let mut state = waited.unwrap_or_else(PoisonError::into_inner);
            let lines = std::mem::take(&mut state.lines);
            let lost = std::mem::take(&mut state.lost);
            if lines.is_empty() {
                return;
            }
            state.writing = true;
            drop(state);
            if lost > 0 {
                tracing::error!("audit: {lost} lines were lost, since their writer was blocked");
            }
            if let Err(error) = target.write(lines) {
                tracing::error!("audit: {error}");
            }
            self.lock().writing = false;
            self.changed.notify_all();
        }
    }
}

impl Drop for Closes {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.changed.notify_all();
    }
}

impl Target {
    fn write(&mut self, lines: VecDeque<String>) -> io::Result<()> {
        let Self::File(path, file) = self else {
            for line in lines {
                match self {
                    Self::Log => tracing::info!("{line}"),
                    _ => writeln!(io::stdout(), "{line}")?,
                }
            }
            return Ok(());
        };
        // Rotation moved the file away.
        if std::fs::metadata(&*path).ok().map(|it| identity(&it))
            != Some(identity(&file.metadata()?))
        {
            match open(path) {
                Ok(new) => *file = new,
                Err(error) => tracing::error!("audit: {error}; the former file is written on"),
            }
        }
        // One write a line, so that lines of two processes do not mix.
        lines.into_iter().try_for_each(|line| file.write_all(format!("{line}\n").as_bytes()))
    }
}

/// Escapes a name from outside, so that it stays on one line.
fn name(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.escape_debug().to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_rotated_is_opened_again() {
        let folder = testkit::TempDir::new("audit");
        let [path, old] = ["audit", "audit.1"].map(|name| folder.path().join(name));
        let audit = Audit::new(Some(&path), Format::Text).unwrap();
        let lines = |path: &Path| std::fs::read_to_string(path).unwrap().lines().count();
        audit.write(&Record::default());
        audit.flush();
        std::fs::rename(&path, &old).unwrap();
        audit.write(&Record::default());
        audit.write(&Record::default());
        audit.flush();
        assert_eq!((lines(&old), lines(&path)), (1, 2));
    }

    #[test]
    fn a_blocked_file_blocks_no_connection() {
        // A pipe that is not read takes 64 KiB.
        let folder = testkit::TempDir::new("audit");
        let path = folder.path().join("audit");
        testkit::make_fifo(&path);
        // Open for both, it waits for no other end.
        let both = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let audit = Audit::new(Some(&path), Format::Json).unwrap();
        let reader = File::open(&path).unwrap();
        drop(both);
        let (sender, written) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for _ in 0..3 * MOST_LINES {
                audit.write(&Record::default());
            }
            sender.send(audit).unwrap();
        });
        let audit = written.recv_timeout(Duration::from_secs(60)).expect("it is not blocked");
        drop(audit);
        let lines = io::BufRead::lines(io::BufReader::new(reader)).count();
        assert!((MOST_LINES..3 * MOST_LINES).contains(&lines), "{lines}");
    }

    #[test]
    fn both_formats() {
        let record = Record {
            role: "server",
            who: "CN=kube-apiserver",
            target: "evil\nhost:1",
            agent: "a",
            connection: 1,
            to_target: 2,
            from_target: 3,
            duration: Duration::from_millis(1500),
            outcome: "closed by client",
        };
        let text = Audit::new(None, Format::Text).unwrap().line(&record);
        assert_eq!(
            text,
            "CN=kube-apiserver -> evil\\nhost:1 through a connection 1: 2 B out, 3 B in, 1.500 s: \
             closed by client"
        );
        let json = Audit::new(None, Format::Json).unwrap().line(&record);
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["target"], "evil\nhost:1");
        assert_eq!(value["bytes_from_target"], 3);
        assert_eq!(value["duration_seconds"], 1.5);
    }
}
