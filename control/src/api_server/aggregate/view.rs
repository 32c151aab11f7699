//! The pods that the objects describe: pages first, then the log.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ahash::RandomState;

use super::damage::Damage;
use super::objects::{Log, Page, Prefix, SLOTS, read_lines};
use super::text::{Entry, Place, read_gone};
use crate::PodKey;
use crate::model::Pod;

/// Up to which sequence number each page is.
pub(super) type Pages = HashMap<Prefix, u64, RandomState>;

/// A pod that came, changed or went.
pub(super) type Change = (PodKey, Option<Arc<Pod>>);

/// The same with its place and its text.
type Placed = (Place, Option<(Arc<Pod>, Entry)>);

/// The state of all pods at a sequence number, as hashes.
#[derive(Debug)]
pub(super) struct View {
    pods: HashMap<PodKey, u64, RandomState>,
    sum: u64,
    sequence: u64,
    /// Pages that may be newer than the log so far.
    pages: Pages,
    newest_page: u64,
}

impl View {
    /// The state after these pages and this log, and its pods. The pages may be newer than the log, and not older
    /// than the earliest number that it says pages need.
    ///
    /// # Errors
    /// The first contradiction between the objects.
    pub(super) fn new(pages: &[Page], log: &[Log]) -> Result<(Self, Vec<Arc<Pod>>), Damage> {
        let Replay { pods, pages, sequence, .. } = Replay::of(pages, log)?;
        let newest_page = pages.values().copied().max().unwrap_or(0);
        let (mut hashes, mut sum) = (HashMap::default(), 0_u64);
        let mut all = Vec::with_capacity(pods.len());
        hashes.reserve(pods.len());
        for (place, (pod, entry)) in pods {
            sum = sum.wrapping_add(entry.hash());
            hashes.insert(place.key, entry.hash());
            all.push(pod);
        }
        let view = Self { pods: hashes, sum, sequence, pages, newest_page };
        let last = log.iter().find(|it| it.sequence == sequence).ok_or(Damage::NoLog)?;
        view.check(last)?;
        Ok((view, all))
    }

    /// The sequence number of the state.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Applies an object of the log; one that is known changes nothing.
    ///
    /// # Errors
    /// The first contradiction between the objects.
    pub(super) fn apply(&mut self, log: &Log) -> Result<Vec<Change>, Damage> {
        if log.sequence <= self.sequence {
            return match self.sequence - log.sequence < SLOTS {
                true => Ok(Vec::new()),
                false => Err(Damage::Back(self.sequence, log.sequence)),
            };
        }
        if log.sequence != self.sequence + 1 {
            return Err(Damage::Gap(self.sequence, log.sequence));
        }
        let mut changes = Vec::new();
        for (place, change) in changes_of(log)? {
            if page_of(&self.pages, &place).is_some_and(|(_, page)| page >= log.sequence) {
                continue;
            }
            let hash = change.as_ref().map(|(_, entry)| entry.hash());
            let before = match hash {
                Some(hash) => self.pods.insert(place.key.clone(), hash),
                None => self.pods.remove(&place.key),
            };
            self.sum = self.sum.wrapping_sub(before.unwrap_or(0)).wrapping_add(hash.unwrap_or(0));
            if before != hash {
                changes.push((place.key, change.map(|(pod, _)| pod)));
            }
        }
        self.sequence = log.sequence;
        if self.sequence >= self.newest_page {
            self.pages.clear();
        }
        self.check(log)?;
        Ok(changes)
    }

    fn check(&self, log: &Log) -> Result<(), Damage> {
        if self.sequence < self.newest_page {
            return Ok(());
        }
        let (pods, checksum) = (self.pods.len() as u64, checksum(self.sum));
        match (pods, &checksum) == (log.pods, &log.checksum) {
            true => Ok(()),
            false => Err(Damage::Sum(pods, checksum, log.pods, log.checksum.clone())),
        }
    }
}

/// A checksum as it is written.
pub(super) fn checksum(sum: u64) -> String {
    format!("{sum:016x}")
}

