//! `podgate observe`: streams the verdicts of the running switch.

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use acl::Origin;
use clap::ValueEnum;
use serde_json::Value;

use super::Ended;
use super::call::{print_line, write_line, written};
use super::filters::Filters;
use agent::config::Span;
use cli_runtime::{
    NO, Output, Socket, UNUSABLE, counted, fail, no_answer, note, plain, refused,
    write_with_escapes,
};
use local_api::{Client, ClientError, ObserveFilters, Request, Verdict};
use observe::time::utc;
use observe::verdicts::Event;
use policy_tools::commands::moment;

/// Shortest and longest wait before a connection to the next switch.
pub(super) const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Past verdicts shown by default.
const LAST: u32 = 20;

/// Arguments of `podgate observe`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A filter that is repeated matches by one of its values; filters of several kinds must all \
match.

New connections and drops are shown; packets of connections that were \
allowed before are not.

When the switch restarts, --follow waits for it, says so, and continues.

Examples:
  podgate observe --follow --verdict drop --to-pod default/db
  podgate observe --since 10m --namespace shop --policy shop/db -o json
  podgate observe --follow --verdict drop --not --to-pod shop/db --port 8000-8080
  podgate observe --follow --staged
  podgate observe --to-label app=db --port 5432 --port 5433 -o dict

Exit code: 0; 1 if the switch ends while its verdicts are followed; 2 if a filter can match nothing."
)]
pub struct Args {
    /// Keep running and print new verdicts
    #[arg(short, long)]
    follow: bool,

    /// Number of past verdicts to print first [default: 20; with --follow 0]
    #[arg(long, value_name = "N")]
    last: Option<u32>,

    /// Print the N oldest past verdicts instead of the newest
    #[arg(long, value_name = "N", conflicts_with = "last")]
    first: Option<u32>,

    /// Only verdicts since this time: a duration such as 10m, or a time such as 2026-11-21T02:25:35Z
    #[arg(long, value_name = "TIME")]
    since: Option<String>,

    /// Only verdicts before this time, in the form of --since
    #[arg(long, value_name = "TIME")]
    until: Option<String>,

    /// Only connections that staged policies would deny or allow
    #[arg(long)]
    staged: bool,

    /// Only connections of pods in this namespace; also the namespace of a POD without one
    #[arg(short, long, value_name = "NS")]
    namespace: Vec<String>,

    /// A POD without a namespace matches in every namespace, not in default
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,

    #[command(flatten)]
    filters: Filters,

    /// Time that --follow waits for a restarted switch
    #[arg(long, value_name = "TIME", default_value = "30s")]
    reconnect: Span,

    /// When to use colors
    #[arg(long, value_enum, default_value_t = Colour::Auto)]
    color: Colour,

    #[command(flatten)]
    socket: Socket,

    /// Output format
    #[arg(short, long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

/// The output format of verdicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A line a verdict
    #[value(alias = "compact")]
    Text,
    /// A field a line
    Dict,
    /// JSON, a line a verdict
    Json,
    /// Hubble's flows in JSON, a line each
    Jsonpb,
}

/// When output has colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Colour {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// Writes verdicts to stdout until the switch, the reader or the user ends it.
pub(super) fn run(args: &Args) -> Ended {
    let mut filters = filters(args).map_err(|problem| fail(UNUSABLE, problem))?;
    let colour = match args.color {
        Colour::Always => true,
        Colour::Never => false,
        Colour::Auto => {
            let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
            std::io::stdout().is_terminal() && !refused
        }
    };
    let mut client = args.socket.connect().map_err(refused)?;
    let mut pause = PAUSE;
    loop {
        let begin = Instant::now();
        let ended = stream(args, client, &filters, colour)?;
        pause = next_pause(pause, begin.elapsed());
        if !args.follow {
            return Ok(ended.map_or(ExitCode::SUCCESS, refused));
        }
        let since = SystemTime::now();
        client = reconnect(&args.socket, args.reconnect.0, pause)?;
        let length = since.elapsed().unwrap_or_default();
        note(format_args!(
            "connected again after {:.1} s; verdicts of the switch before may be missing",
            length.as_secs_f32()
        ));
        // Verdicts of the new switch so far are new to this stream.
        (filters.last, filters.first) = (u32::MAX, None);
        let since = Some(utc(since));
        filters.since = filters.since.filter(|begin| Some(begin) > since.as_ref()).or(since);
    }
}

/// The pause after a stream that has lasted so long. A switch that is ending still accepts connections, and closes
/// them: pauses grow then.
fn next_pause(pause: Duration, lasted: Duration) -> Duration {
    if lasted < LONGEST_PAUSE { LONGEST_PAUSE.min(pause * 2) } else { PAUSE }
}

/// Writes the verdicts of one connection; returns why it ended, if not in order.
fn stream(
    args: &Args,
    client: Client,
    filters: &ObserveFilters,
    colour: bool,
) -> Result<Option<ClientError>, ExitCode> {
    let request = Request::Observe(Box::new(filters.clone()));
    let events = match client.stream(&request) {
        Ok(events) => events,
        Err(error) => return Ok(Some(error)),
    };
    for event in events {
        let value = match event {
            Ok(value) => value,
            Err(error @ ClientError::Refused(_)) => return Err(refused(error)),
            Err(error) => return Ok(Some(error)),
        };
        if let Some(lost) = value.get("lost").and_then(Value::as_u64) {
            note(format_args!("{} not shown: too fast", counted(lost, "verdict")));
            continue;
        }
        if let Some(notice) = value.get("notice").and_then(Value::as_str) {
            note(notice);
            continue;
        }
        match args.output {
            Format::Text if colour => print_coloured(value)?,
            Format::Text => write_line(plain(&parsed(value)?.to_string()))?,
            Format::Json => print_line::<Event>(value, Output::Json)?,
            Format::Dict => write_line(in_fields(&parsed(value)?))?,
            Format::Jsonpb => write_line(hubble::json::response(&parsed(value)?).to_string())?,
        }
    }
    Ok(None)
}

