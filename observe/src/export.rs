//! Writes verdicts to a file, one JSON line each, and rotates it by size.
//!
//! ```text
//! EventBroker ──bounded channel──▶ run (a thread) ──▶ flows.json, flows.json.1 (newest) … flows.json.N
//! ```
//!
//! The broker never waits for the channel: verdicts that find it full are dropped and counted, as are
//! those that the file system refuses. A file holds whole lines only.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use local_api::ObserveFilters;
use serde_json::{Map, Value};

use crate::verdicts::{Event, Filter, Observer};

/// Destination and filter of exported verdicts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    /// The file; older ones have `.1` and so on appended.
    pub path: PathBuf,
    /// Size in bytes at which the file is rotated.
    pub max_bytes: u64,
    /// Number of rotated files kept.
    pub backups: u32,
    /// The verdicts to write.
    pub filter: Filter,
}

/// Counts of the verdicts that match.
#[derive(Debug, Default)]
pub struct ExportCounts {
    /// Written.
    pub written: AtomicU64,
    /// Dropped: they came too fast, or could not be written.
    pub dropped: AtomicU64,
}

/// Verdicts written at once.
const BATCH: usize = 512;
/// Interval of counting drops while no verdict comes.
const IDLE: Duration = Duration::from_millis(500);
/// Wait after a failure before the file is opened again.
const AGAIN: Duration = Duration::from_secs(5);

/// Names of terms: those of the flags of `podgate observe`, without the time span.
pub const TERMS: [&str; 32] = [
    "verdict",
    "pod",
    "from-pod",
    "to-pod",
    "namespace",
    "from-namespace",
    "to-namespace",
    "label",
    "from-label",
    "to-label",
    "workload",
    "from-workload",
    "to-workload",
    "ip",
    "from-ip",
    "to-ip",
    "fqdn",
    "from-fqdn",
    "to-fqdn",
    "service",
    "from-service",
    "to-service",
    "protocol",
    "port",
    "from-port",
    "to-port",
    "tcp-flags",
    "traffic-direction",
    "reason",
    "policy",
    "node",
    NOT,
];
const NOT: &str = "not";

/// Reads a filter: terms such as `verdict=dropped not to-label=app=db`, with the values that the flags take. A repeated
/// term matches any of its values; those behind `not` are inverted.
///
/// # Errors
/// Names the term.
pub fn filter(text: &str) -> Result<Filter, String> {
    // Pods are named with their namespace; a name alone is one of any.
    let (terms, mut inverted) = (terms(text)?, false);
    let (mut wanted, mut except) = (Map::new(), Map::new());
    for (name, value) in terms {
        let field = match name {
            NOT => {
                inverted = true;
                continue;
            }
            "traffic-direction" => "direction".to_owned(),
            name => name.replace('-', "_"),
        };
        let fields = if inverted { &mut except } else { &mut wanted };
        if let Value::Array(values) =
            fields.entry(field).or_insert_with(|| Value::Array(Vec::new()))
        {
            values.push(value.into());
        }
    }
    if inverted && except.is_empty() {
        return Err(format!("{NOT}: no term follows"));
    }
    let except = inverted.then(|| filters(except)).transpose()?.map(Box::new);
    let (follow, all_namespaces) = (true, true);
    let filters = ObserveFilters { follow, all_namespaces, except, ..filters(wanted)? };
    Filter::new(filters).map_err(|error| error.message)
}

fn filters(fields: Map<String, Value>) -> Result<ObserveFilters, String> {
    serde_json::from_value(Value::Object(fields)).map_err(|error| error.to_string())
}

