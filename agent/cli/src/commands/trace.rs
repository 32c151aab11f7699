//! `podgate trace`: shows the nodes that packets pass in the running switch.

use std::process::ExitCode;

use serde_json::Value;

use super::Ended;
use super::call::print_line;
use cli_runtime::{NO, Output, Socket, counted, fail, print, refused};
use local_api::{Request, TraceAdd};
use observe::trace::{Line, MOST};

/// Subcommands of `podgate trace`.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Trace the next packets
    Add(AddArgs),
    /// Show the packets traced so far
    Show(ShowArgs),
    /// End the trace and delete its packets
    Clear(ClearArgs),
}

/// Arguments of `podgate trace add`.
#[derive(Debug, clap::Args)]
#[command(after_help = "A packet is traced if it matches all terms:
  in=PORT, out=PORT      ingress or egress port: NS/POD, host or uplink
  from=, to=, address=   source, destination, either: an address, network or pod
  protocol=              TCP, UDP, SCTP, ICMP or a number
  port=N                 source or destination port
  verdict=               forward, drop or consume
  reason=                an outcome, such as policy-denied (podgate show errors)
Addresses and ports are those of the packet as received. A new trace replaces the previous one.

Example:
  podgate trace add 50 --filter 'to=default/db port=6379 verdict=drop'")]
pub struct AddArgs {
    /// Number of packets to trace
    #[arg(value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST)))]
    count: u32,

    /// Only packets that match these terms, NAME=VALUE each; may be repeated
    #[arg(long, value_name = "TERMS")]
    filter: Vec<String>,

    #[command(flatten)]
    socket: Socket,
}

/// Arguments of `podgate trace show`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  podgate trace show -o json")]
pub struct ShowArgs {
    #[command(flatten)]
    socket: Socket,

    /// Output format; json: one line a packet
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Arguments of `podgate trace clear`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  podgate trace clear")]
pub struct ClearArgs {
    #[command(flatten)]
    socket: Socket,
}

/// Sends the request and writes the answer to stdout.
pub(super) fn run(command: &Command) -> Ended {
    match command {
        Command::Add(args) => {
            let wanted = TraceAdd { count: args.count, filter: args.filter.join(" ") };
            send(&args.socket, &Request::TraceAdd(wanted))
        }
        Command::Clear(args) => send(&args.socket, &Request::TraceClear),
        Command::Show(args) => show(args),
    }
}

fn send(socket: &Socket, request: &Request) -> Ended {
    socket.call::<Value>(request).map(|_| ExitCode::SUCCESS)
}

fn show(args: &ShowArgs) -> Ended {
    let podgate = args.socket.connect().map_err(refused)?;
    for answer in podgate.stream(&Request::TraceShow).map_err(refused)? {
        let value = answer.map_err(refused)?;
        if let (Some(followed), Some(wanted)) =
            (number(&value, "followed"), number(&value, "wanted"))
        {
            return Ok(match (args.output, wanted) {
                (Output::Json, _) => ExitCode::SUCCESS,
                (_, 0) => print("no packets are followed; begin with: podgate trace add N\n"),
                _ => print(&format!("{followed} of {} followed\n", counted(wanted, "packet"))),
            });
        }
        print_line::<Line>(value, args.output)?;
    }
    Err(fail(NO, "podgate's answer ended early"))
}

fn number(value: &Value, name: &str) -> Option<u64> {
    value.get(name).and_then(Value::as_u64)
}
