//! `podgate status`: shows the state of the running switch.

use std::process::ExitCode;

use super::call::{Socket, refused};
use crate::run::Status;
use cli::{NO, fail};
use cli::{Output, print};
use local_api::Request;

/// Arguments of `podgate status`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Ends with 0 if the switch is ready and alive, else with 1.

Example:
  podgate status -o json | jq '.ports[] | {name, mode}'")]
pub struct Args {
    #[command(flatten)]
    socket: Socket,

    /// How the answer is written
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Sends the request and writes the answer to stdout.
pub fn run(args: &Args) -> ExitCode {
    let value = match args.socket.connect().and_then(|mut podgate| podgate.call(&Request::Status)) {
        Ok(value) => value,
        Err(error) => return refused(&error),
    };
    let status: Status = match serde_json::from_value(value) {
        Ok(status) => status,
        Err(error) => return fail(NO, format_args!("podgate's answer: {error}")),
    };
    let written = match args.output {
        Output::Text => print(&status.to_string()),
        Output::Json => match serde_json::to_string(&status) {
            Ok(line) => print(&(line + "\n")),
            Err(error) => fail(NO, error),
        },
    };
    let well = status.ready && status.unhealthy_reasons.is_empty();
    if well { written } else { ExitCode::from(NO) }
}
