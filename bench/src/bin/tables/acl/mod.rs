//! The classifier beside its peers: lookups, build and memory, in one run on the same
//! headers, on one core. Every engine must name the same winning rule before it is timed.
//!
//! ```text
//! cargo run --release -p bench --bin tables -- acl RULESETS [NAME...] [--orders] [--generated COUNT] [--peer-seconds SECONDS] [--quick] [--out FOLDER]
//! ```
//!
//! RULESETS is a folder of ClassBench filter files, compressed with xz or not; NAMEs pick some
//! of all sets. A file that begins with `k8s` is also measured in peer-set form; `--orders` measures
//! all others reversed, shuffled and joined with the set before, too. `--generated` adds sets of COUNT rules
//! from this project's own generator, of several shapes and orders and of IPv6. Prints a report and writes it
//! to FOLDER as `acl.md`, with `acl.svg` as its picture. `rte_acl` gets generated sets of 10,000 rules at most, as more
//! may take hours, unless `--peer-seconds` says how much processor time it may take for a set.
//!
//! Each engine's tables stand where its users have them: ours in memory of the usual allocator, as those of `podgate`
//! do, DPDK's in huge pages that root reserves for as long as the program runs. The report says where there were none.

mod address_map;
mod clock;
mod generated;
mod lookups;
#[path = "../../../../../acl/benches/lookup/networks.rs"]
mod networks;
mod probe;
mod report;
mod rte_acl;
mod rulesets;

use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// Arguments.
struct Options {
    rulesets: PathBuf,
    names: Vec<String>,
    rounds: usize,
    headers: usize,
    orders: bool,
    generated: Option<u32>,
    peer_seconds: Option<u32>,
    out: Option<PathBuf>,
}

impl Options {
    fn picks(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|picked| picked == name)
    }
}

/// Generated rules so many at most are given to the peer.
const MOST_FOR_PEER: usize = 10_001;

/// Huge pages of 2 MiB that are reserved.
const RESERVED: &str = "/proc/sys/vm/nr_hugepages";
/// As many as DPDK needs for the largest sets.
const PAGES: u32 = 3072;

pub(crate) fn main(args: &[String]) -> Result<(), Box<dyn Error>> {
    Ok(measure(&args[1..])?)
}

fn measure(args: &[String]) -> anyhow::Result<()> {
    let options = options(args)?;
    let scratch = std::env::temp_dir().join(format!("acl-bench-{}", std::process::id()));
    std::fs::create_dir_all(&scratch)?;
    let before = reserved();
    // Others than root cannot.
    let _ = std::fs::write(RESERVED, (before + PAGES).to_string());
    let result = run(&options, &scratch, reserved() > before);
    let _ = std::fs::write(RESERVED, before.to_string());
    std::fs::remove_dir_all(&scratch)?;
    result
}

fn reserved() -> u32 {
    let text = std::fs::read_to_string(RESERVED).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

fn options(args: &[String]) -> anyhow::Result<Options> {
    const USAGE: &str = "usage: tables acl RULESETS [NAME...] [--orders] [--generated COUNT] \
        [--peer-seconds SECONDS] [--quick] [--out FOLDER]";
    let mut arguments = args.iter();
    let mut options = Options {
        rulesets: arguments.next().context(USAGE)?.into(),
        names: Vec::new(),
        rounds: 9,
        headers: 1_000_000,
        orders: false,
        generated: None,
        peer_seconds: None,
        out: None,
    };
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--quick" => (options.rounds, options.headers) = (3, 100_000),
            "--orders" => options.orders = true,
            "--generated" => {
                options.generated = Some(arguments.next().context(USAGE)?.parse().context(USAGE)?);
            }
            "--peer-seconds" => {
                options.peer_seconds =
                    Some(arguments.next().context(USAGE)?.parse().context(USAGE)?);
            }
            "--out" => options.out = Some(arguments.next().context(USAGE)?.into()),
            name => options.names.push(name.to_owned()),
        }
    }
    Ok(options)
}

fn run(options: &Options, scratch: &Path, huge: bool) -> anyhow::Result<()> {
    let peer = rte_acl::RteAcl::new(scratch, options.peer_seconds, huge)
        .map_err(|error| format!("{error:#}"));
    let mut text = String::new();
    let mut files: Vec<PathBuf> = match std::fs::read_dir(&options.rulesets) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?,
        Err(error) => {
            let folder = options.rulesets.display();
            writeln!(text, "No rule sets are measured: {folder}: {error}\n")?;
            Vec::new()
        }
    };
    files.sort();
    let mut lines = Vec::new();
    let mut before: Option<(String, Vec<rulesets::Filter>)> = None;
    for path in files {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let is_text = path.extension().is_some_and(|extension| extension == "md");
        if !options.picks(&name) || is_text {
            continue;
        }
        eprintln!("{name}");
        let rules = rulesets::load(&path)?;
        let is_kubernetes = name.starts_with("k8s");
        let mut forms = vec![(name.clone(), rules.clone())];
        if options.orders && !is_kubernetes {
            forms.push((format!("{name} reversed"), rules.iter().rev().cloned().collect()));
            forms.push((format!("{name} shuffled"), rulesets::shuffled(&rules)));
            if let Some((other, of_other)) = &before {
                let joined = rulesets::in_turns(&rules, of_other);
                forms.push((format!("{name} and {other} in turns"), joined));
            }
            before = Some((name, rules));
        }
        for (name, rules) in forms {
            let headers = rulesets::headers(&rules, options.headers, is_kubernetes);
            lines.push(lookups::measure(&name, &rules, &headers, peer.as_ref(), options.rounds)?);
        }
    }
    let many = Err(format!("it takes hours for more than {MOST_FOR_PEER} generated rules"));
    for (name, rules) in options.generated.into_iter().flat_map(generated::v4) {
        if !options.picks(&name) {
            continue;
        }
        eprintln!("{name}");
        let headers = rulesets::headers(&rules, options.headers.min(100_000), false);
        let too_many = options.peer_seconds.is_none() && rules.len() > MOST_FOR_PEER;
        let peer = if too_many { many.as_ref() } else { peer.as_ref() };
        lines.push(lookups::measure(&name, &rules, &headers, peer, options.rounds)?);
    }
    report::lookups(&mut text, &lines)?;
    if let Some(count) = options.generated {
        report::v6(&mut text, &generated::v6(count, options.rounds)?)?;
    }
    report::address_map(&mut text, &address_map::measure(options.rounds)?)?;
    print!("{text}");
    if let Some(folder) = &options.out {
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join("acl.md"), format!("{text}\n![lookups](acl.svg)\n"))?;
        std::fs::write(folder.join("acl.svg"), report::picture(&lines))?;
    }
    Ok(())
}
