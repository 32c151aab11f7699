//! The state of a long run, on one line of the terminal.

use std::io::{IsTerminal, stderr};

/// Overwrites the terminal's line on stderr with `state`; writes nothing where stderr is no terminal.
pub fn show_progress(state: &str) {
    if stderr().is_terminal() {
        eprint!("\r\x1b[K{state} ");
    }
}

/// Ends the line of [`show_progress`].
pub fn end_progress() {
    if stderr().is_terminal() {
        eprintln!();
    }
}
