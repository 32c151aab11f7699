//! Shared parts of the commands that call the running switch.

use std::fmt::Display;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use cli_runtime::{NO, Output, UNUSABLE, fail, print, write};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use local_api::{Client, ClientError, DEFAULT_SOCKET, ErrorKind, Request};

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

    /// Sends a request and reads its answer.
    ///
    /// # Errors
    /// The exit code, after the error is printed.
    pub fn call<T: DeserializeOwned>(&self, request: &Request) -> Result<T, ExitCode> {
        let answer = self.connect().and_then(|mut podgate| podgate.call(request));
        serde_json::from_value(answer.map_err(refused)?).map_err(no_answer)
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
pub fn refused(error: ClientError) -> ExitCode {
    let code = match &error {
        ClientError::Refused(refusal)
            if matches!(refusal.kind, ErrorKind::BadRequest | ErrorKind::NotFound) =>
        {
            UNUSABLE
        }
        _ => NO,
    };
    fail(code, error)
}

/// Writes the only answer, as text or as a line of JSON.
///
/// # Errors
/// The exit code, if it has no form in JSON.
pub fn print_whole<T: Serialize + Display>(
    answer: &T,
    output: Output,
) -> Result<ExitCode, ExitCode> {
    Ok(print(&match output {
        Output::Text => answer.to_string(),
        Output::Json => serde_json::to_string(answer).map_err(|error| fail(NO, error))? + "\n",
    }))
}

/// Returns the exit code of an answer that is none.
pub fn no_answer(error: serde_json::Error) -> ExitCode {
    fail(NO, format_args!("podgate's answer: {error}"))
}

/// Writes one of several lines.
///
/// # Errors
/// The exit code, if stdout cannot be written or its reader has left.
pub fn write_line(line: String) -> Result<(), ExitCode> {
    match write(&(line + "\n")) {
        Ok(true) => Ok(()),
        Ok(false) => Err(ExitCode::SUCCESS),
        Err(error) => Err(fail(NO, format_args!("write to stdout: {error}"))),
    }
}

/// Writes one of several answers, as text or as a line of JSON.
///
/// # Errors
/// The exit code, if the answer is no `T` or if stdout cannot be written.
pub fn print_line<T>(answer: Value, output: Output) -> Result<(), ExitCode>
where
    T: DeserializeOwned + Serialize + Display,
{
    let line: T = serde_json::from_value(answer).map_err(no_answer)?;
    write_line(match output {
        Output::Text => line.to_string(),
        Output::Json => serde_json::to_string(&line).map_err(no_answer)?,
    })
}
