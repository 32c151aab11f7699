//! `kubectl podgate journal`.

use std::process::ExitCode;

use cli_runtime::{Output, counted, plain};
use observe::journal::Row;
use observe::time::{utc, utc_seconds};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use policy_tools::commands::moment;
use serde_json::Value;

use super::observe::{end, read};
use super::{Cluster, Failure, page, write};

/// Arguments of `kubectl podgate journal`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The connections of each hour that the journals of all switches have; podgate run --journal keeps \
one on each node. podgate policy replay-journal and podgate policy suggest read the rows of -o json.

Examples:
  kubectl podgate journal --since 1d -o json > rows.json
  podgate policy replay-journal --journal rows.json --with cluster.yaml --with next/

Exit code: 1 if a switch does not answer or has no journal; 2 if an argument cannot be used."
)]
pub(super) struct Args {
    #[command(flatten)]
    cluster: Cluster,

    /// Only connections last seen since this time: a duration such as 7d, or a time such as
    /// 2026-11-21T02:25:35Z
    #[arg(long, value_name = "TIME")]
    since: Option<String>,

    /// Output format; json: one line a row
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Switches that are read from at a time.
const AT_A_TIME: usize = 16;

pub(super) async fn run(args: &Args) -> Result<ExitCode, Failure> {
    let since = args.since.as_deref().map(|text| moment("--since", text)).transpose();
    let since = since.map_err(Failure::Unusable)?;
    let query = since.map(|time| {
        format!("?since={}", utf8_percent_encode(&utc_seconds(time), NON_ALPHANUMERIC))
    });
    let path = page("journal") + &query.unwrap_or_default();
    let connection = args.cluster.connect().await?;
    let switches = args.cluster.switches(&connection, None).await?;
    let (mut lines, tasks) = read(&switches, &path, AT_A_TIME, |lost| {
        format!("{} in no row of the journal", counted(lost, "connection"))
    });
    while let Some(line) = lines.recv().await {
        print(line, args.output)?;
    }
    Ok(end(tasks).await)
}

fn print(value: Value, output: Output) -> Result<(), Failure> {
    let text = match output {
        Output::Json => value.to_string(),
        Output::Text => {
            let row = serde_json::from_value(value).map_err(|error| format!("answer: {error}"))?;
            let Row { event, count, last } = row;
            let times = counted(count, "connection");
            plain(&format!("{} {event}  ({times}, last {})", event.node, utc(last)))
        }
    };
    write(&(text + "\n"))
}
