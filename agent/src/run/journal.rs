//! Writes the journal: the connections of this node, hour by hour.
//!
//! A crash loses what came in the last minute; files are replaced as a whole.

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant, SystemTime};

use control::{Durability, replace_file};
use flate2::Compression;
use flate2::write::GzEncoder;
use observe::journal::{Hour, files, hour_of};
use observe::verdicts::{Event, Observer};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// Where the journal is, and how large it may be.
#[derive(Debug, Clone)]
pub(super) struct Journal {
    pub(super) folder: PathBuf,
    pub(super) most_bytes: u64,
    pub(super) node: String,
}

/// State of the journal, for status and metrics.
#[derive(Debug, Default)]
pub(crate) struct JournalState {
    pub(crate) files: Mutex<Files>,
    /// Verdicts that came too fast.
    pub(crate) lost: AtomicU64,
}

/// The files of the journal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Files {
    /// Their bytes.
    pub bytes: u64,
    /// The oldest hour, such as `2026-11-25T09` (UTC); `None` before the first is written.
    pub oldest: Option<String>,
}

/// Interval of writing the present hour.
const INTERVAL: Duration = Duration::from_secs(60);
/// Interval of looking whether it is over, while no connection opens.
const IDLE: Duration = Duration::from_millis(500);

/// Writes what the observer gets until the broker ends it.
pub(super) fn run(observer: &Observer, journal: &Journal, state: &JournalState) {
    let mut writer = Writer::begin(journal, hour_of(SystemTime::now()));
    let mut written = Instant::now();
    loop {
        let is_over = match observer.events.recv_timeout(IDLE) {
            Ok(event) => {
                writer.count(&event);
                observer.events.try_iter().for_each(|event| writer.count(&event));
                false
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => true,
        };
        state.lost.fetch_add(observer.take_lost(), Ordering::Relaxed);
        let hour = hour_of(SystemTime::now());
        if is_over || hour != writer.name || written.elapsed() >= INTERVAL {
            written = Instant::now();
            match writer.write(hour) {
                Ok(files) => *state.files.lock() = files,
                Err(error) => tracing::error!("journal: {}: {error}", journal.folder.display()),
            }
        }
        if is_over {
            return;
        }
    }
}

/// The present hour.
struct Writer<'a> {
    journal: &'a Journal,
    name: String,
    hour: Hour,
    has_new: bool,
}

impl<'a> Writer<'a> {
    /// Continues the hour `name`, if an earlier process began it.
    fn begin(journal: &'a Journal, name: String) -> Self {
        let hour = match Hour::resume(&path(journal, &name)) {
            Ok(hour) => hour,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Hour::default(),
            Err(error) => {
                tracing::warn!("journal: {name}: {error}; the hour begins anew");
                Hour::default()
            }
        };
        Self { journal, name, hour, has_new: false }
    }

    fn count(&mut self, event: &Event) {
        self.hour.count(event);
        self.has_new = true;
    }

    /// Writes the hour, and begins another one if it is over.
    fn write(&mut self, now: String) -> io::Result<Files> {
        fs::create_dir_all(&self.journal.folder)?;
        if std::mem::take(&mut self.has_new) {
            let write = |out: &mut io::BufWriter<File>| self.hour.write(&self.journal.node, out);
            replace_file(&path(self.journal, &self.name), Durability::Synced, write)?;
        }
        if now != self.name {
            (self.name, self.hour) = (now, Hour::default());
        }
        tidy(self.journal, &self.name)
    }
}

fn path(journal: &Journal, hour: &str) -> PathBuf {
    journal.folder.join(format!("{hour}.json"))
}

