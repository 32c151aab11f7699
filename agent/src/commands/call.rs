//! What the commands share that call the running switch.

use std::fmt::Display;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use cli::{NO, Output, UNUSABLE, fail, write};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use local_api::{Client, ClientError, DEFAULT_SOCKET, ErrorKind};

/// Where the switch is asked.
#[derive(Debug, Clone, clap::Args)]
pub struct Socket {
    /// Unix socket of the running switch
    #[arg(long, env = "PODGATE_SOCKET", value_name = "PATH", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
}

/// The running switch answers at once; this is for one that hangs.
const PATIENCE: Duration = Duration::from_secs(10);

impl Socket {
    /// Connects to the switch.
    ///
    /// # Errors
    /// If nobody listens.
    pub fn connect(&self) -> Result<Client, ClientError> {
        Client::connect(&self.socket, PATIENCE)
    }
}

/// Ends a command whose call failed: with [`UNUSABLE`] if the fault is in what was asked.
pub fn refused(error: &ClientError) -> ExitCode {
    let code = match error {
        ClientError::Refused(refusal)
            if matches!(refusal.kind, ErrorKind::BadRequest | ErrorKind::NotFound) =>
        {
            UNUSABLE
        }
        _ => NO,
    };
    fail(code, error)
}

/// Writes one of several answers, as text or as a line of JSON.
///
/// # Errors
/// How the command ends if it is no `T`, if nobody reads any more, or if it cannot be written.
pub fn print_line<T>(answer: Value, output: Output) -> Result<(), ExitCode>
where
    T: DeserializeOwned + Serialize + Display,
{
    let line = match serde_json::from_value::<T>(answer) {
        Ok(line) if output == Output::Text => Ok(line.to_string()),
        Ok(line) => serde_json::to_string(&line),
        Err(error) => Err(error),
    };
    match line.map(|line| write(&(line + "\n"))) {
        Ok(Ok(true)) => Ok(()),
        Ok(Ok(false)) => Err(ExitCode::SUCCESS),
        Ok(Err(error)) => Err(fail(NO, format_args!("write to stdout: {error}"))),
        Err(error) => Err(fail(NO, format_args!("podgate's answer: {error}"))),
    }
}
