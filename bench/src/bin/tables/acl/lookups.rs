//! Lookups, build time and memory of one rule set in both engines.

use std::sync::Arc;

use acl::{AddressMap, Key, Report, Rule, Table, linear};
use anyhow::ensure;
use bench::Samples;
use rustix::time::{ClockId, clock_gettime};

use super::rte_acl::{Built, RteAcl};
use super::rulesets::{self, Filter, Header, peer_sets};

/// Keys in a vector, as in the dataplane.
const VECTOR: usize = 256;

/// Figures of one rule set; lookups in millions a second.
pub(crate) struct Line {
    pub(crate) name: String,
    /// The table that `rte_acl` built and its lookups, or the reason why it built none.
    pub(crate) theirs: Result<(Built, Samples), String>,
    /// The set as it is.
    pub(crate) ours: Figures,
    /// The peer-set form.
    pub(crate) sets: Option<Figures>,
}

/// Figures of a form of a set.
pub(crate) struct Figures {
    /// Headers to rules: address map and table.
    pub(crate) both: Samples,
    /// Keys that know their identities to rules.
    pub(crate) table: Samples,
    /// Seconds to build the table.
    pub(crate) build: f64,
    pub(crate) report: Report,
}

pub(crate) fn measure(
    name: &str,
    filters: &[Filter],
    headers: &[Header],
    peer: Result<&RteAcl, &String>,
    rounds: usize,
) -> anyhow::Result<Line> {
    let (rules, networks) = rulesets::rules(filters);
    let mut ours = Form::new(rules, networks.map(), headers, rounds.min(5));
    // The answers first, and only of engines that agree the time. A peer that fails costs its
    // columns alone.
    let mut theirs = peer
        .map_err(Clone::clone)
        .and_then(|peer| peer.build(filters, headers).map_err(|error| format!("{error:#}")))
        .map(|built| (built, Samples::new()));
    if let Ok((built, _)) = &theirs {
        for ((header, winner), their) in headers.iter().zip(&ours.found).zip(&built.winners) {
            let ours = winner.wrapping_add(1);
            ensure!(*their == ours, "{name}: {header:?}: acl says {ours}, rte_acl {their}");
        }
    }
    // A scan of a large set is slow: fewer headers.
    ours.check(name, headers, (20_000_000 / filters.len().max(1)).clamp(100, headers.len()))?;
    let mut sets = None;
    if name.starts_with("k8s") {
        let (rules, addresses) = peer_sets(filters);
        let form = Form::new(rules, addresses.build(), headers, 5);
        for ((header, found), winner) in headers.iter().zip(&form.found).zip(&ours.found) {
            // Sets have fewer rules and another order, but match the same headers.
            let same = (*found == Table::NONE) == (*winner == Table::NONE);
            ensure!(same, "{name}: {header:?} is decided otherwise in peer-set form");
        }
        form.check(name, headers, 1000)?;
        sets = Some(form);
    }
    // Rounds of all engines take turns.
    for _ in 0..rounds {
        if let Ok((built, lookups)) = &mut theirs {
            match built.round() {
                Ok(nanoseconds) => lookups.add(1e3 / nanoseconds),
                Err(error) => theirs = Err(format!("{error:#}")),
            }
        }
        ours.round(name, headers)?;
        sets.as_mut().map(|sets| sets.round(name, headers)).transpose()?;
    }
    let (ours, sets) = (ours.figures, sets.map(|sets| sets.figures));
    Ok(Line { name: name.to_owned(), theirs, ours, sets })
}

/// Compiled rules, and what they find.
struct Form {
    map: Arc<AddressMap>,
    table: Table,
    /// Keys that know their identities.
    keys: Vec<Key>,
    found: Vec<u32>,
    figures: Figures,
}

impl Form {
    /// Compiles the rules in so many rounds, and looks the headers up.
    fn new(rules: Vec<Rule>, map: AddressMap, headers: &[Header], rounds: usize) -> Self {
        let (rules, map) = (Arc::<[Rule]>::from(rules), Arc::new(map));
        let compile = || Table::compile(Arc::clone(&rules), &map);
        let build = |_| {
            let mut built = None;
            seconds(|| built = Some(compile()))
        };
        let (build, table) = ((0..rounds).map(build).collect::<Samples>().median(), compile());
        let mut found = vec![0; headers.len()];
        look_up(&table, &map, headers, &mut found);
        let identified = |header: &Header| {
            let mut key = header.key();
            key.source_identity = map.lookup(key.source);
            key.destination_identity = map.lookup(key.destination);
            key
        };
        let keys = headers.iter().map(identified).collect();
        let report = table.report();
        let figures = Figures { both: Samples::new(), table: Samples::new(), build, report };
        Self { map, table, keys, found, figures }
    }

    /// Compares the first `count` with the scan, which defines the meaning.
    fn check(&self, name: &str, headers: &[Header], count: usize) -> anyhow::Result<()> {
        for ((key, found), header) in self.keys.iter().zip(&self.found).zip(headers).take(count) {
            let scanned = linear::lookup(self.table.rules(), &self.map, key);
            let scanned = scanned.map_or(Table::NONE, |at| at as u32);
            ensure!(scanned == *found, "{name}: {header:?}: the table differs from the scan");
        }
        Ok(())
    }

    fn round(&mut self, name: &str, headers: &[Header]) -> anyhow::Result<()> {
        let mut again = vec![0; headers.len()];
        let rate = |seconds: f64| headers.len() as f64 / seconds / 1e6;
        let spent = seconds(|| look_up(&self.table, &self.map, headers, &mut again));
        self.figures.both.add(rate(spent));
        ensure!(again == self.found, "{name}: not the same again");
        let spent = seconds(|| self.table.lookup_vector(&self.keys, &mut again));
        self.figures.table.add(rate(spent));
        ensure!(again == self.found, "{name}: not the same without the map");
        Ok(())
    }
}

/// Seconds that this thread has run for: others may be at work on the same core.
fn seconds(work: impl FnOnce()) -> f64 {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
    };
    let start = now();
    work();
    now() - start
}

/// Looks headers up vector by vector, keys made on the way as a parser would, then the identities that the table asks for.
fn look_up(table: &Table, map: &AddressMap, headers: &[Header], winners: &mut [u32]) {
    let [of_sources, of_destinations] = table.asks_identities();
    let mut keys = [Key::default(); VECTOR];
    for (headers, winners) in headers.chunks(VECTOR).zip(winners.chunks_mut(VECTOR)) {
        let keys = &mut keys[..headers.len()];
        for (key, header) in keys.iter_mut().zip(headers) {
            *key = header.key();
        }
        if of_sources {
            map.identify_sources(keys);
        }
        if of_destinations {
            map.identify_destinations(keys);
        }
        table.lookup_vector(keys, winners);
    }
}
