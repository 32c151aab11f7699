//! `podgate status`: shows the state of the running switch.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::Ended;
use super::call::print_whole;
use agent::config::Span;
use agent::run::Status;
use cli_runtime::{NO, Output, Socket, no_answer, refused, write_with_escapes};
use local_api::{ClientError, Request};

/// Arguments of `podgate status`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Problems come first. Exit code: 0 if the switch is ready and healthy, else 1.

Example:
  podgate status -o json | jq '.ports[] | {name, mode}'
  podgate status --wait 2m && echo ready"
)]
pub struct Args {
    #[command(flatten)]
    socket: Socket,

    /// Wait up to TIME for the switch to be ready and healthy
    #[arg(long, value_name = "TIME", conflicts_with = "watch")]
    wait: Option<Span>,

    /// Repeat at this interval
    #[arg(long, short_alias = 'w', value_name = "INTERVAL", num_args = 0..=1)]
    #[arg(default_missing_value = "2s")]
    watch: Option<Span>,

    /// Output format; JSON is one line a sample
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Between two questions while it is waited.
const AGAIN: Duration = Duration::from_millis(200);

/// Sends the request and writes the answer to stdout.
pub(super) fn run(args: &Args) -> Ended {
    let end = Instant::now() + args.wait.as_ref().map_or(Duration::ZERO, |wait| wait.0);
    while args.wait.is_some() && Instant::now() < end && !ask(args).is_ok_and(|it| is_well(&it)) {
        std::thread::sleep(AGAIN);
    }
    let screen = args.output == Output::Text && std::io::stdout().is_terminal();
    loop {
        let status = ask(args)?;
        if args.watch.is_some() && screen {
            // Clears the terminal and goes to its first line.
            let _ = write_with_escapes("\x1b[2J\x1b[H");
        }
        let written = print_whole(&status, args.output)?;
        match &args.watch {
            Some(interval) if written == ExitCode::SUCCESS => std::thread::sleep(interval.0),
            _ if is_well(&status) => return Ok(written),
            _ => return Ok(ExitCode::from(NO)),
        }
    }
}

fn is_well(status: &Status) -> bool {
    status.ready && status.healthy
}

fn ask(args: &Args) -> Result<Status, ExitCode> {
    let answer: Result<_, ClientError> =
        args.socket.connect().and_then(|mut podgate| podgate.call(&Request::Status));
    // A switch that is waited for need not run yet.
    let value = answer.map_err(|error| match args.wait {
        Some(_) => ExitCode::from(NO),
        None => refused(error),
    })?;
    serde_json::from_value(value).map_err(no_answer)
}
