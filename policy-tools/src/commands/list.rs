//! `podgate policy list`: every allowed connection of workloads.

use std::fmt::Write as _;
use std::path::PathBuf;

use acl::Origin;
use cli_runtime::Networks;

use super::input::{Narrowed, Render, load_by, stdin_once};
use super::{Ended, print};
use crate::input::Reading;
use crate::policy::list::{Allowed, list};

/// Arguments of `podgate policy list`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  podgate policy list deploy/
  podgate policy list deploy/ -o csv > allowed.csv

Ends are NS/NAME of workloads, internet, networks that policies name, and any-pod: a pod without labels in a
namespace that is in no file. What is open to everybody, or towards everybody, comes first.

Exit code: 0; 2 if the input cannot be used.")]
pub struct List {
    /// File or folder of Kubernetes objects, REV:PATH of a git revision, or - for stdin
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    render: Render,
    #[command(flatten)]
    narrowed: Narrowed,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    output: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// Plain text
    Text,
    /// Comma-separated values, RFC 4180
    Csv,
    /// One JSON object a line
    Json,
    /// A Markdown table
    Md,
}

/// The columns.
const HEAD: [&str; 5] = ["from", "to", "protocol", "ports", "by"];

impl List {
    /// Runs the command.
    pub(super) fn run(&self) -> Ended {
        stdin_once(&self.paths)?;
        let reading = Reading { render: self.render.render, ..Reading::default() };
        let mut manifests = load_by(&self.paths, None, &Networks::default(), false, &reading)?;
        self.narrowed.apply(&mut manifests);
        let found = list(manifests).map_err(|problem| vec![problem])?;
        let text = match self.output {
            Format::Text => table(&found),
            Format::Csv => csv(&found),
            Format::Json => found.iter().map(json).collect(),
            Format::Md => markdown(&found),
        };
        Ok(print(&text, 0))
    }
}

fn cells(it: &Allowed) -> [String; 5] {
    let Allowed { from, to, protocol, ports, by } = it;
    [from.clone(), to.clone(), (*protocol).to_owned(), ports.clone(), Origin::list(by)]
}

fn table(found: &[Allowed]) -> String {
    let rows: Vec<[String; 5]> =
        [HEAD.map(str::to_uppercase)].into_iter().chain(found.iter().map(cells)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; 5] = std::array::from_fn(|column| width(column).unwrap_or_default());
    let mut text = String::new();
    for row in &rows {
        let padded: Vec<String> =
            row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        let _ = writeln!(text, "{}", padded.join("  ").trim_end());
    }
    text
}

fn csv(found: &[Allowed]) -> String {
    let quoted = |cell: &String| {
        let is_plain = !cell.contains([',', '"', '\n']);
        if is_plain { cell.clone() } else { format!("\"{}\"", cell.replace('"', "\"\"")) }
    };
    let row = |row: [String; 5]| row.iter().map(quoted).collect::<Vec<_>>().join(",") + "\r\n";
    let head = HEAD.map(str::to_owned);
    [head].into_iter().chain(found.iter().map(cells)).map(row).collect()
}

fn json(it: &Allowed) -> String {
    serde_json::to_string(it).unwrap_or_default() + "\n"
}

fn markdown(found: &[Allowed]) -> String {
    let mut text = "| From | To | Protocol | Ports | By |\n|---|---|---|---|---|\n".to_owned();
    for it in found {
        let row = cells(it).map(|cell| cell.replace('|', "\\|").replace('\n', " "));
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
    text
}
