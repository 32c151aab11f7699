//! `kubectl podgate observe`.

use std::process::ExitCode;
use std::sync::Arc;

use cli_runtime::{NO, counted, plain};
use control::api_server::{Connection, Switches};
use local_api::{AnyOf, ObserveFilters};
use observe::verdicts::Event;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use super::output::{self, Format};
use super::{Cluster, Failure, Scope, page, warn, write};
use crate::commands::filters::Filters;

/// Arguments of `kubectl podgate observe`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "New connections and drops are shown, as by podgate observe. Without -A or -n \
those of the context's namespace, at either end.

Examples:
  kubectl podgate observe -A --verdict dropped -f
  kubectl podgate observe -n shop -l app=db --port 5432 -o json

Exit code: 1 if a switch does not answer."
)]
pub(super) struct Args {
    #[command(flatten)]
    cluster: Cluster,

    #[command(flatten)]
    scope: Scope,

    /// Keep running and print new verdicts
    #[arg(short, long, visible_short_alias = 'w', visible_alias = "watch")]
    follow: bool,

    /// Past verdicts to show first, of all switches together [default: 20, with --follow 0]
    #[arg(long, value_name = "N")]
    last: Option<u32>,

    #[command(flatten)]
    filters: Filters,

    /// Output format; json: one verdict a line; wide: with the node
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

/// Past verdicts shown by default.
const LAST: u32 = 20;
/// Lines of all switches that wait to be written.
const WAITING: usize = 1024;

pub(super) async fn run(args: &Args) -> Result<ExitCode, Failure> {
    let connection = args.cluster.connect().await?;
    let filters = filters(args, &connection);
    let pods = args.scope.pods(&connection).await?;
    let switches = args.cluster.switches(&connection, None).await?;
    let text = serde_json::to_string(&filters)?;
    let path =
        format!("{}?filters={}", page("observe"), utf8_percent_encode(&text, NON_ALPHANUMERIC));
    let last = filters.last as usize;
    let (mut lines, tasks) = read(&switches, &path, Semaphore::MAX_PERMITS, |lost| {
        format!("{} not shown: too fast", counted(lost, "verdict"))
    });
    let mut past = Vec::new();
    while let Some(line) = lines.recv().await {
        let Ok(event) = serde_json::from_value::<Event>(line) else { continue };
        let is_meant = |pod: &Option<Arc<str>>| {
            let pods = pods.as_ref();
            pods.is_none_or(|pods| pod.as_ref().is_some_and(|pod| pods.contains(&**pod)))
        };
        if !is_meant(&event.from.pod) && !is_meant(&event.to.pod) {
            continue;
        }
        match args.follow {
            true => print(&event, args.output)?,
            false => past.push(event),
        }
    }
    past.sort_by_key(|event| event.time);
    let begin = past.len().saturating_sub(last);
    for event in &past[begin..] {
        print(event, args.output)?;
    }
    Ok(end(tasks).await)
}

/// Reads the lines of a page of every switch, of so many at a time. What a switch left out is named on stderr, as
/// `lost` says it of a number. A task returns why it could not read.
pub(super) fn read(
    switches: &Switches,
    path: &str,
    at_a_time: usize,
    lost: fn(u64) -> String,
) -> (mpsc::Receiver<Value>, JoinSet<Option<String>>) {
    let (sender, received) = mpsc::channel(WAITING);
    let permits = Arc::new(Semaphore::new(at_a_time));
    let mut tasks = JoinSet::new();
    for switch in switches.all().iter().cloned() {
        let (switches, path, sender) = (switches.clone(), path.to_owned(), sender.clone());
        let permits = Arc::clone(&permits);
        tasks.spawn(async move {
            let _permit = permits.acquire().await;
            let node = &switch.node;
            let read = async {
                let mut lines = switches.lines(&switch, &path).await?;
                while let Some(value) = lines.next().await? {
                    if let Some(count) = value.get("lost").and_then(Value::as_u64) {
                        warn(format_args!("{node}: {}", lost(count)));
                    } else if sender.send(value).await.is_err() {
                        break;
                    }
                }
                Ok(())
            };
            read.await.err().map(|error: control::api_server::Failure| format!("{node}: {error}"))
        });
    }
    (received, tasks)
}

/// The exit code once all tasks have ended; a switch that could not be read is named on stderr.
pub(super) async fn end(mut tasks: JoinSet<Option<String>>) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    while let Some(ended) = tasks.join_next().await {
        if let Ok(Some(error)) = ended {
            warn(error);
            code = ExitCode::from(NO);
        }
    }
    code
}

fn print(event: &Event, output: Format) -> Result<(), Failure> {
    let value = || serde_json::to_value(event);
    let text = match output {
        Format::Text => plain(&event.to_string()) + "\n",
        Format::Wide => plain(&format!("{} {event}", event.node)) + "\n",
        Format::Json => format!("{}\n", value()?),
        Format::Yaml => format!("---\n{}", output::document(&value()?, output)),
    };
    write(&text)
}

fn filters(args: &Args, connection: &Connection) -> ObserveFilters {
    let usual = if args.follow { 0 } else { LAST };
    // Pods with certain labels are chosen here, from as many as there are.
    let many = args.scope.selector.is_some() && !args.follow;
    ObserveFilters {
        namespace: AnyOf(args.scope.namespace(connection).into_iter().collect()),
        all_namespaces: args.scope.all_namespaces,
        last: if many { u32::MAX } else { args.last.unwrap_or(usual) },
        follow: args.follow,
        ..args.filters.wanted(&[])
    }
}
