//! `kubectl podgate staged`.

use std::process::ExitCode;

use cli_runtime::NO;
use control::api_server::SwitchPod;
use serde_json::{Value, json};

use super::output::{self, Format};
use super::{Cluster, Failure, answers, page, warn, write};
use crate::commands::staged::Wanted;
use agent::run::{STAGED_COLUMNS, Table};

/// Arguments of `kubectl podgate staged`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A policy is staged by the annotation podgate.io/stage=staged, of its own or of its Namespace.

Examples:
  kubectl podgate staged
  kubectl podgate staged shop/db --since 7d

Exit code: 0 if nothing would change; 1 if a connection would be denied or allowed, or if a switch does not
answer; 2 if an argument cannot be used."
)]
pub(super) struct Args {
    #[command(flatten)]
    cluster: Cluster,

    #[command(flatten)]
    wanted: Wanted,

    /// Output format
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

pub(super) async fn run(args: &Args) -> Result<ExitCode, Failure> {
    args.wanted.check().map_err(Failure::Unusable)?;
    let connection = args.cluster.connect().await?;
    let switches = args.cluster.switches(&connection, None).await?;
    let (tables, mut code) = answers::<Table>(&switches, &page("staged")).await;
    let mut rows = Vec::new();
    for (SwitchPod { node, .. }, mut table) in tables {
        if let Err(why) = args.wanted.narrow(&mut table) {
            warn(format_args!("{node}: {why}"));
            code = ExitCode::from(NO);
            continue;
        }
        if !table.rows.is_empty() || table.left_out > 0 {
            code = ExitCode::from(NO);
        }
        if table.left_out > 0 {
            warn(format_args!("{node}: {} more connections are in no row", table.left_out));
        }
        let with_node = |row: Vec<Value>| [row, vec![json!(node)]].concat();
        rows.extend(table.rows.into_iter().map(with_node));
    }
    let columns = [&STAGED_COLUMNS[..], &["node"]].concat();
    write(&output::rows(&columns, STAGED_COLUMNS.len(), rows, args.output))?;
    Ok(code)
}
