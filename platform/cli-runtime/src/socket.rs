//! The option `--socket`, and calls of the switch behind it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use local_api::{Client, ClientError, DEFAULT_SOCKET, ErrorKind, Request};
use serde::de::DeserializeOwned;

use crate::{NO, UNUSABLE, fail, plain};

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
    /// Returns the socket's path.
    pub fn path(&self) -> &Path {
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
    /// Fails if no switch listens there.
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
    fail(code, plain(&error.to_string()))
}

/// Reports an unreadable answer and returns the exit code.
pub fn no_answer(error: serde_json::Error) -> ExitCode {
    fail(NO, format_args!("podgate's answer: {}", plain(&error.to_string())))
}
