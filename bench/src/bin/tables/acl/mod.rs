//! The classifier beside DPDK's `rte_acl`: lookups, build and memory, in one run on the same
//! headers, on one core. Both must name the same winning rule before either is timed.
//!
//! ```text
//! cargo run --release -p bench --bin tables -- acl RULESETS [NAME...] [--orders] [--generated COUNT] [--peer-seconds SECONDS] [--quick] [--out FOLDER]
//! ```
//!
//! Prints a report and writes it to FOLDER as `acl.md`, with `acl.svg` as its picture.
//!
//! Each engine's tables stand where its users have them: ours in memory of the usual allocator, as those of `podgate`
//! do, DPDK's in huge pages that root reserves for as long as the program runs. The report says where there were none.
//!
//! What the address map, IPv6 and compiling cost alone is measured by `cargo bench -p acl`.

mod lookups;
#[path = "../../../../../acl/benches/lookup/networks.rs"]
#[allow(dead_code, reason = "`cargo bench -p acl` has keys inside of networks, too")]
mod networks;
mod report;
mod rte_acl;
mod rulesets;
#[path = "../../../../../acl/benches/lookup/rulesets.rs"]
#[allow(dead_code, reason = "`cargo bench -p acl` looks up other keys")]
mod shapes;

use std::error::Error;
use std::path::{Path, PathBuf};

use clap::Parser;
use testkit::TempDir;

#[derive(Parser)]
struct Args {
    /// Folder of ClassBench filter files, compressed with xz or not; one that begins with k8s is measured in peer-set
    /// form too
    rulesets: PathBuf,
    /// Only these sets
    names: Vec<String>,
    /// Measure the sets reversed, shuffled and joined with the one before, too
    #[arg(long)]
    orders: bool,
    /// Measure sets of COUNT rules from this project's own generator, of several shapes and orders
    #[arg(long, value_name = "COUNT")]
    generated: Option<u32>,
    /// Processor time rte_acl may take for a set [default: no limit, but at most 10,000 generated rules, as more may
    /// take hours]
    #[arg(long, value_name = "SECONDS")]
    peer_seconds: Option<u32>,
    /// Fewer rounds and headers
    #[arg(long)]
    quick: bool,
    /// Write the report and its picture here
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

/// Generated rules so many at most are given to the peer.
const MOST_FOR_PEER: usize = 10_001;

/// Huge pages of 2 MiB that are reserved, and as many as DPDK needs for the largest sets.
const RESERVED: &str = "/proc/sys/vm/nr_hugepages";
const PAGES: u32 = 3072;

pub(crate) fn main(args: &[String]) -> Result<(), Box<dyn Error>> {
    let args = Args::parse_from(args);
    let scratch = TempDir::new("bench-acl");
    let before = reserved();
    // Others than root cannot.
    let _ = std::fs::write(RESERVED, (before + PAGES).to_string());
    let result = run(&args, scratch.path(), reserved() > before);
    let _ = std::fs::write(RESERVED, before.to_string());
    Ok(result?)
}

fn reserved() -> u32 {
    let text = std::fs::read_to_string(RESERVED).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

fn run(args: &Args, scratch: &Path, huge: bool) -> anyhow::Result<()> {
    let peer = rte_acl::RteAcl::new(scratch, args.peer_seconds, huge)
        .map_err(|error| format!("{error:#}"));
    let (rounds, headers) = if args.quick { (3, 100_000) } else { (9, 1_000_000) };
    let picks = |name: &str| args.names.is_empty() || args.names.iter().any(|it| it == name);
    let mut text = String::new();
    let mut files: Vec<PathBuf> = match std::fs::read_dir(&args.rulesets) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?,
        Err(error) => {
            text = format!("No files are measured: {}: {error}\n\n", args.rulesets.display());
            Vec::new()
        }
    };
    files.sort();
    let mut lines = Vec::new();
    let mut before: Option<(String, Vec<rulesets::Filter>)> = None;
    for path in files {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let is_text = path.extension().is_some_and(|extension| extension == "md");
        if !picks(&name) || is_text {
            continue;
        }
        eprintln!("{name}");
        let rules = rulesets::load(&path)?;
        let is_kubernetes = name.starts_with("k8s");
        let mut forms = vec![(name.clone(), rules.clone())];
        if args.orders && !is_kubernetes {
            forms.push((format!("{name} reversed"), rules.iter().rev().cloned().collect()));
            forms.push((format!("{name} shuffled"), rulesets::shuffled(&rules)));
            if let Some((other, of_other)) = &before {
                let joined = rulesets::in_turns(&rules, of_other);
                forms.push((format!("{name} and {other} in turns"), joined));
            }
            before = Some((name, rules));
        }
        for (name, rules) in forms {
            let headers = rulesets::headers(&rules, headers, is_kubernetes);
            lines.push(lookups::measure(&name, &rules, &headers, peer.as_ref(), rounds)?);
        }
    }
    let many = Err(format!("it takes hours for more than {MOST_FOR_PEER} generated rules"));
    for (name, rules) in args.generated.into_iter().flat_map(rulesets::generated) {
        if !picks(&name) {
            continue;
        }
        eprintln!("{name}");
        let headers = rulesets::headers(&rules, headers.min(100_000), false);
        let too_many = args.peer_seconds.is_none() && rules.len() > MOST_FOR_PEER;
        let peer = if too_many { many.as_ref() } else { peer.as_ref() };
        lines.push(lookups::measure(&name, &rules, &headers, peer, rounds)?);
    }
    text += &report::text(&lines);
    print!("{text}");
    if let Some(folder) = &args.out {
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join("acl.md"), format!("{text}\n![lookups](acl.svg)\n"))?;
        std::fs::write(folder.join("acl.svg"), report::picture(&lines))?;
    }
    Ok(())
}
