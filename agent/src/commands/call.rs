//! Shared parts of the commands that call the running switch.

use std::fmt::Display;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use cli::{NO, Output, UNUSABLE, fail, write};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use local_api::{Client, ClientError, DEFAULT_SOCKET, ErrorKind};

/// Path of the switch's socket.
#[derive(Debug, Clone, clap::Args)]
pub struct Socket {
    /// Unix socket of the running switch
    #[arg(long, env = "PODGATE_SOCKET", value_name = "PATH", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
}

/// Timeout of a call. The running switch answers at once unless it hangs.
const PATIENCE: Duration = Duration::from_secs(10);

impl Socket {
    /// Where it is.
    pub fn path(&self) -> &std::path::Path {
        &self.socket
    }

    /// Connects to the switch.
    ///
    /// # Errors
    /// If no switch listens there.
    pub fn connect(&self) -> Result<Client, ClientError> {
        Client::connect(&self.socket, PATIENCE)
    }
}

/// Returns the exit code of a failed call: [`UNUSABLE`] if the request is at fault.
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
/// The exit code, if the answer is no `T` or if stdout cannot be written.
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
