//! `podgate top`: shows packet rates of the running switch.
//!
//! Rates are the differences of two answers to `status`.

mod keys;
pub(crate) mod rates;
mod screen;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::Ended;
use super::observe::{PAUSE, reconnect};
use agent::config::Span;
use cli_runtime::{NO, Output, Socket, UNUSABLE, fail, note, print, refused, write_with_escapes};
use keys::Keys;
use local_api::ClientError;
use rates::{Rates, rates, sample};
use screen::{Shown, text};

/// Arguments of `podgate top`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The busiest ports come first. On a terminal the screen is redrawn with each
sample, and these keys work:
  q  quit
  s  sort by the next column: packets, lost, sessions, name
  /  show only ports whose name contains the text typed before Enter
A restarted switch is measured in its turn.

Example:
  podgate top --interval 2s
  podgate top --count 1 -o json | jq .ports[0]"
)]
pub struct Args {
    #[command(flatten)]
    socket: Socket,

    /// Time between samples
    #[arg(long, default_value = "1s", value_name = "TIME")]
    interval: Span,

    /// Number of samples [default: until interrupted]
    #[arg(long, value_name = "N")]
    count: Option<u64>,

    /// Maximum number of ports
    #[arg(long, default_value_t = 20, value_name = "N")]
    ports: usize,

    /// Time to wait for a restarted switch
    #[arg(long, value_name = "TIME", default_value = "30s")]
    reconnect: Span,

    /// Output format; JSON is one line a sample
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Measures and writes the given number of times.
pub(super) fn run(args: &Args) -> Ended {
    if args.interval.0 < Duration::from_millis(10) {
        return Err(fail(UNUSABLE, format_args!("--interval {}: is too short", args.interval)));
    }
    let mut client = args.socket.connect().map_err(refused)?;
    let mut before = sample(&mut client).map_err(refused)?;
    let screen = args.output == Output::Text && std::io::stdout().is_terminal();
    let keys = if screen { Keys::new() } else { None };
    let mut shown = Shown::default();
    let mut left = args.count.unwrap_or(u64::MAX);
    let mut last: Option<Rates> = None;
    while left > 0 {
        if wait(args, keys.as_ref(), &mut shown, last.as_ref()) {
            return Ok(ExitCode::SUCCESS);
        }
        let now = match sample(&mut client) {
            Ok(sample) => sample,
            Err(error @ ClientError::Refused(_)) => return Err(refused(error)),
            Err(_) => {
                client = reconnect(&args.socket, args.reconnect.0, PAUSE)?;
                note(format_args!("connected again"));
                // It counts from 0: this interval gives no rates.
                before = sample(&mut client).map_err(refused)?;
                continue;
            }
        };
        left -= 1;
        let mut rates = rates(&before, &now);
        before = now;
        let text = match args.output {
            Output::Text if screen => {
                let _ = write_with_escapes(&shown.screen(&rates, args.ports));
                String::new()
            }
            Output::Text => {
                rates.ports.truncate(args.ports);
                text(&rates)
            }
            Output::Json => {
                rates.ports.truncate(args.ports);
                serde_json::to_string(&rates).map_err(|error| fail(NO, error))? + "\n"
            }
        };
        last = Some(rates);
        let written = print(&text);
        if written != ExitCode::SUCCESS {
            return Ok(written);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits for the next measurement and follows keys; `true` if one ends the command.
fn wait(args: &Args, keys: Option<&Keys>, shown: &mut Shown, last: Option<&Rates>) -> bool {
    let next = Instant::now() + args.interval.0;
    while let Some(time) = next.checked_duration_since(Instant::now()) {
        let Some(keys) = keys else {
            std::thread::sleep(time);
            return false;
        };
        let Some(key) = keys.next(time) else { return false };
        if shown.press(key) {
            return true;
        }
        if let Some(rates) = last {
            let _ = write_with_escapes(&shown.screen(rates, args.ports));
        }
    }
    false
}
