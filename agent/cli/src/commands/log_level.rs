//! `podgate log-level`: what the running switch logs.

use std::process::ExitCode;

use agent::config::LogLevel;
use clap::ValueEnum as _;
use cli_runtime::Socket;
use local_api::Request;
use serde_json::Value;

use super::Ended;

/// Arguments of `podgate log-level`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The level holds until the switch ends; --log-level of podgate run sets it for each start.

Example:
  podgate log-level debug
  podgate log-level info"
)]
pub struct Args {
    /// Level of the running switch's log
    #[arg(value_enum)]
    level: LogLevel,

    #[command(flatten)]
    socket: Socket,
}

/// Sets the level.
pub(super) fn run(args: &Args) -> Ended {
    let name = args.level.to_possible_value().map(|it| it.get_name().to_owned());
    let level = local_api::LogLevel { level: name.unwrap_or_default() };
    args.socket.call::<Value>(&Request::LogLevel(level))?;
    Ok(ExitCode::SUCCESS)
}
