//! The journal of a node: the connections of each hour, aggregated, on disk.
//!
//! ```text
//! 2026-11-25T08.json.gz
//! 2026-11-25T09.json.gz   the present hour; replaced as a whole
//! ```
//!
//! Files without the ending `.gz` are read too. A file begins with a [`Head`]; every other line is a [`Row`]. Names
//! are hours in UTC, so their order is that of time.

mod read;

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use acl::Origin;
use dataplane::Outcome;
use flate2::Compression;
use flate2::write::GzEncoder;
use local_api::Verdict;
use serde::{Deserialize, Serialize};

use crate::shares::Shares;
use crate::time::utc_seconds;
use crate::verdicts::{End, Event, Protocol, Reason};
pub use read::{Missing, files_since, fold, is_since, read, read_file};

/// The version of the format.
const VERSION: u32 = 1;
/// The form of an hour's name; each 0 is a digit.
const NAME: &str = "0000-00-00T00";
/// Bytes of the rows of one hour at most; connections that would make further ones are counted alone.
const MOST: u64 = 32 << 20;

/// The first line of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The version of the format.
    pub podgate_journal: u32,
    /// The node.
    pub node: Arc<str>,
    /// Connections of the hour that are in no row.
    pub left_out: u64,
}

/// Connections of the same ends, destination port and verdict within an hour.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// The verdict about the first of them; without the initiator's port.
    #[serde(flatten)]
    pub event: Event,
    /// Connections.
    pub count: u64,
    /// When the last of them was decided about.
    #[serde(with = "crate::time::in_json")]
    pub last: SystemTime,
}

/// The fields of a row that tell which connections it counts; the others are not read.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Connections {
    /// The verdict about the first of them.
    pub verdict: Verdict,
    /// The outcome.
    pub reason: Reason,
    /// The end that opened them.
    pub from: End,
    /// The end that they were opened to.
    pub to: End,
    /// The IP protocol.
    #[serde(default)]
    pub protocol: Option<Protocol>,
    /// Their number.
    pub count: u64,
    /// When the last of them was decided about.
    #[serde(with = "crate::time::in_json")]
    pub last: SystemTime,
}

/// The fields of a verdict that identify its row.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    from: (Option<Arc<str>>, Option<IpAddr>),
    to: (Option<Arc<str>>, Option<IpAddr>, Option<u16>),
    protocol: Option<Protocol>,
    verdict: Verdict,
    reason: Reason,
    by: Vec<Origin>,
}

impl Key {
    fn of(event: &Event) -> Self {
        let Event { from, to, .. } = event;
        Self {
            from: (from.pod.clone(), from.ip.filter(|_| from.pod.is_none())),
            to: (to.pod.clone(), to.ip, to.port),
            protocol: event.protocol,
            verdict: event.verdict,
            reason: event.reason.clone(),
            by: event.by.clone(),
        }
    }
}

/// The name of the hour of a moment.
pub fn hour_of(time: SystemTime) -> String {
    let mut name = utc_seconds(time);
    name.truncate(NAME.len());
    name
}

/// The rows of one hour.
#[derive(Debug)]
pub struct Hour {
    rows: HashMap<Key, Row>,
    left_out: u64,
    /// Bytes of the rows by the pods that open the connections.
    shares: Shares,
    most: u64,
}

/// A file of a journal.
#[derive(Debug)]
pub struct FileOf {
    /// Its first line.
    pub head: Head,
    /// Its rows.
    pub rows: Vec<Row>,
    /// The part of it that cannot be read, in words; rows before count.
    pub damage: Option<String>,
}

impl Hour {
    /// An hour whose rows take half of a journal of this size at most, so that one hour does not displace all
    /// others.
    pub fn new(size: u64) -> Self {
        let most = MOST.min(size / 2);
        Self { rows: HashMap::new(), left_out: 0, shares: Shares::default(), most }
    }

