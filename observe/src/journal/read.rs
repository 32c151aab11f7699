//! Reads journals: whole files, several at once.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::SystemTime;

use flate2::read::GzDecoder;
use serde::Deserialize;

use super::{Connections, FileOf, Head, NAME, Row, VERSION, files, hour_of};

/// Bytes that are decompressed at once.
const BUFFER: usize = 64 << 10;
/// Bytes of a file, after decompression, that are read at most.
const MOST_READ: u64 = 1 << 30;

/// The files of a journal that have connections since a moment, or all; oldest first.
///
/// # Errors
/// Fails if the folder cannot be read.
pub fn files_since(folder: &Path, since: Option<SystemTime>) -> io::Result<Vec<PathBuf>> {
    let first = since.map(hour_of).unwrap_or_default();
    let is_late = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.get(..NAME.len()).is_some_and(|hour| hour >= first.as_str())
    };
    Ok(files(folder)?.into_iter().filter(is_late).collect())
}

/// Gaps in the rows of a journal.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// Connections that are in no row.
    pub left_out: u64,
    /// Files of which a part cannot be read.
    pub damaged: Vec<String>,
}

/// Passes on the rows of a journal; with `since` of connections at this moment or later.
///
/// # Errors
/// Names each file that is not one of a journal.
pub fn read(
    folder: &Path,
    since: Option<SystemTime>,
    mut take: impl FnMut(Row),
) -> Result<Missing, Vec<String>> {
    let mut line = |line: &str| {
        let row = Row::parse(line)?;
        if is_since(row.last, since) {
            take(row);
        }
        Ok(())
    };
    let files = files_of(folder, since)?;
    summed(files.into_iter().map(|path| (read_lines(&path, &mut line), path)))
}

/// Folds the rows of a journal as [`read`] passes them on. A thread for each processor has a value of `begin`, to which
/// `take` adds the rows; those of one file come in order, files in any.
///
/// # Errors
/// As of [`read`].
pub fn fold<T: Send>(
    folder: &Path,
    since: Option<SystemTime>,
    begin: impl Fn() -> T + Sync,
    take: impl Fn(&mut T, Connections) + Sync,
) -> Result<(Vec<T>, Missing), Vec<String>> {
    let files = files_of(folder, since)?;
    let next = AtomicUsize::new(0);
    let some = || {
        let (mut value, mut read) = (begin(), Vec::new());
        let mut line = |line: &str| {
            let row: Connections = serde_json::from_str(line)?;
            if is_since(row.last, since) {
                take(&mut value, row);
            }
            Ok(())
        };
        while let Some(path) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            read.push((read_lines(path, &mut line), path.clone()));
        }
        (value, read)
    };
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let (values, read): (Vec<T>, Vec<_>) = thread::scope(|scope| {
        let threads: Vec<_> = (0..processors.min(files.len())).map(|_| scope.spawn(some)).collect();
        let ended = threads.into_iter().map(|it| it.join());
        ended.map(|it| it.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).unzip()
    });
    let mut read: Vec<_> = read.into_iter().flatten().collect();
    read.sort_by(|(_, a), (_, b)| a.cmp(b));
    Ok((values, summed(read)?))
}

fn files_of(folder: &Path, since: Option<SystemTime>) -> Result<Vec<PathBuf>, Vec<String>> {
    files_since(folder, since).map_err(|error| vec![format!("{}: {error}", folder.display())])
}

/// Sums up damage; the error names files that are not of a journal.
fn summed(
    read: impl IntoIterator<Item = (io::Result<(Head, Option<String>)>, PathBuf)>,
) -> Result<Missing, Vec<String>> {
    let (mut missing, mut faults) = (Missing::default(), Vec::new());
    for (read, path) in read {
        let named = |what: &dyn fmt::Display| format!("{}: {what}", path.display());
        match read {
            Ok((head, damage)) => {
                missing.left_out += head.left_out;
                missing.damaged.extend(damage.map(|damage| named(&damage)));
            }
            Err(error) => faults.push(named(&error)),
        }
    }
    if faults.is_empty() { Ok(missing) } else { Err(faults) }
}

/// Returns whether a time is at or after `since`.
pub fn is_since(time: SystemTime, since: Option<SystemTime>) -> bool {
    since.is_none_or(|since| time >= since)
}

/// The fields that a row has beside those of its verdict.
#[derive(Deserialize)]
struct Counted {
    count: u64,
    #[serde(with = "crate::time::in_json")]
    last: SystemTime,
}

impl Row {
    /// Reads a line, twice: serde's flattened fields buffer every value first, which takes longer.
    ///
    /// # Errors
    /// Fails if the line is not a row.
    pub fn parse(line: &str) -> serde_json::Result<Self> {
        let Counted { count, last } = serde_json::from_str(line)?;
        Ok(Self { event: serde_json::from_str(line)?, count, last })
    }
}

/// Opens a regular file: a FIFO is refused rather than waited for.
fn open(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "is not a regular file")),
    }
}

/// Reads the intact part of a file.
///
/// # Errors
/// Fails if it cannot be opened, or is not a journal file.
pub fn read_file(path: &Path) -> io::Result<FileOf> {
    let mut rows = Vec::new();
    let (head, damage) = read_lines(path, &mut |line| {
        rows.push(Row::parse(line)?);
        Ok(())
    })?;
    Ok(FileOf { head, rows, damage })
}

/// Passes on the rows of a file's intact part; returns its head, and describes the damage, if any.
fn read_lines(
    path: &Path,
    take: &mut dyn FnMut(&str) -> serde_json::Result<()>,
) -> io::Result<(Head, Option<String>)> {
    let file = open(path)?;
    let is_compressed = path.extension().is_some_and(|it| it == "gz");
    let bytes: Box<dyn Read> =
        if is_compressed { Box::new(GzDecoder::new(file)) } else { Box::new(file) };
    let mut lines = BufReader::with_capacity(BUFFER, bytes.take(MOST_READ));
    let mut line = String::new();
    let odd = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let no_head =
        |error: &dyn fmt::Display| odd(format!("line 1: is not the head of a journal: {error}"));
    lines.read_line(&mut line).map_err(|error| no_head(&error))?;
    let head: Head = serde_json::from_str(&line).map_err(|error| no_head(&error))?;
    if head.podgate_journal != VERSION {
        let version = head.podgate_journal;
        return Err(odd(format!("has version {version}; this program reads {VERSION}")));
    }
    for number in 2.. {
        line.clear();
        let taken = match lines.read_line(&mut line) {
            Ok(0) => break,
            Ok(_) => take(&line).map_err(io::Error::from),
            Err(error) => Err(error),
        };
        if let Err(error) = taken {
            let damage = format!("line {number}: {error}; what follows is lost");
            return Ok((head, Some(damage)));
        }
    }
    Ok((head, None))
}
