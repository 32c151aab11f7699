//! `podgate policy picture`: what policies allow, drawn.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use super::input::{Input, Observed};
use super::{Ended, print};
use crate::policy::flows::flows;
use crate::policy::picture::{PictureOptions, picture};
use crate::probe::Protocol;
use cli_runtime::{UNUSABLE, fail};

/// Arguments of `podgate policy picture`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  podgate policy picture --manifests deploy/ -o svg > policies.svg
  podgate policy picture --manifests deploy/ -o html -w policies.html
  podgate policy picture --manifests deploy/ --collapse '*' -o dot | dot -Tpdf > overview.pdf
  podgate policy picture --manifests deploy/ --observed live -o html -w policies.html
  podgate policy picture --manifests deploy/ --focus shop/db > db.svg

Workloads are nodes, grouped by namespace; the ports of a node are where edges end. Between two ends that no
policy selects everything is allowed, and no edge is drawn. Pods that policies name and the files do not have
are dashed. What was observed and denied is red.

Exit code: 0, or 2 if the input cannot be used.")]
pub struct Draw {
    #[command(flatten)]
    input: Input,
    /// Output format
    #[arg(short, long, value_enum, default_value = "svg")]
    output: Format,
    /// Write to this file instead of stdout
    #[arg(short, long, alias = "file", short_alias = 'f', value_name = "FILE")]
    write: Option<PathBuf>,
    /// Only connections of this protocol
    #[arg(long, value_enum, ignore_case = true)]
    protocol: Option<Protocol>,
    /// Only connections to this port
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Draw this namespace as one node, * for each; may be repeated
    #[arg(long, value_name = "NAMESPACE")]
    collapse: Vec<String>,
    /// Draw only this workload and what it is connected with
    #[arg(long, value_name = "NAMESPACE/WORKLOAD")]
    focus: Option<String>,
    /// Draw no pods that the files do not have
    #[arg(long)]
    existing_only: bool,
    #[command(flatten)]
    observed: Observed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// An image
    Svg,
    /// A page with the image, whose namespaces collapse, and lists
    Html,
    /// For Graphviz
    Dot,
    /// For Mermaid
    Mermaid,
}

impl Draw {
    /// Runs the command.
    pub(super) fn run(&self) -> Ended {
        let text = self.text()?;
        let Some(file) = &self.write else { return Ok(print(&text, 0)) };
        Ok(match fs::write(file, text) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(UNUSABLE, format_args!("{}: {error}", file.display())),
        })
    }

    fn text(&self) -> Result<String, Vec<String>> {
        if self.protocol == Some(Protocol::Icmp) && self.port.is_some() {
            return Err(vec!["--port: ICMP has no ports".into()]);
        }
        self.input.take_stdin_once(&self.observed.observed)?;
        let manifests = self.input.load()?;
        let events = self.observed.load()?;
        let options = PictureOptions {
            // A port without a protocol is that of TCP, as in the other commands.
            protocol: self.protocol.or(self.port.map(|_| Protocol::Tcp)),
            port: self.port,
            observed: flows(&manifests, &events).into_iter().collect(),
            with_internet: false,
            with_possible: !self.existing_only,
        };
        let mut drawn = picture(manifests, &options).map_err(|problem| vec![problem])?;
        if let Some(workload) = &self.focus {
            let none = || vec![format!("--focus {workload}: there is no such workload")];
            drawn = drawn.focused(workload).ok_or_else(none)?;
        }
        let known = drawn.namespaces();
        let unknown = self.collapse.iter().filter(|it| *it != "*" && !known.contains(*it));
        let unknown: Vec<String> = unknown
            .map(|it| format!("--collapse {it}: no workload is in such a namespace"))
            .collect();
        if !unknown.is_empty() {
            return Err(unknown);
        }
        if !self.collapse.is_empty() {
            let all = self.collapse.iter().any(|it| it == "*");
            let some: BTreeSet<String> = self.collapse.iter().cloned().collect();
            drawn = drawn.collapsed(if all { &known } else { &some });
        }
        Ok(match self.output {
            Format::Svg => drawn.svg(),
            Format::Html => drawn.html(),
            Format::Dot => drawn.dot(),
            Format::Mermaid => drawn.mermaid(),
        })
    }
}