    /// Continues an hour of which a file has a part; also returns what of it is lost, in words.
    ///
    /// # Errors
    /// If it is no file of a journal.
    pub fn resume(path: &Path, size: u64) -> io::Result<(Self, Option<String>)> {
        let FileOf { head, rows, damage } = read_file(path)?;
        let mut hour = Self { left_out: head.left_out, ..Self::new(size) };
        for row in rows {
            // It was given before.
            hour.takes(&row, u64::MAX);
            hour.rows.insert(Key::of(&row.event), row);
        }
        Ok((hour, damage))
    }

    /// Connections that are in no row.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Whether the pod that opens the connections of a row has room for it in so many bytes; takes it then.
    fn takes(&mut self, row: &Row, most: u64) -> bool {
        let bytes = serde_json::to_string(row).map_or(most, |line| line.len() as u64 + 1);
        self.shares.take(row.event.from.pod.as_ref(), bytes, most)
    }

    /// Counts a connection, if policies decided about it.
    pub fn count(&mut self, event: &Event) {
        let is_decision =
            event.verdict == Verdict::Forwarded || event.reason == Outcome::PolicyDenied;
        if !is_decision || event.staged.is_some() {
            return;
        }
        match self.rows.get_mut(&Key::of(event)) {
            Some(row) => {
                row.count += 1;
                row.last = event.time;
            }
            None => {
                let end = |end: &End, port| End { port, labels: None, ..end.clone() };
                let event = Event {
                    from: end(&event.from, None),
                    to: end(&event.to, event.to.port),
                    tcp_flags: None,
                    process: None,
                    denied: None,
                    ..event.clone()
                };
                let last = event.time;
                let row = Row { event, count: 1, last };
                match self.takes(&row, self.most) {
                    true => drop(self.rows.insert(Key::of(&row.event), row)),
                    false => self.left_out += 1,
                }
            }
        }
    }

    /// Writes a file, compressed.
    ///
    /// # Errors
    /// As `out` has them.
    pub fn write(&self, node: &str, out: &mut impl io::Write) -> io::Result<()> {
        let mut out = GzEncoder::new(out, Compression::fast());
        let head = Head { podgate_journal: VERSION, node: node.into(), left_out: self.left_out };
        serde_json::to_writer(&mut out, &head)?;
        out.write_all(b"\n")?;
        for row in self.rows.values() {
            serde_json::to_writer(&mut out, row)?;
            out.write_all(b"\n")?;
        }
        out.finish().map(drop)
    }
}