/// The terms, each with its value. Words that begin no term belong to the selector before them, as in
/// `label=tier in (a, b)`.
fn terms(text: &str) -> Result<Vec<(&str, String)>, String> {
    let mut terms: Vec<(&str, String)> = Vec::new();
    for word in text.split_whitespace() {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        match terms.last_mut() {
            _ if TERMS.contains(&name) && value.is_empty() == (name == NOT) => {
                terms.push((name, value.to_owned()));
            }
            Some((selector, text)) if selector.ends_with("label") => {
                text.push(' ');
                text.push_str(word);
            }
            _ => {
                let known = TERMS.join(", ");
                return Err(format!("'{}' is none of {known}, with =VALUE", word.escape_debug()));
            }
        }
    }
    Ok(terms)
}

/// Writes the observer's events until the broker ends it.
pub fn run(observer: &Observer, export: &Export, counts: &ExportCounts) {
    let mut rotating = Rotating { export, file: None, length: 0, failed: None };
    let mut batch: Vec<Arc<Event>> = Vec::with_capacity(BATCH);
    loop {
        match observer.events.recv_timeout(IDLE) {
            Ok(event) => batch.push(event),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        batch.extend(observer.events.try_iter().take(BATCH - batch.len()));
        let (written, refused) = rotating.write(&batch);
        counts.written.fetch_add(written, Ordering::Relaxed);
        counts.dropped.fetch_add(refused + observer.take_lost(), Ordering::Relaxed);
        batch.clear();
    }
}

/// The open file.
struct Rotating<'e> {
    export: &'e Export,
    file: Option<File>,
    /// Bytes of whole lines in it.
    length: u64,
    /// The last failure.
    failed: Option<Instant>,
}

impl Rotating<'_> {
    /// Writes events; returns how many were written, and how many were not.
    fn write(&mut self, events: &[Arc<Event>]) -> (u64, u64) {
        if events.is_empty() {
            return (0, 0);
        }
        let all = events.len() as u64;
        if self.file.is_none() && self.failed.is_some_and(|at| at.elapsed() < AGAIN) {
            return (0, all);
        }
        match self.try_write(events) {
            Ok(()) => {
                if self.failed.take().is_some() {
                    tracing::info!("flow-export: {} is written again", self.export.path.display());
                }
                (all, 0)
            }
            Err(error) => {
                if self.failed.replace(Instant::now()).is_none() {
                    let path = self.export.path.display();
                    tracing::error!("flow-export: {path}: {error}; verdicts are dropped");
                }
                // No part of a line stays.
                if let Some(file) = self.file.take() {
                    let _ = file.set_len(self.length);
                }
                (0, all)
            }
        }
    }

    fn try_write(&mut self, events: &[Arc<Event>]) -> io::Result<()> {
        let mut lines = Vec::with_capacity(events.len() * 400);
        for event in events {
            serde_json::to_writer(&mut lines, &**event)?;
            lines.push(b'\n');
        }
        if self.file.is_none() {
            let file = open(&self.export.path)?;
            self.length = file.metadata()?.len();
            self.file = Some(file);
        }
        if self.length > 0 && self.length + lines.len() as u64 > self.export.max_bytes {
            self.file = None;
            rotate(&self.export.path, self.export.backups)?;
            self.file = Some(open(&self.export.path)?);
            self.length = 0;
        }
        if let Some(file) = &mut self.file {
            file.write_all(&lines)?;
            self.length += lines.len() as u64;
        }
        Ok(())
    }
}

/// Opens a file that only its owner may read; a link or a device is refused.
fn open(path: &Path) -> io::Result<File> {
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits();
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600).custom_flags(flags as i32);
    let file = options.open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "is not a regular file")),
    }
}

