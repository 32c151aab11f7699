//! Parts that the commands of `podgate` share: exit codes, errors on stderr, output on stdout.
//!
//! Every command ends with 0 (done), [`NO`] (the answer is no) or [`UNUSABLE`] (the input cannot
//! be used, which is also the exit code of wrong arguments).

mod networks;
mod socket;
mod span;
mod terminal;

use std::fmt::Display;
use std::process::ExitCode;

use clap::ValueEnum;
use serde::Deserialize;

pub use networks::Networks;
pub use socket::{Socket, no_answer, refused};
pub use span::Span;
pub use terminal::{Printer, note, plain, plain_lines, write, write_with_escapes};

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
    terminal::note_lines(message);
    ExitCode::from(code)
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
