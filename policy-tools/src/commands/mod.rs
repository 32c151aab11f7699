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
mod list;
mod picture;
pub mod policy;
pub mod promote;
mod prove;
pub mod replay;
mod replay_journal;
mod schema;
mod suggest;
mod test;

use std::process::ExitCode;
use std::time::SystemTime;

use cli_runtime::{Span, UNUSABLE, fail};

/// Result of a command: an exit code, or the faults of unusable input.
type Ended = Result<ExitCode, Vec<String>>;

/// Parses a time: of RFC 3339, or a span such as `10m` before now.
///
/// # Errors
/// Names the flag if the text is neither.
pub fn moment(flag: &str, text: &str) -> Result<SystemTime, String> {
    let ago = |span: Span| SystemTime::now().checked_sub(span.0).unwrap_or(SystemTime::UNIX_EPOCH);
    let found = text.parse().ok().map(ago).or_else(|| observe::time::moment(text));
    found.ok_or_else(|| {
        let text = text.escape_debug();
        format!("{flag}: '{text}' is neither a span such as 10m nor a moment of RFC 3339")
    })
}

/// An annotation of GitHub Actions. Message and properties have escapes of their own, so that no name ends either:
/// <https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands>.
fn annotation(severity: &str, properties: &[(&str, &str)], message: &str) -> String {
    let data = |text: &str| text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A");
    let value = |text: &str| data(text).replace(':', "%3A").replace(',', "%2C");
    let properties: Vec<String> =
        properties.iter().map(|(name, text)| format!("{name}={}", value(text))).collect();
    format!("::{severity} {}::{}", properties.join(","), data(message))
}

/// Prints a command's answer and returns its exit code. A reader that closes the pipe changes no
/// verdict.
fn print(text: &str, code: u8) -> ExitCode {
    match cli_runtime::write(text) {
        Ok(_) => ExitCode::from(code),
        Err(error) => fail(UNUSABLE, format_args!("stdout: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_ends_an_annotation() {
        let properties = [("file", "a,b:c\n::error ::d%.yaml"), ("line", "7")];
        assert_eq!(
            annotation("warning", &properties, "e\r\n::error::50%, f: g"),
            "::warning file=a%2Cb%3Ac%0A%3A%3Aerror %3A%3Ad%25.yaml,line=7::e%0D%0A::error::50%25, f: g"
        );
    }
}
