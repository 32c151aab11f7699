//! `kubectl podgate staged`.

use std::process::ExitCode;

use cli_runtime::NO;
use serde_json::json;

use super::output::{self, Format};
use super::{Cluster, Failure, page, warn, write};
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
    let pages = switches.pages(switches.all(), &page("staged")).await;
    let (mut rows, mut code) = (Vec::new(), ExitCode::SUCCESS);
    for (switch, answer) in switches.all().iter().zip(pages) {
        let table = answer
            .map_err(|error| error.to_string())
            .and_then(|mut table: Table| args.wanted.narrow(&mut table).map(|()| table));
        match table {
            Ok(table) => {
                if !table.rows.is_empty() || table.left_out > 0 {
                    code = ExitCode::from(NO);
                }
                if table.left_out > 0 {
                    let (node, count) = (&switch.node, table.left_out);
                    warn(format_args!("{node}: {count} more connections are in no row"));
                }
                rows.extend(table.rows.into_iter().map(|mut row| {
                    row.push(json!(switch.node));
                    row
                }));
            }
            Err(why) => {
                warn(format_args!("{}: {why}", switch.node));
                code = ExitCode::from(NO);
            }
        }
    }
    let columns = [&STAGED_COLUMNS[..], &["node"]].concat();
    write(&output::rows(&columns, STAGED_COLUMNS.len(), rows, args.output))?;
    Ok(code)
}
