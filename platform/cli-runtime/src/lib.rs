//! Parts that the commands of `podgate` share: exit codes, errors on stderr, output on stdout.
//!
//! Every command ends with 0 (done), [`NO`] (the answer is no) or [`UNUSABLE`] (the input cannot
//! be used, which is also the exit code of wrong arguments).

mod networks;
mod socket;
mod span;

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::ValueEnum;
use serde::Deserialize;

pub use networks::Networks;
pub use socket::{Socket, no_answer, refused};
pub use span::Span;

/// Exit code: the command did its work, and the answer is no.
pub const NO: u8 = 1;
/// Exit code: the input cannot be used.
pub const UNUSABLE: u8 = 2;

/// Format of a command's output (`-o`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Plain text
    Text,
    /// JSON
    Json,
}

/// Forwarding between nodes (`--underlay`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Underlay {
    /// In VXLAN tunnels
    #[default]
    Vxlan,
    /// As they are
    Routed,
}

/// Prints an error to stderr and returns the exit code `code`.
pub fn fail(code: u8, message: impl Display) -> ExitCode {
    eprintln!("podgate: {message}");
    ExitCode::from(code)
}

/// Text without control characters, which a terminal would act on.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// A number with what it counts: `1 warning`, `2 warnings`.
pub fn counted<N: Display + PartialEq + From<u8>>(count: N, what: &str) -> String {
    let plural = if count == N::from(1) { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// Writes an answer to stdout. A reader that has closed the pipe is the end, not an error.
pub fn print(text: &str) -> ExitCode {
    match write(text) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => fail(NO, format_args!("write to stdout: {error}")),
    }
}

/// Writes to stdout and flushes it; `false` if the reader has closed the pipe.
///
/// # Errors
/// Fails if stdout cannot be written to for another reason.
pub fn write(text: &str) -> io::Result<bool> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}
