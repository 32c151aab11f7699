//! `kubectl podgate top`.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use control::api_server::Switches;
use serde_json::{Value, json};

use super::output::{self, Format};
use super::status::INTERVAL;
use super::{Cluster, Failure, Scope, answers, page, write};
use crate::commands::top::rates::PortRates;
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
        let (mut after, code) = ports(&switches).await;
        let seconds = began.elapsed().as_secs_f64();
        after.retain(|(_, name), _| is_meant(name));
        let rates = after.iter().map(|(key, now)| {
            // Of a port that is new it is not known how long it has counted.
            (key, now, PortRates::between(before.get(key).or(Some(now)), now, seconds))
        });
        let mut rates: Vec<_> = rates.collect();
        rates.sort_by(|(.., a), (.., b)| a.busiest_first(b));
        rates.truncate(args.pods);
        let rows = rates.iter().map(|((node, _), now, rates)| row(node, now, rates)).collect();
        write(&output::rows(&COLUMNS, NARROW, rows, args.output))?;
        if !args.watch {
            return Ok(code);
        }
    }
}

/// All ports, and the exit code.
async fn ports(switches: &Switches) -> (Ports, ExitCode) {
    let (all, code) = answers::<Status>(switches, &page("status")).await;
    let ports = all.into_iter().flat_map(|(switch, status)| {
        status.ports.into_iter().map(move |it| ((switch.node.clone(), it.name.clone()), it))
    });
    (ports.collect(), code)
}

fn row(node: &str, now: &PortStatus, rates: &PortRates) -> Vec<Value> {
    let whole = |rate: f64| json!(rate.round() as u64);
    let mbit = |bits: f64| json!((bits / 1e4).round() / 100.0);
    let (namespace, pod) = now.name.split_once('/').unwrap_or(("", &now.name));
    vec![
        json!(namespace),
        json!(pod),
        json!(node),
        // To a pod, what the switch sends is what it receives.
        whole(rates.sent),
        whole(rates.received),
        mbit(rates.sent_bits),
        mbit(rates.received_bits),
        whole(rates.lost),
        json!(now.sessions),
        json!(now.interface),
        json!(now.mode),
    ]
}
