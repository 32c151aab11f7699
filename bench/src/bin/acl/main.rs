//! The classifier beside its peers: lookups, build, memory and updates, in one run on the same
//! headers, on one core. Every engine must name the same winning rule before it is timed.
//!
//! ```text
//! cargo run --release -p bench --bin acl -- RULESETS [NAME...] [--quick] [--out FOLDER]
//! ```
//!
//! RULESETS is a folder of ClassBench filter files, compressed with xz or not. NAMEs pick some
//! of them. Prints a table, and writes `acl.md` and `acl.svg` to FOLDER.

mod clock;
mod probe;
mod rte_acl;
mod rulesets;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use acl::{AddressMap, Identity, Key, Rule, Table, linear};
use anyhow::{Context, ensure};
use bench::print_table;
use clock::now;
use probe::ExactMatch;
use rte_acl::RteAcl;
use rulesets::{Header, headers, load, peer_sets};

/// Keys in a vector, as in the dataplane.
const VECTOR: usize = 256;

struct Options {
    rulesets: PathBuf,
    names: Vec<String>,
    rounds: usize,
    headers: usize,
}

fn main() -> anyhow::Result<()> {
    let options = options()?;
    let scratch = std::env::temp_dir().join(format!("acl-bench-{}", std::process::id()));
    std::fs::create_dir_all(&scratch)?;
    let result = run(&options, &scratch);
    std::fs::remove_dir_all(&scratch)?;
    result
}

fn options() -> anyhow::Result<Options> {
    let mut options =
        Options { rulesets: PathBuf::new(), names: Vec::new(), rounds: 9, headers: 1_000_000 };
    let mut arguments = std::env::args().skip(1);
    options.rulesets = arguments.next().context("usage: acl RULESETS [NAME...] [--quick]")?.into();
    for argument in arguments {
        match argument.as_str() {
            "--quick" => (options.rounds, options.headers) = (3, 100_000),
            name => options.names.push(name.to_owned()),
        }
    }
    Ok(options)
}

fn run(options: &Options, scratch: &Path) -> anyhow::Result<()> {
    let peer = RteAcl::new(scratch);
    if let Err(reason) = &peer {
        println!("rte_acl is not measured: {reason}");
    }
    let peer = peer.ok();
    let mut files: Vec<PathBuf> = std::fs::read_dir(&options.rulesets)
        .with_context(|| format!("no rule sets in {}", options.rulesets.display()))?
        .map(|entry| Ok(entry?.path()))
        .collect::<std::io::Result<_>>()?;
    files.sort();
    let mut rows = Vec::new();
    for path in files {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let picked = options.names.is_empty() || options.names.contains(&name);
        if !picked || !name.contains('_') {
            continue;
        }
        let rules = load(&path)?;
        let headers = headers(&rules, options.headers, name.starts_with("k8s"));
        rows.push(measure(&name, rules, &headers, peer.as_ref(), options)?);
        eprintln!("{}", rows[rows.len() - 1].join("  "));
    }
    print_table(
        &[
            "set",
            "rules",
            "rte_acl M/s",
            "acl M/s",
            "ratio",
            "sets M/s",
            "ratio",
            "table only",
            "probe M/s",
            "linear M/s",
            "rte build ms",
            "build ms",
            "rte MiB",
            "MiB",
            "report",
        ],
        &rows,
    );
    Ok(())
}

