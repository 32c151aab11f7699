//! `podgate observe`: streams the verdicts of the running switch.

use std::process::ExitCode;

use clap::ValueEnum;
use serde_json::Value;

use super::call::{Socket, print_line, refused};
use cli::Output;
use local_api::{ObserveFilters, Request, Verdict};
use observe::verdicts::Event;

/// Past verdicts shown by default.
const LAST: u32 = 20;

/// Arguments of `podgate observe`.
#[derive(Debug, clap::Args)]
#[command(after_help = "New connections and drops are shown; packets of connections that were \
allowed before are not.

Example:
  podgate observe --follow --verdict dropped --to-pod default/db")]
pub struct Args {
    /// Keep running, and show new verdicts
    #[arg(short, long)]
    follow: bool,

    /// Past verdicts to show first [default: 20, with --follow 0]
    #[arg(long, value_name = "N")]
    last: Option<u32>,

    /// Only this verdict
    #[arg(long, value_enum)]
    verdict: Option<VerdictArg>,

    /// Only packets that this pod sent
    #[arg(long, value_name = "[NS/]POD")]
    from_pod: Option<String>,

    /// Only packets for this pod
    #[arg(long, value_name = "[NS/]POD")]
    to_pod: Option<String>,

    /// Only this protocol: TCP, UDP, SCTP, ICMP, ICMPv6 or a number
    #[arg(long)]
    protocol: Option<String>,

    /// Only packets with this port at either end
    #[arg(long, value_name = "N")]
    port: Option<u16>,

    #[command(flatten)]
    socket: Socket,

    /// How verdicts are written; json: one line each
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// A verdict on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum VerdictArg {
    /// It went on
    Forwarded,
    /// It ended in the switch
    Dropped,
}

/// Writes verdicts to stdout until the switch, the reader or the user ends it.
pub fn run(args: &Args) -> ExitCode {
    let request = Request::Observe(filters(args));
    let events = match args.socket.connect().and_then(|podgate| podgate.stream(&request)) {
        Ok(events) => events,
        Err(error) => return refused(&error),
    };
    for event in events {
        let value = match event {
            Ok(value) => value,
            Err(error) => return refused(&error),
        };
        if let Some(lost) = value.get("lost").and_then(Value::as_u64) {
            eprintln!("podgate: {lost} verdicts came too fast and are not shown");
            continue;
        }
        if let Err(code) = print_line::<Event>(value, args.output) {
            return code;
        }
    }
    ExitCode::SUCCESS
}

fn filters(args: &Args) -> ObserveFilters {
    ObserveFilters {
        verdict: args.verdict.map(|verdict| match verdict {
            VerdictArg::Forwarded => Verdict::Forwarded,
            VerdictArg::Dropped => Verdict::Dropped,
        }),
        from_pod: args.from_pod.clone(),
        to_pod: args.to_pod.clone(),
        protocol: args.protocol.clone(),
        port: args.port,
        last: args.last.unwrap_or(if args.follow { 0 } else { LAST }),
        follow: args.follow,
    }
}
