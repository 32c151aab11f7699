//! `podgate status`: shows the state of the running switch.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::call::{Socket, refused};
use crate::config::Span;
use crate::run::Status;
use cli::{NO, Output, fail, print};
use local_api::{ClientError, Request};

/// Arguments of `podgate status`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "What needs attention comes first. Ends with 0 if the switch is ready and alive, \
else with 1.

Example:
  podgate status -o json | jq '.ports[] | {name, mode}'
  podgate status --wait 2m && echo ready"
)]
pub struct Args {
    #[command(flatten)]
    socket: Socket,

    /// Wait so long at most until the switch is ready and alive
    #[arg(long, value_name = "TIME", conflicts_with = "watch")]
    wait: Option<Span>,

    /// Ask over and over
    #[arg(long, short, value_name = "INTERVAL", num_args = 0..=1, default_missing_value = "2s")]
    watch: Option<Span>,

    /// How the answer is written; JSON is one line each time
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Between two questions while it is waited.
const AGAIN: Duration = Duration::from_millis(200);

/// Sends the request and writes the answer to stdout.
pub fn run(args: &Args) -> ExitCode {
    let end = Instant::now() + args.wait.as_ref().map_or(Duration::ZERO, |wait| wait.0);
    while args.wait.is_some() && Instant::now() < end && !ask(args).is_ok_and(|it| is_well(&it)) {
        std::thread::sleep(AGAIN);
    }
    let screen = args.output == Output::Text && std::io::stdout().is_terminal();
    loop {
        let status = match ask(args) {
            Ok(status) => status,
            Err(code) => return code,
        };
        if args.watch.is_some() && screen {
            // Clears the terminal and goes to its first line.
            print("\x1b[2J\x1b[H");
        }
        let written = match args.output {
            Output::Text => print(&status.to_string()),
            Output::Json => match serde_json::to_string(&status) {
                Ok(line) => print(&(line + "\n")),
                Err(error) => fail(NO, error),
            },
        };
        match &args.watch {
            Some(interval) if written == ExitCode::SUCCESS => std::thread::sleep(interval.0),
            _ if is_well(&status) => return written,
            _ => return ExitCode::from(NO),
        }
    }
}

fn is_well(status: &Status) -> bool {
    status.ready && status.unhealthy_reasons.is_empty()
}

fn ask(args: &Args) -> Result<Status, ExitCode> {
    let answer: Result<_, ClientError> =
        args.socket.connect().and_then(|mut podgate| podgate.call(&Request::Status));
    // A switch that is waited for need not run yet.
    let value = answer.map_err(|error| match args.wait {
        Some(_) => ExitCode::from(NO),
        None => refused(&error),
    })?;
    serde_json::from_value(value)
        .map_err(|error| fail(NO, format_args!("podgate's answer: {error}")))
}