fn measure(
    name: &str,
    rules: Vec<Rule>,
    headers: &[Header],
    peer: Option<&RteAcl>,
    options: &Options,
) -> anyhow::Result<Vec<String>> {
    let nothing = Arc::new(AddressMap::default());
    let rules: Arc<[Rule]> = rules.into();
    let start = now();
    let table = Table::compile(Arc::clone(&rules), &nothing);
    let build = (now() - start) * 1e-9;

    let theirs = peer.map(|peer| peer.run(&rules, headers, options.rounds)).transpose()?;
    let mut winners = vec![0; headers.len()];
    let lookup = best(options.rounds, headers.len(), || look_up(&table, headers, &mut winners));
    if let Some(theirs) = &theirs {
        for (at, header) in headers.iter().enumerate() {
            ensure!(
                theirs.winners[at] == winners[at].wrapping_add(1),
                "{name}: {header:?}: rte_acl says {}, acl {}",
                theirs.winners[at],
                winners[at].wrapping_add(1)
            );
        }
    }
    // A scan of a large set is slow: fewer headers.
    let some = &headers[..(20_000_000 / rules.len()).clamp(500, headers.len())];
    let mut scanned = vec![0; some.len()];
    let linear = best(1, some.len(), || {
        for (header, winner) in some.iter().zip(&mut scanned) {
            *winner =
                linear::lookup(&rules, &nothing, &header.key()).map_or(Table::NONE, |n| n as u32);
        }
    });
    ensure!(scanned == winners[..some.len()], "{name}: the table differs from the linear scan");

    let present = &headers[..rules.len().min(headers.len())];
    let exact = ExactMatch::new(present);
    let asked: Vec<Header> = present.iter().cycle().take(headers.len()).copied().collect();
    let mut found = 0;
    let probe = best(options.rounds, asked.len(), || found = exact.count(&asked));
    ensure!(found == asked.len(), "{name}: the exact table lost keys");

    let sets = if name.starts_with("k8s") {
        Some(measure_sets(name, &rules, headers, &winners, options)?)
    } else {
        None
    };
    let rate = |nanoseconds: f64| format!("{:.1}", 1e3 / nanoseconds);
    let theirs_rate = theirs.as_ref().map(|theirs| theirs.lookup.0);
    let ratio =
        |ours: f64| theirs_rate.map_or("-".into(), |theirs| format!("{:.2}", theirs / ours));
    Ok(vec![
        name.to_owned(),
        rules.len().to_string(),
        theirs.as_ref().map_or("-".into(), |t| format!("{} {}", rate(t.lookup.0), t.method)),
        rate(lookup),
        ratio(lookup),
        sets.map_or("-".into(), |(both, _)| rate(both)),
        sets.map_or("-".into(), |(both, _)| ratio(both)),
        sets.map_or("-".into(), |(_, table)| rate(table)),
        rate(probe),
        format!("{:.4}", 1e3 / linear),
        theirs.as_ref().map_or("-".into(), |t| format!("{:.1}", t.build * 1e3)),
        format!("{:.1}", build * 1e3),
        theirs.as_ref().map_or("-".into(), |t| format!("{:.2}", t.bytes / 1048576.0)),
        format!("{:.2}", table.report().bytes as f64 / 1048576.0),
        table.report().to_string(),
    ])
}

/// The peer-set form: nanoseconds from header to rule, and those of the table alone.
fn measure_sets(
    name: &str,
    rules: &[Rule],
    headers: &[Header],
    winners: &[u32],
    options: &Options,
) -> anyhow::Result<(f64, f64)> {
    let sets = peer_sets(rules)?;
    let map = Arc::new(sets.addresses.build());
    let table = Table::compile(sets.rules.into(), &map);
    eprintln!(
        "{name} sets: {} | map {} identities {} bytes",
        table.report(),
        map.identities().count(),
        map.bytes()
    );
    let mut found = vec![0; headers.len()];
    let both = best(options.rounds, headers.len(), || {
        look_up_sets(&table, &map, headers, &mut found);
    });
    for (at, (found, winner)) in found.iter().zip(winners).enumerate() {
        let expected = sets.stands_for.get(*winner as usize).copied().unwrap_or(Table::NONE);
        ensure!(
            *found == expected,
            "{name}: {} is decided otherwise in peer-set form",
            headers[at].source_ip()
        );
    }
    let keys: Vec<Key> = headers
        .iter()
        .map(|header| {
            let key = header.key();
            Key { source_identity: map.lookup(key.source), ..key }
        })
        .collect();
    let mut again = vec![0; keys.len()];
    let alone = best(options.rounds, keys.len(), || table.lookup_vector(&keys, &mut again));
    ensure!(again == found, "{name}: not the same again");
    Ok((both, alone))
}

/// Best time of some rounds, in nanoseconds for each of `count`.
fn best(rounds: usize, count: usize, mut work: impl FnMut()) -> f64 {
    let time = |work: &mut dyn FnMut()| {
        let start = now();
        work();
        (now() - start) / count as f64
    };
    (0..rounds).map(|_| time(&mut work)).fold(f64::INFINITY, f64::min)
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
