//! Writes the journal: the connections of this node, hour by hour.
//!
//! A crash loses what came in the last minute; files are replaced as a whole. What cannot be written stays in
//! memory and is tried again every minute; until then the hour goes on.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant, SystemTime};

use control::{Durability, history, replace_file};
use observe::journal::{Hour, files, hour_of};
use observe::verdicts::{Event, Observer};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::config::{Bytes, Config};

/// Where the journal is, and how large it may be.
#[derive(Debug, Clone)]
pub(super) struct Journal {
    pub(super) folder: PathBuf,
    pub(super) most_bytes: u64,
    pub(super) node: String,
}

impl Journal {
    /// The journal that is configured.
    pub(super) fn of(config: &Config) -> Option<Self> {
        let Bytes(most_bytes) = config.journal?;
        let (folder, node) = (config.journal_dir.clone(), config.node_name.clone());
        Some(Self { folder, most_bytes, node })
    }

    /// The part of its bytes that the history of objects may take.
    pub(super) fn history_bytes(&self) -> u64 {
        self.most_bytes / 2
    }
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

/// Interval of writing the present hour, after the first connections, which are written at once.
const INTERVAL: Duration = Duration::from_secs(60);
/// Interval of looking whether it is over, while no connection opens.
const IDLE: Duration = Duration::from_millis(500);

/// Writes what the observer gets until the broker ends it.
pub(super) fn run(observer: &Observer, journal: &Journal, state: &JournalState) {
    let mut writer = Writer::begin(journal, hour_of(SystemTime::now()));
    // What an earlier process left is there before the first minute is over.
    if let Ok(files) = tidy(journal, &path(journal, &writer.name)) {
        *state.files.lock() = files;
    }
    let mut written = Instant::now();
    let mut is_first = true;
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
        let is_due = written.elapsed() >= INTERVAL || is_first && writer.has_new;
        if is_over || hour != writer.name || is_due {
            (written, is_first) = (Instant::now(), is_first && !writer.has_new);
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
    /// Continues the hour `name`, if it has begun already: in an earlier process, or before the clock was set
    /// back.
    fn begin(journal: &'a Journal, name: String) -> Self {
        // It alone must not take what the journal may.
        let size = journal.most_bytes / 2;
        let hour = match Hour::resume(&path(journal, &name), size) {
            Ok((hour, damage)) => {
                damage.iter().for_each(|what| tracing::warn!("journal: {name}: {what}"));
                hour
            }
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!("journal: {name}: {error}; the hour begins anew");
                }
                Hour::new(size)
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
        if self.has_new {
            let write = |out: &mut io::BufWriter<File>| self.hour.write(&self.journal.node, out);
            replace_file(&path(self.journal, &self.name), Durability::Synced, write)?;
            self.has_new = false;
        }
        if now != self.name {
            *self = Self::begin(self.journal, now);
        }
        tidy(self.journal, &path(self.journal, &self.name))
    }
}

fn path(journal: &Journal, hour: &str) -> PathBuf {
    journal.folder.join(format!("{hour}.json.gz"))
}

/// Deletes the oldest hours beyond what the history of objects leaves.
fn tidy(journal: &Journal, present: &Path) -> io::Result<Files> {
    let history = history::size(&journal.folder)?;
    let all = files(&journal.folder)?;
    let sizes = all.iter().map(|file| Ok(fs::metadata(file)?.len()));
    let sizes = sizes.collect::<io::Result<Vec<u64>>>()?;
    let mut bytes = history + sizes.iter().sum::<u64>();
    let mut left = all.iter().zip(sizes).peekable();
    while let Some((file, size)) =
        left.next_if(|(file, _)| bytes > journal.most_bytes && *file != present)
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
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use local_api::Verdict;
    use observe::journal::{Missing, Row};
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
            process: None,
            denied: None,
        }
    }

    fn journal(folder: &TempDir, most_bytes: u64) -> Journal {
        let folder = folder.path().join("journal");
        Journal { folder, most_bytes, node: "n1".to_owned() }
    }

