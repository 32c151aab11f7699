//! Makes the objects of what the writer knows about pods; no I/O.
//!
//! A change is in the log first, and later on its page. A slot of the log is not taken again before every page has
//! what it says, so whoever lists pages and log has everything. A page that has become too large is replaced by its
//! halves; both are there before it goes.

use std::collections::{BTreeMap, HashMap};

use ahash::RandomState;

use super::objects::{Lines, Log, Page, Prefix, SLOTS, Stored, Written};
use super::text::{Entry, Place, gone};
use super::view::{Pages, Replay, checksum, page_of};
use crate::PodKey;

/// Bytes of an object of the log, about: etcd takes 1.5 MB. The larger they may be, the later pages are written again
/// while much changes.
const LOG_BYTES: usize = 128 << 10;
/// Bytes of a page, about, beyond which it is split.
const PAGE_BYTES: usize = 40 << 10;
/// A page is written again when a change that it does not have is so many sequence numbers old.
const LATE: u64 = SLOTS / 2;

/// No log gets there in a hundred years: a number beyond was not counted.
const FAR: u64 = 1 << 40;

/// The pods as published, and what is to be.
#[derive(Debug, Default)]
pub(super) struct Publisher {
    published: BTreeMap<Place, Entry>,
    /// Changes that are not in the log yet.
    pending: BTreeMap<Place, Option<Entry>>,
    sum: u64,
    sequence: u64,
    pages: Pages,
    /// The first change that each page does not have.
    missing: HashMap<Prefix, u64, RandomState>,
    /// Versions of the objects at the API server, by name.
    versions: HashMap<String, String, RandomState>,
    /// The objects are to be made anew.
    is_new: bool,
}

/// The writer's view, for an object of the log.
#[derive(Clone, Debug, Default)]
pub(super) struct About {
    pub(super) writer: String,
    pub(super) standby: String,
    pub(super) version: String,
    pub(super) time: String,
    /// In milliseconds.
    pub(super) age: u64,
}

/// Objects to write one after the other, and then to delete.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) write: Vec<Written>,
    pub(super) delete: Vec<String>,
}

impl Publisher {
    /// The pods are these from now on.
    pub(super) fn reset(&mut self, pods: BTreeMap<Place, Entry>) {
        let stale = self.published.keys().filter(|place| !pods.contains_key(place));
        self.pending = stale.map(|place| (place.clone(), None)).collect();
        for (place, entry) in pods {
            self.set(place, Some(entry));
        }
    }

    /// A pod is this from now on.
    pub(super) fn set(&mut self, place: Place, entry: Option<Entry>) {
        match self.published.get(&place) == entry.as_ref() {
            true => drop(self.pending.remove(&place)),
            false => drop(self.pending.insert(place, entry)),
        }
    }

    /// Whether changes wait for the log.
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The version of an object at the API server; `None` if it is not there.
    pub(super) fn version_of(&self, name: &str) -> Option<&str> {
        self.versions.get(name).map(String::as_str)
    }

    /// Whether the API server has the objects that were written, in these versions, and no others.
    pub(super) fn has_written(&self, objects: &[Stored]) -> bool {
        let is_known =
            |it: &Stored| self.version_of(&it.metadata.name) == Some(&it.metadata.resource_version);
        objects.len() == self.versions.len() && objects.iter().all(is_known)
    }

    /// Continues from the objects that the API server has. Objects that do not add up are made anew.
    pub(super) fn adopt(&mut self, objects: Vec<Stored>) {
        let mut pods = std::mem::take(&mut self.published);
        for (place, entry) in std::mem::take(&mut self.pending) {
            match entry {
                Some(entry) => drop(pods.insert(place, entry)),
                None => drop(pods.remove(&place)),
            }
        }
        self.versions.clear();
        let (mut pages, mut log) = (Vec::new(), Vec::new());
        for Stored { metadata, spec } in objects {
            self.versions.insert(metadata.name, metadata.resource_version);
            pages.extend(spec.page);
            log.extend(spec.log);
        }
        let highest =
            log.iter().map(|it| it.sequence).chain(pages.iter().map(|it| it.sequence)).max();
        let last = log.iter().max_by_key(|it| it.sequence);
        let replay = Replay::of(&pages, &log).ok();
        // Whoever has read the last object would take another one of its number for known.
        let is_whole = |it: &Replay| it.sequence >= self.sequence;
        let replay = replay.filter(|it| is_whole(it) && last.is_some_and(|last| it.agrees(last)));
        self.is_new = replay.is_none();
        (self.pages, self.missing) = Default::default();
        match replay {
            Some(replay) => {
                self.published =
                    replay.pods.into_iter().map(|(place, (_, it))| (place, it)).collect();
                (self.pages, self.missing) = (replay.pages, replay.missing);
                self.sequence = replay.sequence;
            }
            None => {
                // The step says that the log does not go on from what was there.
                let known = self.sequence.max(highest.unwrap_or(0));
                self.sequence = match known {
                    0 | FAR.. => 0,
                    known => known + SLOTS,
                };
            }
        }
        self.sum = self.published.values().fold(0, |sum, it| sum.wrapping_add(it.hash()));
        self.reset(pods);
    }

