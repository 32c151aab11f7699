//! The objects of kind PodgateAddresses.
//!
//! ```text
//! page-DEPTH-PREFIX   pods whose position begins with these bits, up to a sequence number
//! log-SLOT            changes of one sequence number; a later one takes its slot
//! ```
//!
//! A switch lists both, applies the changes that a page does not have yet, and then watches the log alone: a page
//! that is written again costs no watch anything.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::node_addresses::VERSION;
use super::damage::Damage;
use super::text::{Common, Entry};
use crate::model::Pod;

/// The kind.
pub(super) const KIND: &str = "PodgateAddresses";
/// The name in paths of the API.
pub(super) const PLURAL: &str = "podgateaddresses";
/// The label whose value is `page` or `log`.
const PART: &str = "podgate.io/part";
/// Slots of the log.
pub(super) const SLOTS: u64 = 128;

/// An object of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Log {
    /// One more than the last.
    pub(super) sequence: u64,
    /// The earliest one that a page may not have yet.
    pub(super) first: u64,
    /// The node that wrote it, and the one that takes over; empty if there is none.
    pub(super) writer: String,
    pub(super) standby: String,
    /// Resource version of the pods, as the writer had them.
    pub(super) observed_version: String,
    /// When it was written, by the writer's clock, RFC 3339.
    pub(super) observed_time: String,
    /// Age of the writer's view of the pods at that time, in milliseconds; 0 while its watch is current.
    #[serde(skip_serializing_if = "is_none")]
    pub(super) age: u64,
    /// Pods afterwards.
    pub(super) pods: u64,
    /// Sum of their hashes, in hexadecimal digits.
    pub(super) checksum: String,
    /// Common parts of pods; lines of pods begin with the index.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) sets: Vec<String>,
    /// Pods that came or changed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) changes: Vec<String>,
    /// Pods that went.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) gone: Vec<String>,
}

fn is_none(age: &u64) -> bool {
    *age == 0
}

/// A page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Page {
    /// Changes up to this sequence number are in it.
    pub(super) sequence: u64,
    /// So many bits of a position are the same for all of its pods: `prefix`.
    pub(super) depth: u8,
    pub(super) prefix: u64,
    pub(super) sets: Vec<String>,
    pub(super) pods: Vec<String>,
}

/// The bits of a position that choose a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Prefix {
    pub(super) bits: u64,
    pub(super) depth: u8,
}

impl Prefix {
    /// Length of the longest one: numbers in JSON have 63 bits.
    pub(super) const DEEPEST: u8 = 62;

    /// The first and the last position with this prefix.
    pub(super) fn range(self) -> (u64, u64) {
        let rest = u64::MAX.checked_shr(self.depth.into()).unwrap_or(0);
        let first = match self.depth {
            0 => 0,
            depth => self.bits << (64 - depth),
        };
        (first, first | rest)
    }

    pub(super) fn halves(self) -> [Self; 2] {
        [0, 1].map(|bit| Self { bits: self.bits << 1 | bit, depth: self.depth + 1 })
    }

    /// All prefixes of a position, the longest first.
    pub(super) fn all(position: u64) -> impl Iterator<Item = Self> {
        let bits = move |depth: u8| position.checked_shr(64 - u32::from(depth)).unwrap_or(0);
        (0..=Self::DEEPEST).rev().map(move |depth| Self { bits: bits(depth), depth })
    }

    /// Whether positions with `other` begin with this.
    pub(super) fn contains(self, other: Self) -> bool {
        self.depth <= other.depth && other.bits >> (other.depth - self.depth) == self.bits
    }

    pub(super) fn name(self) -> String {
        format!("page-{}-{:x}", self.depth, self.bits)
    }
}

impl Page {
    /// Its prefix; `None` for numbers that are none.
    pub(super) fn place(&self) -> Option<Prefix> {
        let fits =
            self.depth <= Prefix::DEEPEST && self.prefix < 1 << self.depth.min(Prefix::DEEPEST);
        fits.then_some(Prefix { bits: self.prefix, depth: self.depth })
    }
}

/// An object as the API server has it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Stored {
    pub(super) metadata: Metadata,
    pub(super) spec: Spec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Metadata {
    pub(super) name: String,
    pub(super) resource_version: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Spec {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) log: Option<Log>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) page: Option<Page>,
}

/// A list of them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct List {
    pub(super) metadata: Metadata,
    pub(super) items: Vec<Stored>,
}

/// An object to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) name: String,
    pub(super) spec: Spec,
}

impl Written {
    pub(super) fn log(log: Log) -> Self {
        let name = format!("log-{}", log.sequence % SLOTS);
        Self { name, spec: Spec { log: Some(log), page: None } }
    }

    pub(super) fn page(page: Page, prefix: Prefix) -> Self {
        Self { name: prefix.name(), spec: Spec { log: None, page: Some(page) } }
    }

    /// The object, which replaces this version of it. It asks for no managed fields: every reader would get them with
    /// every change, and there is one writer.
    pub(super) fn object(&self, version: Option<&str>) -> Value {
        let part = if self.spec.log.is_some() { "log" } else { "page" };
        let mut metadata =
            json!({"name": self.name, "labels": {PART: part}, "managedFields": [{}]});
        if let Some(version) = version {
            metadata["resourceVersion"] = version.into();
        }
        json!({"apiVersion": VERSION, "kind": KIND, "metadata": metadata, "spec": self.spec})
    }
}

/// Path of the kind.
pub(super) fn folder() -> String {
    format!("/apis/{VERSION}/{PLURAL}")
}

/// Path of a list of one part.
pub(super) fn list_path(part: &str) -> String {
    format!("{}?labelSelector=podgate.io%2Fpart%3D{part}", folder())
}

/// Lines of pods, with what they have in common named by index.
#[derive(Debug, Default)]
pub(super) struct Lines {
    pub(super) sets: Vec<String>,
    pub(super) pods: Vec<String>,
    numbers: std::collections::HashMap<std::sync::Arc<str>, usize, ahash::RandomState>,
    /// Bytes of all, about.
    pub(super) bytes: usize,
}

/// Bytes of a line in JSON beside its text.
const QUOTES: usize = 3;

impl Lines {
    pub(super) fn add(&mut self, entry: &Entry) {
        let next = self.sets.len();
        let number = *self.numbers.entry(entry.common.clone()).or_insert(next);
        if number == next {
            self.bytes += entry.common.len() + QUOTES;
            self.sets.push(entry.common.to_string());
        }
        let line = format!("{number} {}", entry.own);
        self.bytes += line.len() + QUOTES;
        self.pods.push(line);
    }
}

/// Reads lines of pods; an error names the one that is damaged.
pub(super) fn read_lines(
    sets: &[String],
    lines: &[String],
) -> Result<Vec<(Arc<Pod>, Entry)>, Damage> {
    let common = sets.iter().map(|text| Common::read(text).ok_or_else(|| Damage::text(text)));
    let common = common.collect::<Result<Vec<_>, _>>()?;
    let read = |line: &String| {
        let (number, own) = line.split_once(' ')?;
        common.get(number.parse::<usize>().ok()?)?.pod(own)
    };
    lines.iter().map(|line| read(line).ok_or_else(|| Damage::text(line))).collect()
}