    fn read(journal: &Journal) -> (Vec<Row>, Missing) {
        let mut rows = Vec::new();
        let missing = observe::journal::read(&journal.folder, None, |row| rows.push(row)).unwrap();
        (rows, missing)
    }

    fn names(journal: &Journal) -> Vec<String> {
        let name = |path: PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
        files(&journal.folder).unwrap().into_iter().map(name).collect()
    }

    #[test]
    fn an_hour_survives_a_kill() {
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
        assert_eq!(names(&journal), ["2026-11-25T09.json.gz", "2026-11-25T10.json.gz"]);
        let (rows, missing) = read(&journal);
        let mut counts: Vec<_> =
            rows.iter().map(|row| (row.event.from.to_string(), row.count)).collect();
        counts.sort();
        assert_eq!(counts, [("shop/web-1".to_owned(), 2), ("shop/web-3".to_owned(), 1)]);
        assert_eq!(missing, Missing::default());
        // Of an hour that was cut off, what is whole goes on.
        let path = path(&journal, "2026-11-25T10");
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 8]).unwrap();
        let mut writer = Writer::begin(&journal, "2026-11-25T10".into());
        writer.count(&event(4));
        writer.write("2026-11-25T10".into()).unwrap();
        assert_eq!(read(&journal).0.len(), 3);
    }

    #[test]
    fn the_present_hour_takes_a_part_of_the_size() {
        let folder = TempDir::new("journal-hour");
        let journal = journal(&folder, 8_000);
        let mut writer = Writer::begin(&journal, "2026-11-25T09".into());
        for minute in 0..60 {
            (0..50).for_each(|n| writer.count(&event(100 * minute + n)));
            let Files { bytes, .. } = writer.write("2026-11-25T09".into()).unwrap();
            assert!(bytes <= 8_000, "{minute}: {bytes}");
        }
        let (rows, missing) = read(&journal);
        assert_eq!(rows.len() as u64 + missing.left_out, 3_000, "all are counted");
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
        let rows = read(&journal).0;
        assert_eq!(rows.iter().map(|row| row.count).collect::<Vec<_>>(), [1, 1, 1, 1]);
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
        assert_eq!(read(&journal).0.len(), 2);
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

    /// The folder of the process that is killed.
    const CHILD: &str = "PODGATE_TEST_JOURNAL";

    #[test]
    fn a_kill_at_any_moment_loses_what_was_not_written_and_no_file() {
        let of = |folder: PathBuf| Journal { folder, most_bytes: 1 << 20, node: "n1".to_owned() };
        let name = || "2026-11-25T09".to_owned();
        if let Some(folder) = std::env::var_os(CHILD) {
            let journal = of(folder.into());
            let mut writer = Writer::begin(&journal, name());
            for n in 0.. {
                (0..7).for_each(|m| writer.count(&event(7 * (n % 100) + m)));
                writer.write(name()).unwrap();
                println!("written 7");
            }
        }
        let folder = TempDir::new("journal-kill");
        let journal = of(folder.path().to_owned());
        let test =
            "run::journal::tests::a_kill_at_any_moment_loses_what_was_not_written_and_no_file";
        let (mut before, mut rounds) = (0, 0);
        for round in 0..12 {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", test, "--nocapture"])
                .env(CHILD, folder.path())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            let is_written = |line: &String| line.contains("written 7");
            let first = lines.by_ref().map_while(Result::ok).find(is_written);
            assert!(first.is_some(), "it writes");
            std::thread::sleep(Duration::from_millis(3 * round));
            child.kill().unwrap();
            child.wait().unwrap();
            let written = 7 * (1 + lines.map_while(Result::ok).filter(is_written).count() as u64);
            let (rows, missing) = read(&journal);
            assert_eq!(missing, Missing::default());
            let count: u64 = rows.iter().map(|row| row.count).sum();
            // One more write may have ended unheard.
            assert!(
                (before + written..=before + written + 7).contains(&count),
                "{before} and {written}: {count}"
            );
            (before, rounds) = (count, rounds + 1);
        }
        assert_eq!(rounds, 12);
        assert!(fs::read_dir(folder.path()).unwrap().count() <= 2, "nothing is left behind");
    }
}
