//! `kubectl podgate explain`.

use std::collections::BTreeMap;
use std::process::ExitCode;

use cli_runtime::NO;
use control::api_server::{node_of, pods_with};
use serde_json::json;

use super::output::{self, Format};
use super::{At as _, Cluster, Failure, Scope, answers, page, warn, write};
use agent::run::Table;

/// Arguments of `kubectl podgate explain`.
#[derive(Debug, clap::Args)]
#[command(after_help = "The rules are those that the switch of the pod's node decides by now, \
in their order; the first that matches counts.

Examples:
  kubectl podgate explain db-0 -n shop
  kubectl podgate explain -A -l app=db -o wide

Exit code: 1 if a switch does not answer, or has no port for a pod.")]
pub(super) struct Args {
    #[command(flatten)]
    cluster: Cluster,

    #[command(flatten)]
    scope: Scope,

    /// The pod; without one all in the namespace, or those with the labels
    #[arg(value_name = "[NS/]POD", conflicts_with_all = ["selector", "all_namespaces"])]
    pod: Option<String>,

    /// Output format
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

const COLUMNS: [&str; 7] = ["pod", "direction", "rule", "action", "match", "by", "node"];
/// Columns of the narrow table.
const NARROW: usize = 6;

pub(super) async fn run(args: &Args) -> Result<ExitCode, Failure> {
    let connection = args.cluster.connect().await?;
    let namespace = args.scope.namespace(&connection);
    let pods = match &args.pod {
        Some(pod) => {
            let usual = namespace.unwrap_or_default();
            let (namespace, name) = pod.split_once('/').unwrap_or((&usual, pod));
            let node = node_of(&connection, namespace, name).await.at(&connection)?;
            vec![(format!("{namespace}/{name}"), node)]
        }
        None => {
            let selector = args.scope.selector.as_deref().unwrap_or_default();
            pods_with(&connection, namespace.as_deref(), selector).await.at(&connection)?
        }
    };
    let mut by_node: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (pod, node) in pods {
        by_node.entry(node).or_default().push(pod);
    }
    let nodes: Vec<String> = by_node.keys().cloned().collect();
    let switches = args.cluster.switches_of(&connection, Some(&nodes)).await?;
    let path = match (&args.pod, by_node.values().next()) {
        (Some(_), Some(pods)) => format!("{}?pod={}", page("tables"), pods[0]),
        _ => page("tables"),
    };
    let (tables, mut code) = answers::<Table>(&switches, &path).await;
    let mut rows = Vec::new();
    for (switch, table) in tables {
        for pod in by_node.get(&switch.node).into_iter().flatten() {
            let known = rows.len();
            for row in table.rows.iter().filter(|row| row.first() == Some(&json!(pod))) {
                let mut row = row.clone();
                row.push(json!(switch.node));
                rows.push(row);
            }
            if rows.len() == known && args.pod.is_some() {
                warn(format_args!("{}: has no port for {pod}", switch.node));
                code = ExitCode::from(NO);
            }
        }
    }
    write(&output::rows(&COLUMNS, NARROW, rows, args.output))?;
    Ok(code)
}
