//! Lookups, build time and memory of one rule set in every engine.

use std::sync::Arc;

use acl::{AddressMap, Key, Report, Rule, Table, linear};
use anyhow::ensure;

use super::clock::now;
use super::probe::ExactMatch;
use super::rte_acl::RteAcl;
use super::rulesets::{self, Filter, Header, peer_sets};

/// Keys in a vector, as in the dataplane.
const VECTOR: usize = 256;

/// Figures of one rule set; lookups in nanoseconds.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) theirs: Result<Theirs, String>,
    /// Headers to rules, vectors.
    pub(crate) ours: Rounds,
    /// Seconds to build.
    pub(crate) build: f64,
    pub(crate) report: Report,
    pub(crate) sets: Option<Sets>,
    /// A hash probe of the full 5-tuple at as many entries.
    pub(crate) probe: f64,
    /// The scan that defines the meaning.
    pub(crate) linear: f64,
}

/// Figures of `rte_acl` for the set.
pub(crate) struct Theirs {
    pub(crate) build: f64,
    pub(crate) bytes: f64,
    pub(crate) huge: bool,
    pub(crate) method: String,
    pub(crate) lookup: Rounds,
}

/// The peer-set form.
pub(crate) struct Sets {
    /// Headers to rules: address map and table.
    pub(crate) both: Rounds,
    /// Keys that know their identities to rules.
    pub(crate) table: Rounds,
    /// Seconds to build the table.
    pub(crate) build: f64,
    pub(crate) report: Report,
}

/// The rounds of one measurement.
#[derive(Clone, Copy)]
pub(crate) struct Rounds {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Rounds {
    fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        Self { median: times[times.len() / 2], least: times[0], most: times[times.len() - 1] }
    }
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
    let mut builds = Vec::new();
    let mut compiled = None;
    for _ in 0..rounds.min(5) {
        drop(compiled.take());
        let start = now();
        compiled = Some(Table::compile(Arc::clone(&rules), &map));
        builds.push((now() - start) * 1e-9);
    }
    let table = compiled.unwrap_or_else(|| Table::compile(Arc::clone(&rules), &map));

    // The answers first, and only of engines that agree the time. A peer that fails costs its
    // columns alone.
    let mut theirs = peer
        .map_err(Clone::clone)
        .and_then(|peer| peer.build(filters, headers, 2).map_err(|error| format!("{error:#}")));
    let mut winners = vec![0; headers.len()];
    look_up(&table, &map, headers, &mut winners);
    if let Ok(theirs) = &theirs {
        for (at, header) in headers.iter().enumerate() {
            let ours = winners[at].wrapping_add(1);
            let same = theirs.winners[at] == ours;
            ensure!(same, "{name}: {header:?}: acl says {ours}, rte_acl {}", theirs.winners[at]);
        }
    }
    // A scan of a large set is slow: fewer headers.
    let some = &headers[..(20_000_000 / rules.len().max(1)).clamp(100, headers.len())];
    let mut scanned = vec![0; some.len()];
    let linear = time(1, some.len(), || {
        for (header, winner) in some.iter().zip(&mut scanned) {
            let found = linear::lookup(&rules, &map, &identified(header, &map));
            *winner = found.map_or(Table::NONE, |at| at as u32);
        }
    });
    ensure!(scanned == winners[..some.len()], "{name}: the table differs from the linear scan");

    let sets = match name.starts_with("k8s") {
        true => Some(PeerSetForm::new(name, filters, headers, &winners)?),
        false => None,
    };
    // Rounds of all engines take turns.
    let mut times: [Vec<f64>; 4] = Default::default();
    let mut again = vec![0; headers.len()];
    for _ in 0..rounds {
        if let Ok(built) = &mut theirs {
            match built.round() {
                Ok(time) => times[0].push(time),
                Err(error) => theirs = Err(format!("{error:#}")),
            }
        }
        times[1].push(once(headers.len(), || look_up(&table, &map, headers, &mut again)));
        ensure!(again == winners, "{name}: not the same again");
        if let Some(sets) = &sets {
            let both = || look_up(&sets.table, &sets.map, headers, &mut again);
            times[2].push(once(headers.len(), both));
            ensure!(again == sets.found, "{name}: not the same again in peer-set form");
            let table = || sets.table.lookup_vector(&sets.keys, &mut again);
            times[3].push(once(headers.len(), table));
            ensure!(again == sets.found, "{name}: not the same without the map");
        }
    }

    let present = &headers[..rules.len().min(headers.len())];
    let exact = ExactMatch::new(present);
    let asked: Vec<Header> = present.iter().cycle().take(headers.len()).copied().collect();
    let mut found = 0;
    let probe = time(rounds, asked.len(), || found = exact.count(&asked));
    ensure!(found == asked.len(), "{name}: the exact table lost keys");

    let [theirs_took, ours, both, alone] = times;
    Ok(Line {
        name: name.to_owned(),
        theirs: theirs.map(|built| Theirs {
            build: built.build,
            bytes: built.bytes,
            huge: built.huge,
            method: built.method.clone(),
            lookup: Rounds::of(theirs_took),
        }),
        ours: Rounds::of(ours),
        build: Rounds::of(builds).median,
        report: table.report(),
        sets: sets.map(|sets| Sets {
            both: Rounds::of(both),
            table: Rounds::of(alone),
            build: sets.build,
            report: sets.table.report(),
        }),
        probe: probe.median,
        linear: linear.median,
    })
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
        let sets = peer_sets(filters);
        let map = Arc::new(sets.addresses.build());
        let rules_of_sets: Arc<[Rule]> = sets.rules.into();
        let build = time(5, 1, || drop(Table::compile(Arc::clone(&rules_of_sets), &map)));
        let table = Table::compile(rules_of_sets, &map);
        let keys: Vec<Key> = headers.iter().map(|header| identified(header, &map)).collect();
        let mut found = vec![0; headers.len()];
        look_up(&table, &map, headers, &mut found);
        for (at, (found, winner)) in found.iter().zip(winners).enumerate() {
            // Sets have fewer rules and another order, but match the same headers.
            let same = (*found == Table::NONE) == (*winner == Table::NONE);
            ensure!(same, "{name}: {:?} is decided otherwise in peer-set form", headers[at]);
        }
        for (key, found) in keys.iter().zip(&found).take(1000) {
            let expected = linear::lookup(table.rules(), &map, key);
            ensure!(expected.map_or(Table::NONE, |at| at as u32) == *found, "{name}: {key:?}");
        }
        Ok(Self { map, table, build: build.median * 1e-9, keys, found })
    }
}

/// Nanoseconds for each of `count` in one round.
fn once(count: usize, work: impl FnOnce()) -> f64 {
    let start = now();
    work();
    (now() - start) / count as f64
}

/// Some rounds, in nanoseconds for each of `count`.
pub(crate) fn time(rounds: usize, count: usize, mut work: impl FnMut()) -> Rounds {
    Rounds::of((0..rounds).map(|_| once(count, &mut work)).collect())
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
