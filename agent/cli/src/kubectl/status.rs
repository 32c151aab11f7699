//! `kubectl podgate status`.

use std::process::ExitCode;
use std::time::Duration;

use cli_runtime::NO;
use control::api_server::Switches;
use serde_json::{Value, json};

use super::output::{self, Format};
use super::{Cluster, Failure, page, write};
use agent::run::Status;

/// Arguments of `kubectl podgate status`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit code: 0 if every switch is ready and healthy, else 1. -o json and \
-o yaml give each switch's whole status.

Examples:
  kubectl podgate status -o wide
  kubectl podgate status -l topology.kubernetes.io/zone=a -w")]
pub(super) struct Args {
    #[command(flatten)]
    cluster: Cluster,

    /// Only nodes with these labels
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,

    /// Repeat it every two seconds
    #[arg(short, long)]
    watch: bool,

    /// Output format
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

/// Interval of `--watch`.
pub(super) const INTERVAL: Duration = Duration::from_secs(2);

const COLUMNS: [&str; 12] = [
    "node",
    "ready",
    "version",
    "uptime",
    "ports",
    "closed",
    "sessions",
    "drops/min",
    "faults",
    "generation",
    "source",
    "pod",
];
/// Columns of the narrow table.
const NARROW: usize = 9;

pub(super) async fn run(args: &Args) -> Result<ExitCode, Failure> {
    let connection = args.cluster.connect().await?;
    loop {
        // A token and the list of nodes are as new as the answer.
        let switches = args.cluster.switches(&connection, args.selector.as_deref()).await?;
        let is_well = show(&switches, args.output).await?;
        if !args.watch {
            return Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::from(NO) });
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Writes the state of each switch; returns whether all are ready and healthy.
async fn show(switches: &Switches, output: Format) -> Result<bool, Failure> {
    let pages = switches.pages(switches.all(), &page("status")).await;
    let (mut rows, mut whole, mut notes) = (Vec::new(), Vec::new(), Vec::new());
    for (switch, answer) in switches.all().iter().zip(pages) {
        let node = &switch.node;
        let read = answer
            .and_then(|value: Value| Ok((serde_json::from_value::<Status>(value.clone())?, value)));
        match read {
            Ok((status, value)) => {
                notes.extend(status.problems.iter().map(|why| format!("{node}: {why}")));
                notes.extend(status.faults.iter().map(|why| format!("{node}: {why}")));
                rows.push(row(&status, node, &switch.pod));
                whole.push(value);
            }
            Err(why) => {
                notes.push(format!("{node}: {why}"));
                let mut row = vec![json!(node), json!("unknown")];
                row.resize(COLUMNS.len() - 1, Value::Null);
                row.push(json!(switch.pod));
                rows.push(row);
                whole.push(json!({"node": node, "error": why.to_string()}));
            }
        }
    }
    let is_well = rows.iter().all(|row| row[1] == "yes");
    let mut text = match output {
        Format::Text | Format::Wide => output::rows(&COLUMNS, NARROW, rows, output),
        Format::Json | Format::Yaml => output::document(&whole.into(), output),
    };
    if matches!(output, Format::Text | Format::Wide) && !notes.is_empty() {
        // All nodes find the same faults.
        let notes = once(notes);
        text += &format!("\nAttention:\n  {}\n", notes.join("\n  "));
    }
    write(&text)?;
    Ok(is_well)
}

/// Notes whose text after the node's name is the same count once.
fn once(notes: Vec<String>) -> Vec<String> {
    let mut known: Vec<(String, Vec<String>)> = Vec::new();
    for note in notes {
        let (node, text) = note.split_once(": ").unwrap_or(("", &note));
        match known.iter_mut().find(|(it, _)| it == text) {
            Some((_, nodes)) => nodes.push(node.to_owned()),
            None => known.push((text.to_owned(), vec![node.to_owned()])),
        }
    }
    let line = |(text, nodes): (String, Vec<String>)| match &nodes[..] {
        [one] => format!("{one}: {text}"),
        [first, others @ ..] => format!("{first} and {} more: {text}", others.len()),
        [] => text,
    };
    known.into_iter().map(line).collect()
}

fn row(status: &Status, node: &str, pod: &str) -> Vec<Value> {
    let is_well = status.ready && status.healthy;
    let generation = match status.generation == status.generation_in_force {
        true => status.generation.to_string(),
        false => format!("{} ({} in force)", status.generation, status.generation_in_force),
    };
    vec![
        json!(node),
        json!(if is_well { "yes" } else { "no" }),
        json!(status.version),
        json!(age(status.uptime_s)),
        json!(status.ports.len()),
        json!(status.ports.iter().filter(|port| port.closed).count()),
        json!(status.sessions.used),
        json!(status.drops_last_minute.values().sum::<u64>()),
        json!(status.faults.len()),
        json!(generation),
        json!(status.source.state),
        json!(pod),
    ]
}

/// A length of time as kubectl prints ages.
fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_say_is_said_once() {
        let notes =
            ["a: NetworkPolicy x/y: is wrong", "b: NetworkPolicy x/y: is wrong", "b: stuck"];
        let notes = once(notes.map(str::to_owned).into());
        assert_eq!(notes, ["a and 1 more: NetworkPolicy x/y: is wrong", "b: stuck"]);
        assert_eq!([59, 600, 7200, 259_200].map(age), ["59s", "10m", "2h", "3d"]);
    }
}
