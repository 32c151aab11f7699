//! `podgate rotate-key`: gives this node another key of encryption.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::Ended;
use agent::config::Span;
use agent::run::Status;
use cli_runtime::{NO, Socket, fail, refused};
use local_api::{ClientError, ErrorKind, Request};

/// Arguments of `podgate rotate-key`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The next key is published, other nodes send by it as soon as they have a session, and the key before \
is forgotten. No packet is lost with nodes that follow within a minute. One node at a time: the command waits while \
another one rotates its key.

Exit code: 0 if the key was rotated, or with --wait 0s if that has begun; else 1.

Example:
  podgate rotate-key
  podgate rotate-key --wait 0s"
)]
pub struct Args {
    /// Wait up to TIME for the end of it
    #[arg(long, value_name = "TIME", default_value = "5m")]
    wait: Span,

    #[command(flatten)]
    socket: Socket,
}

/// Interval of looking at the status.
const AGAIN: Duration = Duration::from_millis(500);

/// Begins it, and waits for its end.
pub(super) fn run(args: &Args) -> Ended {
    let status = || args.socket.call::<Status>(&Request::Status);
    let before = status()?.encryption.public_key;
    let end = Instant::now() + args.wait.0;
    loop {
        let begun = args.socket.connect().and_then(|mut podgate| podgate.call(&Request::RotateKey));
        match begun {
            Ok(_) => break,
            // Another node's key is being rotated.
            Err(error) if Instant::now() < end && is_not_ready(&error) => std::thread::sleep(AGAIN),
            Err(error) => return Err(refused(error)),
        }
    }
    while !args.wait.0.is_zero() {
        std::thread::sleep(AGAIN);
        let encryption = status()?.encryption;
        if encryption.key_rotation.is_none() && encryption.public_key != before {
            break;
        }
        if Instant::now() >= end {
            let step = encryption.key_rotation.unwrap_or_else(|| "it was given up".to_owned());
            return Err(fail(NO, format_args!("the key is not rotated yet: {step}")));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn is_not_ready(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(refusal) if refusal.kind == ErrorKind::NotReady)
}
