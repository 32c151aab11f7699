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
#[cfg(test)]
mod tests;

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
/// Maximum size of the rows of one hour, in bytes; connections that need further rows are only counted.
const MOST: u64 = 32 << 20;

/// The folder of a node's journal, where `podgate run` writes and `podgate policy replay-journal` reads unless they
/// are told otherwise.
pub const FOLDER: &str = "/var/lib/podgate/journal";

/// Compressed bytes of an hour in which 110 pods open connections to 20 others each.
const USUAL_HOUR: u64 = 100_000;
/// Bytes of rows that take one byte of a file.
const COMPRESSION: u64 = 8;

/// How long a journal goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reach {
    /// Hours, where 110 pods open connections to 20 others each, however many.
    pub usual_hours: u64,
    /// Hours, where no two of 100 connections a second have the same ends.
    pub least_hours: u64,
}

impl Reach {
    /// That of a journal of `size` bytes, of which the history of objects takes half.
    pub fn of(size: u64) -> Self {
        let (rows, hour) = (size / 2, Hour::new(size / 2).most / COMPRESSION);
        Self { usual_hours: rows / USUAL_HOUR, least_hours: rows / hour.max(1) }
    }
}

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
    /// Time of the last decision.
    #[serde(with = "crate::time::in_json")]
    pub last: SystemTime,
}

/// The fields of a row that identify its connections; the others are not parsed.
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
    /// Time of the last decision.
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

    /// Continues an hour from its file; also describes the part that is lost, if any.
    ///
    /// # Errors
    /// Fails if it is not a journal file.
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

    /// Reserves room for a row in the share of the pod that opens its connections; returns whether there was room.
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
    /// Those of `out`.
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

/// Returns the files of a journal, oldest first. Links, and names that are not hours, are skipped.
///
/// # Errors
/// Fails if the folder cannot be read.
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