/// Makes room for a new file: the oldest is deleted, all others get the next number.
fn rotate(path: &Path, backups: u32) -> io::Result<()> {
    let numbered = |number: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{number}"));
        PathBuf::from(name)
    };
    if backups == 0 {
        return fs::remove_file(path);
    }
    for number in (1..backups).rev() {
        match fs::rename(numbered(number), numbered(number + 1)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    fs::rename(path, numbered(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdicts::denied;
    use testkit::TempDir;

    fn export(folder: &TempDir, max_bytes: u64, backups: u32) -> Export {
        let path = folder.path().join("flows.json");
        Export { path, max_bytes, backups, filter: filter("").unwrap() }
    }

    fn event(n: usize) -> Arc<Event> {
        Arc::new(Event { reason: format!("n{n}").as_str().into(), ..denied() })
    }

    fn reasons(path: &Path) -> Vec<String> {
        let text = fs::read_to_string(path).unwrap();
        assert!(text.ends_with('\n'), "{text}");
        let events = text.lines().map(|line| serde_json::from_str::<Event>(line).unwrap());
        events.map(|event| event.reason.to_string()).collect()
    }

    #[test]
    fn files_rotate_by_size_and_the_newest_are_kept() {
        let folder = TempDir::new("export-rotate");
        let line = serde_json::to_string(&*event(0)).unwrap().len() as u64 + 1;
        let export = export(&folder, 2 * line, 2);
        let mut rotating = Rotating { export: &export, file: None, length: 0, failed: None };
        for n in 0..9 {
            assert_eq!(rotating.write(&[event(n)]), (1, 0));
        }
        let mut names: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|it| it.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["flows.json", "flows.json.1", "flows.json.2"]);
        assert_eq!(reasons(&folder.path().join("flows.json")), ["n8"]);
        assert_eq!(reasons(&folder.path().join("flows.json.1")), ["n6", "n7"]);
        assert_eq!(reasons(&folder.path().join("flows.json.2")), ["n4", "n5"]);
        // The next process goes on in the same file.
        let mut next = Rotating { export: &export, file: None, length: 0, failed: None };
        assert_eq!(next.write(&[event(9)]), (1, 0));
        assert_eq!(reasons(&folder.path().join("flows.json")), ["n8", "n9"]);
    }

    #[test]
    fn what_cannot_be_written_is_counted_and_leaves_no_part_of_a_line() {
        let folder = TempDir::new("export-refused");
        let export = export(&folder, 1 << 20, 1);
        fs::create_dir(&export.path).unwrap();
        let mut rotating = Rotating { export: &export, file: None, length: 0, failed: None };
        assert_eq!(rotating.write(&[event(0), event(1)]), (0, 2));
        fs::remove_dir(&export.path).unwrap();
        assert_eq!(rotating.write(&[event(2)]), (0, 1), "it is not tried at once");
        rotating.failed = Instant::now().checked_sub(AGAIN);
        assert_eq!(rotating.write(&[event(3)]), (1, 0));
        assert_eq!(reasons(&export.path), ["n3"]);
        // A link may lead anywhere.
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&export.path, &link).unwrap();
        assert!(open(&link).is_err());
    }

    #[test]
    fn filters_are_those_of_observe() {
        for (text, expected) in [
            ("", true),
            ("verdict=dropped", true),
            ("verdict=forwarded", false),
            ("namespace=default port=6379", true),
            ("port=80", false),
            ("not port=80", true),
            ("verdict=dropped not port=80", true),
            ("verdict=forwarded not port=80", false),
            ("verdict=dropped not port=6000-7000", false),
            ("to-pod=default/db", true),
            ("to-pod=db", true),
            ("port=80 port=6379", true),
            ("from-port=80 port=6379", false),
            ("tcp-flags=SYN", true),
            ("tcp-flags=SYN,ACK tcp-flags=RST", false),
            ("label=app in (db, api)", false),
            ("not label=app in (db, api) port=80", true),
            ("workload=db", false),
            ("service=shop/db", false),
            ("fqdn=*.example.com", false),
            ("ip=0.0.0.0/0", true),
        ] {
            assert_eq!(filter(text).unwrap().matches(&denied()), expected, "{text}");
        }
        for text in [
            "colour=red",
            "port=x",
            "verdict=maybe",
            "from-ip=db",
            "since=1h",
            "not=port",
            "port=80 not",
            "port",
            "label=a in b",
            "traffic-direction=up",
            "service=db",
        ] {
            assert!(filter(text).is_err(), "{text}");
        }
    }
}