/// Compresses hours that are over, and deletes the oldest ones beyond the size.
fn tidy(journal: &Journal, present: &str) -> io::Result<Files> {
    let present = path(journal, present);
    let is_over = |file: &Path| file.extension().is_some_and(|it| it == "json") && *file != present;
    for file in files(&journal.folder)?.into_iter().filter(|file| is_over(file)) {
        let compressed = file.with_extension("json.gz");
        replace_file(&compressed, Durability::Synced, |out| {
            let mut encoder = GzEncoder::new(out, Compression::default());
            io::copy(&mut BufReader::new(File::open(&file)?), &mut encoder)?;
            encoder.finish().map(|_| ())
        })?;
        fs::remove_file(&file)?;
    }
    let all = files(&journal.folder)?;
    let sizes = all.iter().map(|file| Ok(fs::metadata(file)?.len()));
    let sizes = sizes.collect::<io::Result<Vec<u64>>>()?;
    let mut bytes: u64 = sizes.iter().sum();
    let mut left = all.iter().zip(sizes).peekable();
    while let Some((file, size)) =
        left.next_if(|(file, _)| bytes > journal.most_bytes && **file != present)
    {
        fs::remove_file(file)?;
        bytes -= size;
    }
    let hour = |(file, _): (&PathBuf, u64)| {
        Some(file.file_name()?.to_str()?.split_once('.')?.0.to_owned())
    };
    Ok(Files { bytes, oldest: left.next().and_then(hour) })
}

#[cfg(test)]
mod tests {
    use local_api::Verdict;
    use observe::journal::read;
    use observe::verdicts::{End, Protocol};
    use testkit::TempDir;

    use super::*;

    fn event(n: usize) -> Event {
        let end = |pod: String, port| End { pod: Some(pod.into()), port, ..End::default() };
        Event {
            time: observe::time::moment("2026-11-25T09:00:01.000Z").unwrap(),
            node: "n1".into(),
            verdict: Verdict::Forwarded,
            reason: "policy-allowed".into(),
            by: vec!["default-allow".into()],
            from: end(format!("shop/web-{n}"), None),
            to: end("shop/db".to_owned(), Some(5432)),
            protocol: Some(Protocol(6)),
            icmp_type: None,
            tcp_flags: None,
            in_port: None,
            out_port: None,
            staged: None,
            denied: None,
        }
    }

    fn journal(folder: &TempDir, most_bytes: u64) -> Journal {
        let folder = folder.path().join("journal");
        Journal { folder, most_bytes, node: "n1".to_owned() }
    }

    fn names(journal: &Journal) -> Vec<String> {
        let name = |path: PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
        files(&journal.folder).unwrap().into_iter().map(name).collect()
    }

    #[test]
    fn an_hour_survives_a_kill_and_is_compressed_when_it_is_over() {
        let folder = TempDir::new("journal");
        let journal = journal(&folder, 1 << 20);
        let mut writer = Writer::begin(&journal, "2026-11-25T09".into());
        writer.count(&event(1));
        writer.write("2026-11-25T09".into()).unwrap();
        writer.count(&event(2));
        // Killed before the next minute.
        let mut writer = Writer::begin(&journal, "2026-11-25T09".into());
        writer.count(&event(1));
        writer.write("2026-11-25T10".into()).unwrap();
        writer.count(&event(3));
        writer.write("2026-11-25T10".into()).unwrap();
        assert_eq!(names(&journal), ["2026-11-25T09.json.gz", "2026-11-25T10.json"]);
        let (rows, left_out) = read(&journal.folder, None).unwrap();
        let mut counts: Vec<_> =
            rows.iter().map(|row| (row.event.from.to_string(), row.count)).collect();
        counts.sort();
        assert_eq!(counts, [("shop/web-1".to_owned(), 2), ("shop/web-3".to_owned(), 1)]);
        assert_eq!(left_out, 0);
        // An hour that a process left is compressed by the next one.
        Writer::begin(&journal, "2026-11-25T12".into()).write("2026-11-25T12".into()).unwrap();
        assert_eq!(names(&journal), ["2026-11-25T09.json.gz", "2026-11-25T10.json.gz"]);
    }

    #[test]
    fn the_oldest_hours_make_room() {
        let folder = TempDir::new("journal-size");
        let journal = journal(&folder, 3_000);
        let mut writer = Writer::begin(&journal, "2026-11-25T00".into());
        for hour in 1..=20 {
            (0..20).for_each(|n| writer.count(&event(100 * hour + n)));
            writer.write(format!("2026-11-25T{hour:02}")).unwrap();
        }
        let Files { bytes, oldest } = writer.write("2026-11-25T21".into()).unwrap();
        let names = names(&journal);
        assert_eq!(oldest.as_deref(), names[0].split('.').next());
        assert!(bytes <= 3_000 && names.len() > 1, "{bytes} {names:?}");
        assert_eq!(names.last().unwrap(), "2026-11-25T19.json.gz");
    }
}