/// The files of a journal, oldest first. Links, and what has no name of an hour, are not among them.
///
/// # Errors
/// If the folder cannot be read.
pub fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if let Some((hour, "json" | "json.gz")) = name.split_once('.')
            && is_hour(hour)
            && entry.file_type()?.is_file()
        {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn is_hour(name: &str) -> bool {
    let is_of = |(form, it): (u8, u8)| form == it || form == b'0' && it.is_ascii_digit();
    name.len() == NAME.len() && NAME.bytes().zip(name.bytes()).all(is_of)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;

    use flate2::read::GzDecoder;
    use testkit::TempDir;

    use super::*;
    use crate::time::{moment, utc};
    use crate::verdicts::denied;

    fn rows(folder: &Path, since: Option<SystemTime>) -> (Vec<Row>, Missing) {
        let mut rows = Vec::new();
        let missing = read(folder, since, |row| rows.push(row)).unwrap();
        (rows, missing)
    }

    fn write(hour: &Hour, path: &Path) {
        let mut bytes = Vec::new();
        hour.write("node-a", &mut bytes).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn at(time: &str, from: &str, port: u16) -> Event {
        let from = End { pod: Some(from.into()), port: Some(port), ..denied().from };
        Event { time: moment(time).unwrap(), from, ..denied() }
    }

    #[test]
    fn connections_of_the_same_ends_are_one_row_of_an_hour() {
        let folder = TempDir::new("journal");
        let path = folder.path().join("2026-11-25T09.json.gz");
        let mut hour = Hour::new(MOST);
        hour.count(&at("2026-11-25T09:00:01.000Z", "default/web", 4000));
        hour.count(&at("2026-11-25T09:10:00.000Z", "default/web", 4001));
        hour.count(&Event { reason: "malformed-ip".into(), ..denied() });
        write(&hour, &path);
        // The next process continues.
        let (mut hour, damage) = Hour::resume(&path, MOST).unwrap();
        assert_eq!(damage, None);
        hour.count(&at("2026-11-25T09:20:00.000Z", "default/web", 4002));
        hour.count(&at("2026-11-25T09:30:00.000Z", "default/job", 4003));
        write(&hour, &path);
        let (mut rows, missing) = rows(folder.path(), None);
        rows.sort_by_key(|row| row.count);
        let found: Vec<_> = rows
            .iter()
            .map(|row| (row.event.from.to_string(), row.count, utc(row.event.time), utc(row.last)))
            .collect();
        let expected = [
            (
                "default/job".to_owned(),
                1,
                "2026-11-25T09:30:00.000Z".to_owned(),
                "2026-11-25T09:30:00.000Z".to_owned(),
            ),
            (
                "default/web".to_owned(),
                3,
                "2026-11-25T09:00:01.000Z".to_owned(),
                "2026-11-25T09:20:00.000Z".to_owned(),
            ),
        ];
        assert_eq!((found, missing), (expected.to_vec(), Missing::default()));
        let since = |text: &str| super::tests::rows(folder.path(), moment(text)).0.len();
        assert_eq!(since("2026-11-25T09:25:00Z"), 1);
        assert_eq!(since("2026-11-25T10:00:00Z"), 0, "a file before is not opened");
    }

    #[test]
    fn a_fold_takes_every_row_once_whichever_thread_reads_it() {
        let folder = TempDir::new("journal-fold");
        for n in 0..9 {
            let mut hour = Hour::new(MOST);
            for pod in 0..=n {
                let pod = format!("default/p{pod}");
                hour.count(&at(&format!("2026-11-25T0{n}:00:01.000Z"), &pod, 1));
            }
            write(&hour, &folder.path().join(format!("2026-11-25T0{n}.json.gz")));
        }
        let cut = folder.path().join("2026-11-25T03.json.gz");
        let whole = fs::read(&cut).unwrap();
        fs::write(&cut, &whole[..whole.len() - 9]).unwrap();
        let pods = |since| {
            let take = |pods: &mut Vec<_>, row: Connections| pods.push((row.from.pod, row.last));
            let (found, missing) = fold(folder.path(), since, Vec::new, take).unwrap();
            let mut found: Vec<_> = found.into_iter().flatten().collect();
            found.sort();
            (found, missing)
        };
        for since in [None, moment("2026-11-25T02:00:00Z")] {
            let (read, missing) = rows(folder.path(), since);
            let mut read: Vec<_> =
                read.into_iter().map(|row| (row.event.from.pod, row.last)).collect();
            read.sort();
            assert_eq!(pods(since), (read, missing));
        }
        fs::write(folder.path().join("2026-11-25T05.json"), "x").unwrap();
        let faults = fold(folder.path(), None, || (), |(), _| ()).unwrap_err();
        assert!(
            faults.len() == 1 && faults[0].contains("2026-11-25T05.json: line 1"),
            "{faults:?}"
        );
    }

    #[test]
    fn what_is_no_file_of_a_journal_is_named() {
        let folder = TempDir::new("journal-odd");
        fs::write(
            folder.path().join("2026-11-25T09.json"),
            "{\"podgate_journal\":9,\"node\":\"a\",\"left_out\":0}\n",
        )
        .unwrap();
        fs::write(folder.path().join("2026-11-25T10.json"), "{half").unwrap();
        fs::write(folder.path().join("notes.txt"), "x").unwrap();
        let faults = read(folder.path(), None, drop).unwrap_err();
        assert_eq!(faults.len(), 2);
        assert!(faults[0].ends_with("2026-11-25T09.json: has version 9; this program reads 1"));
        assert!(faults[1].contains("2026-11-25T10.json: line 1: is no head of a journal"));
    }

    fn hour_bytes(path: &Path) -> usize {
        let mut text = String::new();
        GzDecoder::new(File::open(path).unwrap()).read_to_string(&mut text).unwrap()
    }

    #[test]
    fn an_hour_is_bounded_and_a_pod_that_fills_it_leaves_room_for_others() {
        let folder = TempDir::new("journal-shares");
        let path = folder.path().join("2026-11-25T09.json.gz");
        let mut hour = Hour::new(400_000);
        let mut scan = |pod: &str, ports: u16| {
            for port in 0..ports {
                let event = at("2026-11-25T09:00:01.000Z", pod, 4000);
                let to = End { port: Some(port), ..event.to };
                hour.count(&Event { to, ..event });
            }
            write(&hour, &path);
            let of_pod = |row: &&Row| row.event.from.pod.as_deref() == Some(pod);
            (hour.rows.values().filter(of_pod).count(), hour.left_out)
        };
        let (rows, left_out) = scan("default/scan", 5_000);
        let bytes = hour_bytes(&path);
        assert!((95_000..101_000).contains(&bytes), "half of an hour's half: {bytes}");
        assert_eq!(rows as u64 + left_out, 5_000);
        assert_eq!(scan("default/web", 100), (100, left_out));
        // The next process continues with the same shares.
        let (mut hour, _) = Hour::resume(&path, 400_000).unwrap();
        assert_eq!((hour.rows.len(), hour.left_out), (rows + 100, left_out));
        let event = at("2026-11-25T09:00:01.000Z", "default/scan", 4000);
        hour.count(&Event { to: End { port: Some(9_999), ..event.to }, ..event });
        assert_eq!(hour.left_out, left_out + 1);
    }

    #[test]
    fn what_stands_in_the_folder_beside_the_files_is_passed_over() {
        let folder = TempDir::new("journal-foreign");
        let path = |name: &str| folder.path().join(name);
        let hour = "2026-11-25T09.json.gz";
        write(&Hour::new(MOST), &path(hour));
        fs::create_dir(path("2026-11-25T08.json")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", path("2026-11-25T07.json")).unwrap();
        std::os::unix::fs::symlink("/nowhere", path("2026-11-25T06.json.gz")).unwrap();
        fs::write(path("notes-of-mine.json"), "{}").unwrap();
        let fifo = path("2026-11-25T05.json");
        testkit::make_fifo(&fifo);
        assert_eq!(files(folder.path()).unwrap(), [path(hour)]);
        assert_eq!(rows(folder.path(), None), (Vec::new(), Missing::default()));
        let error = Hour::resume(&fifo, MOST).unwrap_err();
        assert_eq!(error.to_string(), "is no regular file");
    }

    #[test]
    fn a_file_that_is_cut_off_anywhere_keeps_the_rows_before() {
        let folder = TempDir::new("journal-cut");
        let path = folder.path().join("2026-11-25T09.json.gz");
        let mut hour = Hour::new(MOST);
        (0..40)
            .for_each(|n| hour.count(&at("2026-11-25T09:00:01.000Z", &format!("default/p{n}"), 1)));
        write(&hour, &path);
        let whole = fs::read(&path).unwrap();
        let mut kept = Vec::new();
        for length in 0..=whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            match read_file(&path) {
                Ok(found) => {
                    assert_eq!(found.damage.is_none(), length == whole.len(), "{length}");
                    kept.push(found.rows.len());
                    let (hour, damage) = Hour::resume(&path, MOST).unwrap();
                    assert_eq!((hour.rows.len(), damage), (found.rows.len(), found.damage));
                }
                Err(error) => {
                    assert!(
                        error.to_string().starts_with("line 1: is no head"),
                        "{length}: {error}"
                    )
                }
            }
        }
        assert!(kept.is_sorted() && kept.last() == Some(&40), "{kept:?}");
        // Flipped bits lose rows behind them, and end no reading.
        for at in 0..whole.len() {
            let mut bad = whole.clone();
            bad[at] ^= 1;
            fs::write(&path, &bad).unwrap();
            let _ = read_file(&path);
        }
    }
}
