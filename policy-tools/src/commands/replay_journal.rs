//! `podgate policy replay-journal`: past connections, decided again by other policies, and the policies of the
//! past.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use control::{PodKey, history};
use observe::journal::{self, Connections, Missing, Row};
use observe::time::{utc, utc_seconds};
use serde_json::json;

use super::explain::{pod, walkthrough};
use super::input::{Render, load_by};
use super::{Ended, moment, print};
use crate::input::Manifests;
use crate::input::Reading;
use crate::policy::flows::{Flow, OfJournal};
use crate::policy::hubble;
use crate::policy::suggest::{decide, in_words, reason};
use crate::probe::{Answer, ProbeVerdict};
use cli_runtime::{NO, Networks, Output, counted, note};

/// Arguments of `podgate policy replay-journal`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
podgate run --journal SIZE keeps a journal of a node's connections, and what was known of the cluster at any
moment. With --with pods count as their workloads: the files have them, and the policies to decide by. With
--at the answer is what could reach a pod at that moment and what it could reach, by which rules, with its
connections of that hour.

Examples:
  podgate policy replay-journal --since 7d --with deploy/
  podgate policy replay-journal --journal node1/ --journal rows.json --with cluster.yaml --with next/ -o json
  podgate policy replay-journal --at 2026-11-24T03:12:00Z --of shop/db

Exit code: 0 if the policies decide as it was decided then; 1 if they would deny a connection that was
allowed, or allow one that was denied; 2 if the input cannot be used.")]
pub struct ReplayJournal {
    /// Folder of a journal, or a file of kubectl podgate journal -o json or hubble observe -o jsonpb; may be
    /// repeated, for the journals of several nodes
    #[arg(long, value_name = "FOLDER", default_value = journal::FOLDER)]
    journal: Vec<PathBuf>,
    /// Only connections last seen since this time: a duration such as 7d, or a time such as
    /// 2026-11-21T02:25:35Z
    #[arg(long, value_name = "TIME", conflicts_with = "at")]
    since: Option<String>,
    /// File or folder of the policies and the workloads; may be repeated
    #[arg(long, value_name = "PATH", required_unless_present = "at", num_args = 1..)]
    with: Vec<PathBuf>,
    #[command(flatten)]
    render: Render,
    /// The policies of this moment: a duration ago, such as 3d, or a time such as 2026-11-21T02:25:35Z
    #[arg(long, value_name = "TIME", conflicts_with = "with", requires = "of")]
    at: Option<String>,
    /// With --at: the pod
    #[arg(long, value_name = "NS/POD", value_parser = pod, requires = "at")]
    of: Option<PodKey>,
    /// Output format; json: one line a connection that would be decided differently, or with --at the rules and then
    /// one line a connection
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Reads the connections of journals: folders, or files of rows. Reports gaps on stderr.
pub(super) fn read<'a>(
    journals: &[PathBuf],
    since: Option<SystemTime>,
    manifests: &'a Manifests,
) -> Result<OfJournal<'a>, Vec<String>> {
    let mut all = OfJournal::new(manifests);
    let mut missing = Vec::new();
    for path in journals {
        if path.is_file() {
            of_file(path, |line| {
                let row: Connections = serde_json::from_str(line)?;
                if journal::is_since(row.last, since) {
                    all.add(&row);
                }
                Ok(())
            })?;
            continue;
        }
        let begin = || OfJournal::new(manifests);
        let (found, of_folder) = journal::fold(path, since, begin, |found, row| found.add(&row))?;
        found.into_iter().for_each(|found| all.merge(found));
        missing.push(of_folder);
    }
    say(&missing);
    Ok(all)
}

/// Reads the rows of journals that `is_meant` picks. Reports gaps on stderr.
fn rows(
    journals: &[PathBuf],
    since: Option<SystemTime>,
    is_meant: impl Fn(&Row) -> bool,
) -> Result<Vec<Row>, Vec<String>> {
    let (mut rows, mut missing) = (Vec::new(), Vec::new());
    for path in journals {
        let mut take = |row: Row| rows.extend(Some(row).filter(&is_meant));
        if path.is_file() {
            of_file(path, |line| Row::parse(line).map(&mut take))?;
        } else {
            missing.push(journal::read(path, since, take)?);
        }
    }
    say(&missing);
    Ok(rows)
}

