//! `podgate policy replay-journal`: past connections, decided again by other policies.

use std::path::PathBuf;
use std::time::SystemTime;

use observe::journal;
use observe::time::utc;
use serde_json::json;

use super::input::load;
use super::{Ended, counted, moment, print};
use crate::policy::flows::{Flow, of_journal};
use crate::policy::suggest::{decide, in_words, reason};
use crate::probe::{Answer, Verdict};
use cli_runtime::{NO, Networks, Output};

/// Arguments of `podgate policy replay-journal`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
podgate run --journal SIZE keeps a journal of a node's connections. Pods count as their workloads: the files
of --with have them, and the policies to decide by.

Examples:
  podgate policy replay-journal --since 7d --with deploy/
  podgate policy replay-journal --journal node1/ --journal node2/ --with cluster.yaml --with next/ -o json

Exit code: 0 if the policies decide as it was decided then; 1 if they would deny a connection that was
allowed, or allow one that was denied; 2 if the input cannot be used.")]
pub struct ReplayJournal {
    /// Folder of a journal; may be repeated, for the journals of several nodes
    #[arg(long, value_name = "FOLDER", default_value = "/var/lib/podgate/journal")]
    journal: Vec<PathBuf>,
    /// Only connections last seen since this time: a duration such as 7d, or a time such as
    /// 2026-11-21T02:25:35Z
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// File or folder of the policies and the workloads; may be repeated
    #[arg(long, value_name = "PATH", required = true, num_args = 1..)]
    with: Vec<PathBuf>,
    /// Output format; json: one line a connection that would be decided otherwise
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// A connection that would be decided otherwise: number, last time, and the new decision.
type Change<'a> = (&'a Flow, &'a (u64, SystemTime), &'a Answer);

impl ReplayJournal {
    /// Runs the command.
    pub(super) fn run(&self) -> Ended {
        let since = self.since.as_deref().map(|text| moment("--since", text)).transpose();
        let since = since.map_err(|problem| vec![problem])?;
        let manifests = load(&self.with, None, &Networks::default(), false)?;
        let (mut rows, mut left_out) = (Vec::new(), 0);
        for folder in &self.journal {
            let (found, lost) = journal::read(folder, since)?;
            rows.extend(found);
            left_out += lost;
        }
        if left_out > 0 {
            eprintln!("podgate: {left_out} connections are in no row of the journal");
        }
        let seen = of_journal(&manifests, &rows);
        let flows: Vec<Flow> = seen.keys().cloned().collect();
        let decided = decide(&manifests, manifests.clone(), &flows);
        let decided = decided.map_err(|problem| vec![problem])?;
        let mut changes: Vec<Change<'_>> = Vec::new();
        let mut unknown = 0;
        for ((flow, found), answers) in seen.iter().zip(&decided) {
            // Of pods of a workload that differ, one is enough.
            let other = if flow.denied { Verdict::Allow } else { Verdict::Deny };
            changes
                .extend(answers.iter().find(|it| it.verdict == other).map(|it| (flow, found, it)));
            unknown += u64::from(answers.is_empty());
        }
        let text = match self.output {
            Output::Text => in_text(&changes, seen.len(), unknown),
            Output::Json => changes.iter().map(json_line).collect(),
        };
        Ok(print(&text, if changes.is_empty() { 0 } else { NO }))
    }
}

fn in_text(changes: &[Change<'_>], all: usize, unknown: u64) -> String {
    let mut text = String::new();
    for (title, denied) in [("Would be denied", false), ("Would be allowed", true)] {
        let of_kind = || changes.iter().filter(|(flow, ..)| flow.denied == denied);
        if of_kind().next().is_none() {
            continue;
        }
        text += &format!("{title}:\n");
        for (flow, (count, last), answer) in of_kind() {
            let last = utc(*last);
            let times = counted(*count as usize, "connection");
            text += &format!("  {}  ({times}, last {last}): {}\n", in_words(flow), reason(answer));
        }
    }
    let same = all - changes.len() - unknown as usize;
    text += &format!("{same} of {all} kinds of connections would be decided as they were\n");
    if unknown > 0 {
        text += &format!("{unknown} are of workloads that are in no file\n");
    }
    text
}

fn json_line((flow, (count, last), answer): &Change<'_>) -> String {
    let value = json!({
        "from": flow.from.to_string(), "to": flow.to.to_string(),
        "protocol": flow.protocol.name(), "port": flow.port,
        "was": if flow.denied { "deny" } else { "allow" },
        "would": if flow.denied { "allow" } else { "deny" },
        "reason": answer.reason, "by": answer.by, "connections": count, "last_seen": utc(*last),
    });
    format!("{value}\n")
}