fn parsed(value: Value) -> Result<Event, ExitCode> {
    serde_json::from_value(value).map_err(no_answer)
}

/// A verdict with a field a line, as `hubble observe -o dict` has them.
fn in_fields(event: &Event) -> String {
    let packet = event.in_words();
    let mut fields = vec![
        ("TIMESTAMP", utc(event.time)),
        ("NODE", event.node.to_string()),
        ("SOURCE", event.from.to_string()),
        ("DESTINATION", event.to.to_string()),
        ("TYPE", event.reason.to_string()),
        ("VERDICT", event.verdict.shown().to_owned()),
        ("SUMMARY", packet),
    ];
    if !event.by.is_empty() {
        fields.push(("POLICY", Origin::list(&event.by)));
    }
    if let Some(staged) = &event.staged {
        fields.push(("STAGED", staged.to_string()));
    }
    let lines = fields.into_iter().map(|(name, value)| format!("{name:>11}: {}\n", plain(&value)));
    lines.collect::<String>() + "------------"
}

/// Writes a verdict whose reason stands out.
fn print_coloured(value: Value) -> Result<(), ExitCode> {
    let event = parsed(value)?;
    let is_dropped = event.verdict == Verdict::Dropped;
    let colour = if is_dropped { "\x1b[31m" } else { "\x1b[32m" };
    let verdict = event.verdict.shown();
    let line = plain(&event.to_string());
    let coloured = line.replacen(verdict, &format!("{colour}{verdict}\x1b[0m"), 1);
    written(write_with_escapes(&(coloured + "\n")))
}

/// Connects to the switch that comes after one that has ended, `pause` from now at the earliest.
pub(super) fn reconnect(
    socket: &Socket,
    patience: Duration,
    pause: Duration,
) -> Result<Client, ExitCode> {
    note(format_args!("the switch has ended; waiting for another one"));
    let begin = Instant::now();
    std::thread::sleep(pause.min(patience));
    // Once at least, however long a busy machine has slept.
    loop {
        if let Ok(client) = socket.connect() {
            return Ok(client);
        }
        if begin.elapsed() >= patience {
            return Err(fail(NO, "the switch has ended, and no other one has begun"));
        }
        std::thread::sleep(PAUSE);
    }
}

fn filters(args: &Args) -> Result<ObserveFilters, String> {
    let usual = if args.follow || args.first.is_some() { 0 } else { LAST };
    // A span of time means all of it.
    let whole = (args.since.is_some() || args.until.is_some()) && args.first.is_none();
    Ok(ObserveFilters {
        all_namespaces: args.all_namespaces,
        since: args.since.as_deref().map(|text| moment("--since", text).map(utc)).transpose()?,
        until: args.until.as_deref().map(|text| moment("--until", text).map(utc)).transpose()?,
        staged: args.staged,
        first: args.first,
        last: args.last.unwrap_or(if whole { u32::MAX } else { usual }),
        follow: args.follow,
        ..args.filters.wanted(&args.namespace)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::Args as _;

    use super::*;

    #[test]
    fn each_filter_is_a_term_of_the_export() {
        let filters = Filters::augment_args(clap::Command::new("observe"));
        let flags = filters.get_arguments().filter_map(|it| it.get_long());
        let flags: BTreeSet<_> = flags.chain(["namespace"]).collect();
        assert_eq!(BTreeSet::from(observe::export::TERMS), flags);
    }

    #[test]
    fn a_stream_that_ends_at_once_again_and_again_is_not_repeated_all_the_time() {
        let mut pause = PAUSE;
        let mut next = |lasted_ms| {
            pause = next_pause(pause, Duration::from_millis(lasted_ms));
            pause.as_millis()
        };
        assert_eq!([0, 0, 0, 0, 0, 0].map(&mut next), [200, 400, 800, 1600, 2000, 2000]);
        assert_eq!([60_000, 1].map(&mut next), [100, 200]);
    }

    #[test]
    fn a_field_a_line() {
        let text = r#"{"time":"2026-11-21T02:25:35.123Z","node":"node-a","verdict":"drop",
            "reason":"policy-denied","by":["default-deny of NetworkPolicy default/db"],
            "from":{"pod":"default/web","ip":"10.1.0.3","port":41000},
            "to":{"pod":"default/db","ip":"10.1.0.2","port":6379},"protocol":"TCP",
            "tcp_flags":"SYN"}"#;
        let fields = in_fields(&serde_json::from_str(text).unwrap());
        let expected = [
            "  TIMESTAMP: 2026-11-21T02:25:35.123Z",
            "       NODE: node-a",
            "     SOURCE: default/web:41000",
            "DESTINATION: default/db:6379",
            "       TYPE: policy-denied",
            "    VERDICT: DROPPED",
            "    SUMMARY: TCP Flags: SYN",
            "     POLICY: default-deny of NetworkPolicy default/db",
            "------------",
        ];
        assert_eq!(fields.lines().collect::<Vec<_>>(), expected);
    }
}
