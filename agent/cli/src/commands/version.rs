//! `podgate version`: of this program, and of the running switch.

use std::process::ExitCode;

use agent::run::Status;
use cli_runtime::{Output, Socket, print};
use local_api::Request;
use serde_json::json;

use super::Ended;

/// Arguments of `podgate version`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit code: 0, with or without a running switch.

Example:
  podgate version
  podgate version -o json")]
pub struct Args {
    #[command(flatten)]
    socket: Socket,

    /// Output format
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Prints the versions.
pub(super) fn run(args: &Args) -> Ended {
    let own = env!("CARGO_PKG_VERSION");
    let switch: Option<Status> = args
        .socket
        .connect()
        .and_then(|mut client| client.call(&Request::Status))
        .ok()
        .and_then(|status| serde_json::from_value(status).ok());
    let switch = switch.map(|status| status.version);
    let text = match args.output {
        Output::Json => format!("{}\n", json!({"podgate": own, "switch": switch})),
        Output::Text => {
            let switch = switch.as_deref().unwrap_or("not running");
            format!("podgate: {own}\nswitch:  {switch}\n")
        }
    };
    print(&text);
    Ok(ExitCode::SUCCESS)
}