/// The longest known prefix of a position, and its page's sequence number.
pub(super) fn page_of(pages: &Pages, place: &Place) -> Option<(Prefix, u64)> {
    if pages.is_empty() {
        return None;
    }
    Prefix::all(place.position).find_map(|prefix| Some((prefix, *pages.get(&prefix)?)))
}

/// Whether each position has a page.
fn covers(pages: &Pages) -> bool {
    let mut ranges: Vec<_> = pages.keys().map(|prefix| prefix.range()).collect();
    ranges.sort_unstable();
    // The first position that has none so far; beyond the last one, none is left.
    let mut next = Some(0);
    for (first, last) in ranges {
        if next.is_some_and(|next| first <= next && last >= next) {
            next = last.checked_add(1);
        }
    }
    next.is_none()
}

/// The pods that an object of the log changes.
fn changes_of(log: &Log) -> Result<Vec<Placed>, Damage> {
    let changed = read_lines(&log.sets, &log.changes)?.into_iter();
    let changed = changed.map(|read| Ok((Place::of(read.0.key.clone()), Some(read))));
    let gone = log.gone.iter().map(|text| match read_gone(text) {
        Some(key) => Ok((Place::of(key), None)),
        None => Err(Damage::text(text)),
    });
    changed.chain(gone).collect()
}

/// All that pages and log say.
#[derive(Debug)]
pub(super) struct Replay {
    pub(super) pods: BTreeMap<Place, (Arc<Pod>, Entry)>,
    pub(super) pages: Pages,
    /// The first change that each page does not have.
    pub(super) missing: HashMap<Prefix, u64, RandomState>,
    /// The last sequence number.
    pub(super) sequence: u64,
}

impl Replay {
    /// # Errors
    /// The first contradiction; the checksum is left to the caller.
    pub(super) fn of(pages: &[Page], log: &[Log]) -> Result<Self, Damage> {
        let last = log.iter().max_by_key(|it| it.sequence).ok_or(Damage::NoLog)?;
        let mut known = Pages::default();
        for page in pages {
            known.insert(page.place().ok_or(Damage::NoPrefix)?, page.sequence);
        }
        if !covers(&known) {
            return Err(Damage::MissingPage);
        }
        // A page that is being split has its halves beside it.
        let ancestors =
            |it: Prefix| Prefix::all(it.range().0).filter(move |up| up.depth < it.depth);
        let overlap = known.keys().any(|it| ancestors(*it).any(|up| known.contains_key(&up)));
        let mut pods = BTreeMap::new();
        for page in pages {
            let own = page.place().ok_or(Damage::NoPrefix)?;
            for read in read_lines(&page.sets, &page.pods)? {
                let place = Place::of(read.0.key.clone());
                let (first, last) = own.range();
                if !(first..=last).contains(&place.position) {
                    return Err(Damage::Misplaced(place.key));
                }
                let counts = || page_of(&known, &place).is_some_and(|(prefix, _)| prefix == own);
                if !overlap || counts() {
                    pods.insert(place, read);
                }
            }
        }
        let by_number: HashMap<u64, &Log> = log.iter().map(|it| (it.sequence, it)).collect();
        let mut missing = HashMap::default();
        if last.sequence.saturating_sub(last.first) >= SLOTS {
            return Err(Damage::TooShort);
        }
        for number in last.first..=last.sequence {
            let log = by_number.get(&number).ok_or(Damage::MissingLog(number))?;
            for (place, change) in changes_of(log)? {
                let page = page_of(&known, &place);
                let (prefix, _) = match page {
                    Some((_, sequence)) if sequence >= number => continue,
                    Some(page) => page,
                    None => return Err(Damage::Misplaced(place.key)),
                };
                missing.entry(prefix).or_insert(number);
                match change {
                    Some(read) => drop(pods.insert(place, read)),
                    None => drop(pods.remove(&place)),
                }
            }
        }
        Ok(Self { pods, pages: known, missing, sequence: last.sequence })
    }

    /// Whether the pods are those that an object of the log expects.
    pub(super) fn agrees(&self, log: &Log) -> bool {
        let sum = self.pods.values().fold(0_u64, |sum, (_, entry)| sum.wrapping_add(entry.hash()));
        (self.pods.len() as u64, checksum(sum)) == (log.pods, log.checksum.clone())
    }
}
