//! The classifier beside DPDK's `rte_acl`: lookups, build and memory, in one run on the same
//! headers, on one core. Both must name the same winning rule before either is timed.
//!
//! ```text
//! cargo run --release -p bench --bin tables -- acl RULESETS [NAME...] [--quick] [--out FOLDER]
//! ```
//!
//! Prints a report and writes it to FOLDER as `acl.md`, with `acl.svg` as its picture.
//!
//! Each engine's tables stand where its users have them: ours in memory of the usual allocator, as those of `podgate`
//! do, DPDK's in huge pages that root reserves for as long as the program runs. The report says where there were none.
//!
//! The address map, IPv6, other shapes and orders of rules, and compiling are measured alone by
//! `cargo bench -p acl`.

mod lookups;
#[path = "../../../../../acl/benches/lookup/networks.rs"]
#[allow(dead_code, reason = "`cargo bench -p acl` has keys inside of networks, too")]
mod networks;
mod report;
mod rte_acl;
mod rulesets;

use std::error::Error;
use std::fs;
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
    /// Fewer rounds and headers
    #[arg(long)]
    quick: bool,
    /// Write the report and its picture here
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

/// Huge pages of 2 MiB that are reserved, and as many as DPDK needs for the largest sets.
const RESERVED: &str = "/proc/sys/vm/nr_hugepages";
const PAGES: u32 = 3072;

pub(crate) fn main(args: &[String]) -> Result<(), Box<dyn Error>> {
    let args = Args::parse_from(args);
    let scratch = TempDir::new("bench-acl");
    let before = reserved();
    // Others than root cannot.
    let _ = fs::write(RESERVED, (before + PAGES).to_string());
    let result = run(&args, scratch.path(), reserved() > before);
    let _ = fs::write(RESERVED, before.to_string());
    Ok(result?)
}

fn reserved() -> u32 {
    fs::read_to_string(RESERVED).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

fn run(args: &Args, scratch: &Path, huge: bool) -> anyhow::Result<()> {
    let peer = rte_acl::RteAcl::new(scratch, huge).map_err(|error| format!("{error:#}"));
    let (rounds, headers) = if args.quick { (3, 100_000) } else { (9, 1_000_000) };
    let files = fs::read_dir(&args.rulesets)?.map(|entry| Ok(entry?.path()));
    let mut files = files.collect::<std::io::Result<Vec<PathBuf>>>()?;
    files.sort();
    let mut lines = Vec::new();
    for path in files {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let is_text = path.extension().is_some_and(|extension| extension == "md");
        if is_text || !args.names.is_empty() && !args.names.contains(&name) {
            continue;
        }
        eprintln!("{name}");
        let rules = rulesets::load(&path)?;
        let headers = rulesets::headers(&rules, headers, name.starts_with("k8s"));
        lines.push(lookups::measure(&name, &rules, &headers, peer.as_ref(), rounds)?);
    }
    let text = report::text(&lines);
    print!("{text}");
    if let Some(folder) = &args.out {
        fs::create_dir_all(folder)?;
        fs::write(folder.join("acl.md"), format!("{text}\n![lookups](acl.svg)\n"))?;
        fs::write(folder.join("acl.svg"), report::picture(&lines))?;
    }
    Ok(())
}
