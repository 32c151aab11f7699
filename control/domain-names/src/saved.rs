//! The table on disk, for a start after an end of any kind: one line of JSON for each address.

use std::io::{self, BufRead, Write};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::NameTable;
use crate::table::{Entry, State};

/// An address of a name, on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedAddress<P> {
    pod: P,
    name: Arc<str>,
    address: IpAddr,
    /// Seconds it was still open when it was saved; absent if it was lingering.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    left_s: Option<u64>,
}

/// The first line: the time of saving, seconds since 1970.
#[derive(Serialize, Deserialize)]
struct Head {
    saved_at: u64,
}

/// Most addresses that are read back.
const MOST: usize = 1 << 20;

impl<P: Ord + Clone + Serialize + DeserializeOwned> NameTable<P> {
    /// Returns the state to save at `now`.
    pub fn to_save(&self, now: Duration) -> Vec<SavedAddress<P>> {
        let saved = |row: crate::Row<P>| SavedAddress {
            pod: row.pod,
            name: row.name,
            address: row.address,
            left_s: row.left.map(|left| left.as_secs()),
        };
        self.rows(now).map(saved).collect()
    }

    /// Restores addresses that were saved `elapsed` ago. Those that have expired since linger, and all of them still
    /// have to be put in force.
    pub fn restore(&mut self, saved: Vec<SavedAddress<P>>, elapsed: Duration, now: Duration) {
        for SavedAddress { pod, name, address, left_s } in saved {
            let left = Duration::from_secs(left_s.unwrap_or(0)).min(self.limits().most);
            let left = left.saturating_sub(elapsed);
            let state = match left.is_zero() {
                true => State::Lingering,
                false => State::InForce,
            };
            let names = &mut self.pods.entry(pod).or_default().names;
            names
                .entry(name)
                .or_default()
                .insert(address, Entry { until: now + left, answer: 0, state });
        }
    }
}

impl<P: Serialize + DeserializeOwned> SavedAddress<P> {
    /// Writes the addresses, as of `at`.
    ///
    /// # Errors
    /// Fails if `out` cannot be written.
    pub fn write(saved: &[Self], mut out: impl Write, at: SystemTime) -> io::Result<()> {
        let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        serde_json::to_writer(&mut out, &Head { saved_at: since.as_secs() })?;
        for line in saved {
            out.write_all(b"\n")?;
            serde_json::to_writer(&mut out, line)?;
        }
        out.write_all(b"\n")
    }

    /// Reads what [`write`](Self::write) wrote, with the time since then; a clock that was set back
    /// counts as no time.
    ///
    /// # Errors
    /// Fails if `input` cannot be read; `InvalidData` if it is damaged.
    pub fn read(input: impl BufRead, at: SystemTime) -> io::Result<(Vec<Self>, Duration)> {
        let mut lines = input.lines();
        let head: Head = match lines.next().transpose()? {
            Some(line) => serde_json::from_str(&line)?,
            None => return Err(io::Error::new(io::ErrorKind::InvalidData, "is empty")),
        };
        let since = SystemTime::UNIX_EPOCH + Duration::from_secs(head.saved_at);
        let mut saved = Vec::new();
        for line in lines.take(MOST) {
            saved.push(serde_json::from_str(&line?)?);
        }
        Ok((saved, at.duration_since(since).unwrap_or_default()))
    }
}