/// Reports gaps of journals on stderr.
fn say(missing: &[Missing]) {
    missing.iter().flat_map(|it| &it.damaged).for_each(note);
    let left_out: u64 = missing.iter().map(|it| it.left_out).sum();
    if left_out > 0 {
        note(format_args!("{} in no row of the journal", counted(left_out, "connection")));
    }
}

/// Passes on the lines of a file, each a row.
fn of_file(
    path: &Path,
    mut take: impl FnMut(&str) -> serde_json::Result<()>,
) -> Result<(), Vec<String>> {
    let named = |what: String| vec![format!("{}: {what}", path.display())];
    let file = File::open(path).map_err(|error| named(error.to_string()))?;
    for (n, line) in BufReader::new(file).lines().enumerate() {
        let taken = line.and_then(|line| match hubble::row(&line) {
            Some(None) => Ok(()),
            Some(Some(row)) => Ok(take(&row.to_string())?),
            None => Ok(take(&line)?),
        });
        taken.map_err(|error| {
            named(format!("line {}: is not a row of a journal: {error}", n + 1))
        })?;
    }
    Ok(())
}

/// A connection that would be decided differently: number, last time, and the new decision.
type Change<'a> = (&'a Flow, &'a (u64, SystemTime), &'a Answer);

impl ReplayJournal {
    /// Runs the command.
    pub(super) fn run(&self) -> Ended {
        if let (Some(at), Some(pod)) = (&self.at, &self.of) {
            return self.past(moment("--at", at).map_err(|problem| vec![problem])?, pod);
        }
        let since = self.since.as_deref().map(|text| moment("--since", text)).transpose();
        let since = since.map_err(|problem| vec![problem])?;
        let reading = Reading { sources: true, render: self.render.render, ..Reading::default() };
        let manifests = load_by(&self.with, None, &Networks::default(), false, &reading)?;
        let seen = read(&self.journal, since, &manifests)?.found();
        let flows: Vec<Flow> = seen.keys().cloned().collect();
        let decided = decide(&manifests, manifests.clone(), &flows);
        let decided = decided.map_err(|problem| vec![problem])?;
        let mut changes: Vec<Change<'_>> = Vec::new();
        let mut unknown = 0;
        for ((flow, found), answers) in seen.iter().zip(&decided) {
            // Of pods of a workload that differ, one is enough.
            let other = if flow.denied { ProbeVerdict::Allow } else { ProbeVerdict::Deny };
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

    /// Prints the connections to and from a pod that were allowed at a moment, and its connections of that hour.
    fn past(&self, time: SystemTime, pod: &PodKey) -> Ended {
        let mut past = None;
        for folder in self.journal.iter().filter(|path| path.is_dir()) {
            past = history::at(folder, time).map_err(|error| vec![error.to_string()])?;
            if past.is_some() {
                break;
            }
        }
        let unknown = || {
            let at = utc_seconds(time);
            vec![format!("--at: no journal has the objects of {at}: their history begins later")]
        };
        let past = past.ok_or_else(unknown)?;
        past.damage.iter().for_each(note);
        note(format_args!("the objects are as they were since {}", utc_seconds(past.since)));
        let mut text = walkthrough(Manifests::from(past.objects), pod, self.output)?;
        let hour = journal::hour_of(time);
        let name = pod.to_string();
        let is_meant = |row: &Row| {
            let ends = [&row.event.from.pod, &row.event.to.pod];
            journal::hour_of(row.event.time) == hour
                && ends.into_iter().flatten().any(|it| **it == *name)
        };
        let mut rows = rows(&self.journal, time.checked_sub(HOUR), is_meant)?;
        rows.sort_by_key(|row: &Row| row.event.time);
        match self.output {
            Output::Json => {
                for row in rows {
                    text +=
                        &(serde_json::to_string(&row).map_err(|it| vec![it.to_string()])? + "\n");
                }
            }
            Output::Text => {
                let title = if rows.is_empty() { "No connections" } else { "Connections" };
                text += &format!("\n{title} of the hour {hour} (UTC)\n");
                for Row { event, count, last } in &rows {
                    let times = counted(*count, "connection");
                    text += &format!("  {event}  ({times}, last {})\n", utc(*last));
                }
            }
        }
        Ok(print(&text, 0))
    }
}

/// The length of a file of the journal.
const HOUR: Duration = Duration::from_secs(3600);

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
            let times = counted(*count, "connection");
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