    /// The pages to write now, if there are any. [`Self::paged`] follows when that is done.
    pub(super) fn next_pages(&mut self) -> Option<Plan> {
        if self.is_new {
            // The pages say what the log would.
            for (place, entry) in std::mem::take(&mut self.pending) {
                self.put(place, entry);
            }
            return Some(self.plan(Prefix::default()));
        }
        let late = self.missing.iter().filter(|(_, since)| self.sequence - **since >= LATE);
        let late = late.min_by_key(|(_, since)| **since).map(|(prefix, _)| *prefix)?;
        // A writer that ended while it split a page leaves that one beside its halves.
        let known = Prefix::all(late.range().0).filter(|it| self.pages.contains_key(it));
        let top = known.filter(|it| it.depth <= late.depth).last().unwrap_or(late);
        Some(self.plan(top))
    }

    /// Replaces all pages with a prefix by ones that are not too large.
    fn plan(&self, top: Prefix) -> Plan {
        let mut new = Vec::new();
        self.lay_out(top, &mut new);
        let names: Vec<String> = new.iter().map(|(prefix, _)| prefix.name()).collect();
        let known: Vec<String> = match self.is_new {
            true => self.versions.keys().cloned().collect(),
            false => {
                self.pages.keys().filter(|it| top.contains(**it)).map(|it| it.name()).collect()
            }
        };
        let delete = known.into_iter().filter(|it| !names.contains(it));
        let write = new.into_iter().map(|(prefix, page)| Written::page(page, prefix));
        Plan { write: write.collect(), delete: delete.collect() }
    }

    fn lay_out(&self, prefix: Prefix, into: &mut Vec<(Prefix, Page)>) {
        match self.page(prefix) {
            Some(page) => into.push((prefix, page)),
            None => prefix.halves().into_iter().for_each(|half| self.lay_out(half, into)),
        }
    }

    /// The page; `None` if it is too large and can be split.
    fn page(&self, prefix: Prefix) -> Option<Page> {
        let (first, last) = prefix.range();
        let none = || PodKey { namespace: "".into(), name: "".into() };
        let from = Place { position: first, key: none() };
        let mut lines = Lines::default();
        for (_, entry) in self.published.range(from..).take_while(|it| it.0.position <= last) {
            lines.add(entry);
            if lines.bytes > PAGE_BYTES && prefix.depth < Prefix::DEEPEST {
                return None;
            }
        }
        let Prefix { bits, depth } = prefix;
        let (sequence, sets, pods) = (self.sequence, lines.sets, lines.pods);
        Some(Page { sequence, depth, prefix: bits, sets, pods })
    }

    /// An object was written in this version, or deleted.
    pub(super) fn stored(&mut self, name: &str, version: Option<String>) {
        match version {
            Some(version) => drop(self.versions.insert(name.to_owned(), version)),
            None => drop(self.versions.remove(name)),
        }
    }

    /// All of a plan is done.
    pub(super) fn paged(&mut self, plan: &Plan) {
        for page in plan.write.iter().filter_map(|it| it.spec.page.as_ref()) {
            let Some(prefix) = page.place() else { continue };
            self.pages.insert(prefix, page.sequence);
            self.missing.remove(&prefix);
        }
        let is_gone = |prefix: &Prefix| plan.delete.contains(&prefix.name());
        self.pages.retain(|prefix, _| !is_gone(prefix));
        self.missing.retain(|prefix, _| !is_gone(prefix));
        self.is_new = false;
    }

    /// The next object of the log: changes that wait, or none for a sign of life. `None` while a page has to be
    /// written first.
    pub(super) fn next_log(&mut self, about: &About) -> Option<Written> {
        let sequence = self.sequence + 1;
        let first = self.missing.values().copied().min().unwrap_or(sequence);
        if self.is_new || sequence - first >= LATE + LATE / 2 {
            return None;
        }
        self.sequence = sequence;
        let mut lines = Lines::default();
        let mut deleted: Vec<String> = Vec::new();
        let mut bytes = 0;
        while let Some((place, entry)) = self.pending.pop_first() {
            match &entry {
                Some(entry) => lines.add(entry),
                None => {
                    let text = gone(&place.key);
                    bytes += text.len();
                    deleted.push(text);
                }
            }
            if let Some((prefix, _)) = page_of(&self.pages, &place) {
                self.missing.entry(prefix).or_insert(sequence);
            }
            self.put(place, entry);
            if lines.bytes + bytes > LOG_BYTES {
                break;
            }
        }
        Some(Written::log(Log {
            sequence,
            first,
            writer: about.writer.clone(),
            standby: about.standby.clone(),
            observed_version: about.version.clone(),
            observed_time: about.time.clone(),
            age: about.age,
            pods: self.published.len() as u64,
            checksum: checksum(self.sum),
            sets: lines.sets,
            changes: lines.pods,
            gone: deleted,
        }))
    }

    fn put(&mut self, place: Place, entry: Option<Entry>) {
        let added = entry.as_ref().map_or(0, Entry::hash);
        let before = match entry {
            Some(entry) => self.published.insert(place, entry),
            None => self.published.remove(&place),
        };
        let removed = before.as_ref().map_or(0, Entry::hash);
        self.sum = self.sum.wrapping_sub(removed).wrapping_add(added);
    }
}
