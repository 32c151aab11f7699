//! `kubectl podgate top`.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use cli_runtime::NO;
use control::api_server::Switches;
use serde_json::{Value, json};

use super::output::{self, Format};
use super::status::INTERVAL;
use super::{Cluster, Failure, Scope, page, warn, write};
use agent::config::Span;
use agent::run::{PortStatus, Status};

/// Arguments of `kubectl podgate top`.
#[derive(Debug, clap::Args)]
#[command(after_help = "The busiest pods come first. Rates are the difference of two answers.

Examples:
  kubectl podgate top -A
  kubectl podgate top -n shop -l app=db -w --interval 5s

Exit code: 1 if a switch does not answer.")]
pub(super) struct Args {
    #[command(flatten)]
    cluster: Cluster,

    #[command(flatten)]
    scope: Scope,

    /// Time between samples
    #[arg(long, default_value = "2s", value_name = "TIME")]
    interval: Span,

    /// Pods shown at most
    #[arg(long, default_value_t = 50, value_name = "N")]
    pods: usize,

    /// Repeat it
    #[arg(short, long)]
    watch: bool,

    /// Output format
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

const COLUMNS: [&str; 11] = [
    "namespace",
    "pod",
    "node",
    "rx/s",
    "tx/s",
    "rx-mbit/s",
    "tx-mbit/s",
    "lost/s",
    "sessions",
    "interface",
    "mode",
];
/// Columns of the narrow table.
const NARROW: usize = 8;

/// Ports by node and name.
type Ports = BTreeMap<(String, String), PortStatus>;

pub(super) async fn run(args: &Args) -> Result<ExitCode, Failure> {
    let connection = args.cluster.connect().await?;
    let namespace = args.scope.namespace(&connection);
    loop {
        let pods = args.scope.pods(&connection).await?;
        let is_meant = |name: &str| {
            let own = name.split_once('/').map(|(own, _)| own);
            own.is_some()
                && namespace.as_deref().is_none_or(|it| own == Some(it))
                && pods.as_ref().is_none_or(|pods| pods.contains(name))
        };
        let switches = args.cluster.switches(&connection, None).await?;
        let (before, _) = ports(&switches).await;
        let began = Instant::now();
        tokio::time::sleep(args.interval.0.max(INTERVAL / 20)).await;
        let (mut after, is_whole) = ports(&switches).await;
        let seconds = began.elapsed().as_secs_f64();
        after.retain(|(_, name), _| is_meant(name));
        let mut rows: Vec<(u64, Vec<Value>)> =
            after.iter().map(|(key, now)| row(key, before.get(key), now, seconds)).collect();
        rows.sort_by_key(|(packets, _)| std::cmp::Reverse(*packets));
        rows.truncate(args.pods);
        let rows = rows.into_iter().map(|(_, row)| row).collect();
        write(&output::rows(&COLUMNS, NARROW, rows, args.output))?;
        if !args.watch {
            return Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::from(NO) });
        }
    }
}

/// All ports, and whether every switch answered.
async fn ports(switches: &Switches) -> (Ports, bool) {
    let (mut ports, mut is_whole) = (Ports::new(), true);
    let pages = switches.pages::<Status>(switches.all(), &page("status")).await;
    for (switch, answer) in switches.all().iter().zip(pages) {
        match answer {
            Ok(status) => ports.extend(
                status.ports.into_iter().map(|it| ((switch.node.clone(), it.name.clone()), it)),
            ),
            Err(why) => {
                warn(format_args!("{}: {why}", switch.node));
                is_whole = false;
            }
        }
    }
    (ports, is_whole)
}

/// A row, and what it is sorted by.
fn row(
    (node, name): &(String, String),
    before: Option<&PortStatus>,
    now: &PortStatus,
    seconds: f64,
) -> (u64, Vec<Value>) {
    let since = |read: fn(&PortStatus) -> u64| {
        // A switch that was restarted counts from 0.
        let earlier = before.map_or(read(now), read);
        read(now).checked_sub(earlier).unwrap_or_else(|| read(now))
    };
    let rate = |count: u64| (count as f64 / seconds).round() as u64;
    let mbit = |bytes: u64| (bytes as f64 * 8.0 / seconds / 1e4).round() / 100.0;
    let (namespace, pod) = name.split_once('/').unwrap_or(("", name));
    // To a pod, what the switch sends is what it receives.
    let (received, sent) = (since(|it| it.sent), since(|it| it.received));
    let row = vec![
        json!(namespace),
        json!(pod),
        json!(node),
        json!(rate(received)),
        json!(rate(sent)),
        json!(mbit(since(|it| it.sent_bytes))),
        json!(mbit(since(|it| it.received_bytes))),
        json!(rate(since(|it| it.refused) + since(|it| it.missed))),
        json!(now.sessions),
        json!(now.interface),
        json!(now.mode),
    ];
    (received + sent, row)
}
