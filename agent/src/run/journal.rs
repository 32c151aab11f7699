//! Writes the journal: the connections of this node, hour by hour.
//!
//! A crash loses what came in the last minute; files are replaced as a whole. What cannot be written stays in
//! memory and is tried again every minute; until then the hour goes on.

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
    let (mut written, mut failed) = (Instant::now(), false);
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
        let is_due = written.elapsed() >= INTERVAL || hour != writer.name && !failed;
        if is_over || is_due {
            written = Instant::now();
            let result = writer.write(hour);
            failed = result.is_err();
            match result {
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
    /// Continues the hour `name`, if it has begun already: in an earlier process, or before the clock was set
    /// back.
    fn begin(journal: &'a Journal, name: String) -> Self {
        let present = path(journal, &name);
        let size = journal.most_bytes;
        let resumed = match Hour::resume(&present, size) {
            Err(error) if is_missing(&error) => Hour::resume(&compressed(&present), size),
            resumed => resumed,
        };
        let hour = resumed.unwrap_or_else(|error| {
            if !is_missing(&error) {
                tracing::warn!("journal: {name}: {error}; the hour begins anew");
            }
            Hour::new(size)
        });
        Self { journal, name, hour, has_new: false }
    }

    fn count(&mut self, event: &Event) {
        self.hour.count(event);
        self.has_new = true;
    }

    /// Writes the hour, and begins another one if it is over.
    fn write(&mut self, now: String) -> io::Result<Files> {
        fs::create_dir_all(&self.journal.folder)?;
        if self.has_new {
            let write = |out: &mut io::BufWriter<File>| self.hour.write(&self.journal.node, out);
            let present = path(self.journal, &self.name);
            replace_file(&present, Durability::Synced, write)?;
            self.has_new = false;
            // The hour goes on after the clock was set back.
            let before = compressed(&present);
            if before.is_file() {
                fs::remove_file(before)?;
            }
        }
        if now != self.name {
            *self = Self::begin(self.journal, now);
        }
        tidy(self.journal, &self.name)
    }
}

fn path(journal: &Journal, hour: &str) -> PathBuf {
    journal.folder.join(format!("{hour}.json"))
}

/// The name of a file when its hour is over.
fn compressed(hour: &Path) -> PathBuf {
    hour.with_extension("json.gz")
}

fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

/// Compresses hours that are over, and deletes the oldest ones beyond the size, also where one cannot be
/// compressed.
fn tidy(journal: &Journal, present: &str) -> io::Result<Files> {
    let present = path(journal, present);
    let is_over = |file: &Path| file.extension().is_some_and(|it| it == "json") && *file != present;
    let compress = |file: &PathBuf| {
        replace_file(&compressed(file), Durability::Synced, |out| {
            let mut encoder = GzEncoder::new(out, Compression::default());
            io::copy(&mut BufReader::new(File::open(file)?), &mut encoder)?;
            encoder.finish().map(|_| ())
        })?;
        fs::remove_file(file)
    };
    let over: Vec<PathBuf> = files(&journal.folder)?.into_iter().filter(|it| is_over(it)).collect();
    let results: Vec<io::Result<()>> = over.iter().map(compress).collect();
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
    results.into_iter().collect::<io::Result<()>>()?;
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
    fn a_clock_that_is_set_back_loses_no_hour() {
        let folder = TempDir::new("journal-back");
        let journal = journal(&folder, 1 << 20);
        let mut writer = Writer::begin(&journal, "2026-11-25T09".into());
        for (n, hour) in ["2026-11-25T10", "2026-11-25T09", "2026-11-25T10"].iter().enumerate() {
            writer.count(&event(n));
            writer.write((*hour).into()).unwrap();
        }
        writer.count(&event(3));
        writer.write("2026-11-25T11".into()).unwrap();
        assert_eq!(names(&journal), ["2026-11-25T09.json.gz", "2026-11-25T10.json.gz"]);
        let rows = read(&journal.folder, None).unwrap().0;
        assert_eq!(rows.iter().map(|row| row.count).collect::<Vec<_>>(), [1, 1, 1, 1]);
    }

    /// A file that cannot be compressed: an odd object in the place of what it would become.
    #[test]
    fn an_hour_that_cannot_be_compressed_keeps_no_room_and_loses_nothing() {
        let folder = TempDir::new("journal-odd");
        let journal = journal(&folder, 6_000);
        let mut writer = Writer::begin(&journal, "2026-11-25T00".into());
        fs::create_dir_all(journal.folder.join("2026-11-25T00.json.gz/x")).unwrap();
        for hour in 1..=10 {
            (0..20).for_each(|n| writer.count(&event(100 * hour + n)));
            // The folder stands in the way of the first one.
            let _ = writer.write(format!("2026-11-25T{hour:02}"));
        }
        let bytes: u64 =
            files(&journal.folder).unwrap().iter().map(|it| fs::metadata(it).unwrap().len()).sum();
        assert!(bytes <= 6_000 && names(&journal).len() > 1, "{bytes} {:?}", names(&journal));
    }

    /// As on a full disk: nothing is lost, and what comes meanwhile belongs to the hour that goes on.
    #[test]
    fn what_cannot_be_written_is_kept() {
        let folder = TempDir::new("journal-full");
        let journal = journal(&folder, 1 << 20);
        fs::write(&journal.folder, "in the way").unwrap();
        let mut writer = Writer::begin(&journal, "2026-11-25T09".into());
        writer.count(&event(1));
        assert!(writer.write("2026-11-25T10".into()).is_err());
        writer.count(&event(2));
        fs::remove_file(&journal.folder).unwrap();
        writer.write("2026-11-25T10".into()).unwrap();
        assert_eq!(read(&journal.folder, None).unwrap().0.len(), 2);
        assert_eq!(names(&journal), ["2026-11-25T09.json.gz"]);
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
