//! What all commands have in common that ask the running switch.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{NO, UNUSABLE, fail};
use crate::api::{Client, ClientError, DEFAULT_SOCKET, ErrorKind};

/// Where the switch is asked.
#[derive(Debug, Clone, clap::Args)]
pub struct Socket {
    /// Unix socket of the running switch
    #[arg(long, env = "PODGATE_SOCKET", value_name = "PATH", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
}

/// How an answer is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people
    Text,
    /// For scripts
    Json,
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

/// Writes an answer to stdout. A reader that has gone away is the end, not an error.
pub fn print(text: &str) -> ExitCode {
    match write(text) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => fail(NO, format_args!("write to stdout: {error}")),
    }
}

/// Writes to stdout; `false` if nobody reads any more.
///
/// # Errors
/// If it cannot be written for another reason.
pub fn write(text: &str) -> io::Result<bool> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}
