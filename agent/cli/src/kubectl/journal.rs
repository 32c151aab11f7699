//! `kubectl podgate journal`.

use std::process::ExitCode;

use cli_runtime::{NO, Output, counted, plain};
use control::api_server::{SwitchPod, Switches};
use observe::journal::Row;
use observe::time::{utc, utc_seconds};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use policy_tools::commands::moment;
use serde_json::Value;
use tokio::task::JoinSet;

use super::{Cluster, Failure, page, warn, write};

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
    let mut waiting = switches.all().iter().cloned();
    let mut tasks = JoinSet::new();
    let begin = |tasks: &mut JoinSet<_>, switch: SwitchPod| {
        tasks.spawn(read(switches.clone(), switch, path.clone(), args.output));
    };
    waiting.by_ref().take(AT_A_TIME).for_each(|switch| begin(&mut tasks, switch));
    let mut code = ExitCode::SUCCESS;
    while let Some(ended) = tasks.join_next().await {
        match ended {
            Ok(Err(Failure::Failed(error))) => {
                warn(error);
                code = ExitCode::from(NO);
            }
            Ok(Err(failure)) => return Err(failure),
            Ok(Ok(())) | Err(_) => {}
        }
        waiting.next().into_iter().for_each(|switch| begin(&mut tasks, switch));
    }
    Ok(code)
}

/// Prints a switch's rows as they come. All tasks share a thread: a line is printed as a whole.
async fn read(
    switches: Switches,
    switch: SwitchPod,
    path: String,
    output: Output,
) -> Result<(), Failure> {
    let node = &switch.node;
    let failed = |error: control::api_server::Failure| format!("{node}: {error}");
    let mut lines = switches.lines(&switch, &path).await.map_err(failed)?;
    while let Some(value) = lines.next().await.map_err(failed)? {
        match value.get("lost").and_then(Value::as_u64) {
            Some(lost) => {
                let lost = counted(lost, "connection");
                warn(format_args!("{node}: {lost} in no row of the journal"))
            }
            None => print(value, output)?,
        }
    }
    Ok(())
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
