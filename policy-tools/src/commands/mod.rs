//! The commands that answer from files, without a running switch.
//!
//! - [`policy`]: `podgate policy …`, questions about policies,
//! - [`replay`]: `podgate replay`, a capture through the switch of one node.

mod cases;
mod diff;
mod explain;
mod input;
mod keep;
mod lint;
mod picture;
pub mod policy;
pub mod promote;
mod prove;
pub mod replay;
mod replay_journal;
mod suggest;
mod test;

use std::process::ExitCode;
use std::time::SystemTime;

use cli_runtime::{Span, UNUSABLE, fail};

/// End of a command: an exit code, or why the input cannot be used.
type Ended = Result<ExitCode, Vec<String>>;

/// A moment: of RFC 3339, or so long ago as a span such as `10m` says.
///
/// # Errors
/// If the text is neither, naming the flag.
pub fn moment(flag: &str, text: &str) -> Result<SystemTime, String> {
    let ago = |span: Span| SystemTime::now().checked_sub(span.0).unwrap_or(SystemTime::UNIX_EPOCH);
    let found = text.parse().ok().map(ago).or_else(|| observe::time::moment(text));
    found.ok_or_else(|| {
        let text = text.escape_debug();
        format!("{flag}: '{text}' is neither a span such as 10m nor a moment of RFC 3339")
    })
}

/// Prints a command's answer and returns its exit code. A reader that closes the pipe changes no
/// verdict.
fn print(text: &str, code: u8) -> ExitCode {
    match cli_runtime::write(text) {
        Ok(_) => ExitCode::from(code),
        Err(error) => fail(UNUSABLE, format_args!("stdout: {error}")),
    }
}
