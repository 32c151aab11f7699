//! Lookups, build time and memory of one rule set in every engine.

use std::sync::Arc;

use acl::{AddressMap, Identity, Key, Report, Rule, Table, linear};
use anyhow::ensure;

use crate::clock::now;
use crate::probe::ExactMatch;
use crate::rte_acl::{Outcome, RteAcl};
use crate::rulesets::{Header, peer_sets};

/// Keys in a vector, as in the dataplane.
const VECTOR: usize = 256;

/// What was measured of one rule set; lookups in nanoseconds.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) theirs: Option<Outcome>,
    /// Headers to rules, vectors, best round and median round.
    pub(crate) ours: (f64, f64),
    /// Seconds to build.
    pub(crate) build: f64,
    pub(crate) report: Report,
    pub(crate) sets: Option<Sets>,
    /// A hash probe of the full 5-tuple at as many entries.
    pub(crate) probe: f64,
    /// The scan that defines the meaning.
    pub(crate) linear: f64,
}

/// The peer-set form.
pub(crate) struct Sets {
    /// Headers to rules: address map and table.
    pub(crate) both: (f64, f64),
    /// Keys that know their identities to rules.
    pub(crate) table: (f64, f64),
    pub(crate) report: Report,
}

pub(crate) fn measure(
    name: &str,
    rules: Vec<Rule>,
    headers: &[Header],
    peer: Option<&RteAcl>,
    rounds: usize,
) -> anyhow::Result<Line> {
    let nothing = Arc::new(AddressMap::default());
    let rules: Arc<[Rule]> = rules.into();
    let start = now();
    let table = Table::compile(Arc::clone(&rules), &nothing);
    let build = (now() - start) * 1e-9;

    // The answers first, and only of engines that agree the time.
    let theirs = peer.map(|peer| peer.run(&rules, headers, rounds)).transpose()?;
    let mut winners = vec![0; headers.len()];
    look_up(&table, headers, &mut winners);
    for (at, header) in headers.iter().enumerate() {
        let ours = winners[at].wrapping_add(1);
        let same = theirs.as_ref().is_none_or(|theirs| theirs.winners[at] == ours);
        ensure!(same, "{name}: {header:?}: acl says {ours}, rte_acl something else");
    }
    // A scan of a large set is slow: fewer headers.
    let some = &headers[..(20_000_000 / rules.len().max(1)).clamp(100, headers.len())];
    let mut scanned = vec![0; some.len()];
    let (linear, _) = time(1, some.len(), || {
        for (header, winner) in some.iter().zip(&mut scanned) {
            let found = linear::lookup(&rules, &nothing, &header.key());
            *winner = found.map_or(Table::NONE, |at| at as u32);
        }
    });
    ensure!(scanned == winners[..some.len()], "{name}: the table differs from the linear scan");

    let mut again = vec![0; headers.len()];
    let ours = time(rounds, headers.len(), || look_up(&table, headers, &mut again));
    ensure!(again == winners, "{name}: not the same again");

    let present = &headers[..rules.len().min(headers.len())];
    let exact = ExactMatch::new(present);
    let asked: Vec<Header> = present.iter().cycle().take(headers.len()).copied().collect();
    let mut found = 0;
    let (probe, _) = time(rounds, asked.len(), || found = exact.count(&asked));
    ensure!(found == asked.len(), "{name}: the exact table lost keys");

    let sets = match name.starts_with("k8s") {
        true => Some(measure_sets(name, &rules, headers, &winners, rounds)?),
        false => None,
    };
    Ok(Line {
        name: name.to_owned(),
        theirs,
        ours,
        build,
        report: table.report(),
        sets,
        probe,
        linear,
    })
}

fn measure_sets(
    name: &str,
    rules: &[Rule],
    headers: &[Header],
    winners: &[u32],
    rounds: usize,
) -> anyhow::Result<Sets> {
    let sets = peer_sets(rules)?;
    let map = Arc::new(sets.addresses.build());
    let table = Table::compile(sets.rules.into(), &map);
    let keys: Vec<Key> = headers
        .iter()
        .map(|header| {
            let key = header.key();
            Key { source_identity: map.lookup(key.source), ..key }
        })
        .collect();
    let mut found = vec![0; headers.len()];
    look_up_sets(&table, &map, headers, &mut found);
    for (at, (found, winner)) in found.iter().zip(winners).enumerate() {
        // Sets have fewer rules and another order, but match the same headers.
        let same = (*found == Table::NONE) == (*winner == Table::NONE);
        ensure!(same, "{name}: {:?} is decided otherwise in peer-set form", headers[at]);
    }
    for (key, found) in keys.iter().zip(&found).take(1000) {
        let expected = linear::lookup(table.rules(), &map, key);
        ensure!(expected.map_or(Table::NONE, |at| at as u32) == *found, "{name}: {key:?}");
    }
    let mut again = vec![0; keys.len()];
    let both = time(rounds, keys.len(), || look_up_sets(&table, &map, headers, &mut again));
    ensure!(again == found, "{name}: not the same again");
    let alone = time(rounds, keys.len(), || table.lookup_vector(&keys, &mut again));
    ensure!(again == found, "{name}: not the same without the map");
    Ok(Sets { both, table: alone, report: table.report() })
}

/// Best and median time of some rounds, in nanoseconds for each of `count`.
pub(crate) fn time(rounds: usize, count: usize, mut work: impl FnMut()) -> (f64, f64) {
    let mut times: Vec<f64> = (0..rounds)
        .map(|_| {
            let start = now();
            work();
            (now() - start) / count as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    (times[0], times[times.len() / 2])
}

/// Looks headers up vector by vector, keys made on the way as a parser would.
fn look_up(table: &Table, headers: &[Header], winners: &mut [u32]) {
    let mut keys = [Key::default(); VECTOR];
    for (headers, winners) in headers.chunks(VECTOR).zip(winners.chunks_mut(VECTOR)) {
        for (key, header) in keys.iter_mut().zip(headers) {
            *key = header.key();
        }
        table.lookup_vector(&keys[..headers.len()], winners);
    }
}

/// The same with the source's identity looked up first.
fn look_up_sets(table: &Table, map: &AddressMap, headers: &[Header], winners: &mut [u32]) {
    let mut keys = [Key::default(); VECTOR];
    let mut sources = [acl::Address::default(); VECTOR];
    let mut identities = [Identity::NONE; VECTOR];
    for (headers, winners) in headers.chunks(VECTOR).zip(winners.chunks_mut(VECTOR)) {
        for (source, header) in sources.iter_mut().zip(headers) {
            *source = acl::Address::from_v4_bits(header.source);
        }
        map.lookup_vector(&sources[..headers.len()], &mut identities);
        for ((key, header), identity) in keys.iter_mut().zip(headers).zip(&identities) {
            *key = Key { source_identity: *identity, ..header.key() };
        }
        table.lookup_vector(&keys[..headers.len()], winners);
    }
}
