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
    pub(crate) theirs: Result<Theirs, String>,
    /// Headers to rules, vectors.
    pub(crate) ours: Samples,
    /// Seconds to build.
    pub(crate) build: f64,
    pub(crate) report: Report,
    pub(crate) sets: Option<Sets>,
}

/// Figures of `rte_acl` for the set.
pub(crate) struct Theirs {
    pub(crate) built: Built,
    pub(crate) lookup: Samples,
}

/// The peer-set form.
pub(crate) struct Sets {
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
    let (rules, map) = (Arc::<[Rule]>::from(rules), Arc::new(networks.map()));
    let (table, build) = compile(&rules, &map, rounds.min(5));

    // The answers first, and only of engines that agree the time. A peer that fails costs its
    // columns alone.
    let mut theirs = peer
        .map_err(Clone::clone)
        .and_then(|peer| peer.build(filters, headers, 2).map_err(|error| format!("{error:#}")))
        .map(|built| Theirs { built, lookup: Samples::new() });
    let mut winners = vec![0; headers.len()];
    look_up(&table, &map, headers, &mut winners);
    if let Ok(theirs) = &theirs {
        for ((header, winner), their) in headers.iter().zip(&winners).zip(&theirs.built.winners) {
            let ours = winner.wrapping_add(1);
            ensure!(*their == ours, "{name}: {header:?}: acl says {ours}, rte_acl {their}");
        }
    }
    // A scan of a large set is slow: fewer headers.
    let some = (20_000_000 / rules.len().max(1)).clamp(100, headers.len());
    for (header, winner) in headers.iter().zip(&winners).take(some) {
        let scanned = scan(&table, &map, &identified(header, &map));
        ensure!(scanned == *winner, "{name}: {header:?}: the table differs from the linear scan");
    }

    let is_sets = name.starts_with("k8s");
    let sets = is_sets.then(|| PeerSetForm::new(name, filters, headers, &winners)).transpose()?;
    // Rounds of all engines take turns.
    let [mut ours, mut both, mut alone] = [const { Samples::new() }; 3];
    let mut again = vec![0; headers.len()];
    for _ in 0..rounds {
        if let Ok(it) = &mut theirs {
            match it.built.round() {
                Ok(nanoseconds) => it.lookup.add(1e3 / nanoseconds),
                Err(error) => theirs = Err(format!("{error:#}")),
            }
        }
        ours.add(rate(headers.len(), || look_up(&table, &map, headers, &mut again)));
        ensure!(again == winners, "{name}: not the same again");
        if let Some(sets) = &sets {
            let work = || look_up(&sets.table, &sets.map, headers, &mut again);
            both.add(rate(headers.len(), work));
            ensure!(again == sets.found, "{name}: not the same again in peer-set form");
            let work = || sets.table.lookup_vector(&sets.keys, &mut again);
            alone.add(rate(headers.len(), work));
            ensure!(again == sets.found, "{name}: not the same without the map");
        }
    }
    let sets = sets.map(|sets| Sets {
        both,
        table: alone,
        build: sets.build,
        report: sets.table.report(),
    });
    Ok(Line { name: name.to_owned(), theirs, ours, build, report: table.report(), sets })
}

/// Compiles the rules in so many rounds; the median of the seconds that it took.
fn compile(rules: &Arc<[Rule]>, map: &Arc<AddressMap>, rounds: usize) -> (Table, f64) {
    let mut builds = Samples::new();
    for _ in 1..rounds {
        builds.add(seconds(|| drop(Table::compile(Arc::clone(rules), map))));
    }
    let start = now();
    let table = Table::compile(Arc::clone(rules), map);
    builds.add(now() - start);
    (table, builds.median())
}

/// A set whose peers are sets, and what it finds.
struct PeerSetForm {
    map: Arc<AddressMap>,
    table: Table,
    build: f64,
    /// Keys that know their identities.
    keys: Vec<Key>,
    found: Vec<u32>,
}

impl PeerSetForm {
    fn new(
        name: &str,
        filters: &[Filter],
        headers: &[Header],
        winners: &[u32],
    ) -> anyhow::Result<Self> {
        let (rules, addresses) = peer_sets(filters);
        let map = Arc::new(addresses.build());
        let (table, build) = compile(&rules.into(), &map, 5);
        let keys: Vec<Key> = headers.iter().map(|header| identified(header, &map)).collect();
        let mut found = vec![0; headers.len()];
        look_up(&table, &map, headers, &mut found);
        for (at, (found, winner)) in found.iter().zip(winners).enumerate() {
            // Sets have fewer rules and another order, but match the same headers.
            let same = (*found == Table::NONE) == (*winner == Table::NONE);
            ensure!(same, "{name}: {:?} is decided otherwise in peer-set form", headers[at]);
        }
        for (key, found) in keys.iter().zip(&found).take(1000) {
            ensure!(scan(&table, &map, key) == *found, "{name}: {key:?}");
        }
        Ok(Self { map, table, build, keys, found })
    }
}

/// The result of the scan, which defines the meaning.
fn scan(table: &Table, map: &AddressMap, key: &Key) -> u32 {
    linear::lookup(table.rules(), map, key).map_or(Table::NONE, |at| at as u32)
}

/// Millions a second of `count` in one round.
fn rate(count: usize, work: impl FnOnce()) -> f64 {
    count as f64 / seconds(work) / 1e6
}

fn seconds(work: impl FnOnce()) -> f64 {
    let start = now();
    work();
    now() - start
}

/// Seconds that this thread has run for: others may be at work on the same core.
fn now() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// A header's key with its identities.
fn identified(header: &Header, map: &AddressMap) -> Key {
    let key = header.key();
    let (source_identity, destination_identity) =
        (map.lookup(key.source), map.lookup(key.destination));
    Key { source_identity, destination_identity, ..key }
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
