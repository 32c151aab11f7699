//! The one way of text to a terminal.
//!
//! Names of processes and domains, objects of an API server, paths, what a switch on another node
//! answers: all of it may hold characters that a terminal acts on, or that forge a line.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, BufWriter, StdoutLock, Write};

/// The longest line that [`Printer`] holds before it writes it, in bytes.
const MAX_LINE_LEN: usize = 1 << 20;

/// Returns text as part of a line: what a terminal acts on, or what changes the order of what it
/// shows, is U+FFFD.
pub fn plain(text: &str) -> String {
    text.chars().map(|it| if is_acted_on(it) { char::REPLACEMENT_CHARACTER } else { it }).collect()
}

/// Returns text of several lines in the same way; ends of lines and tabs stay.
pub fn plain_lines(text: &str) -> Cow<'_, str> {
    let is_replaced = |it: char| is_acted_on(it) && !matches!(it, '\n' | '\t');
    if !text.contains(is_replaced) {
        return text.into();
    }
    let replaced = |it| if is_replaced(it) { char::REPLACEMENT_CHARACTER } else { it };
    text.chars().map(replaced).collect::<String>().into()
}

/// Control characters, separators of lines, and marks of bidirectional text (UAX #9).
fn is_acted_on(it: char) -> bool {
    it.is_control()
        || matches!(it, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Writes to stdout and flushes it; `false` if the reader has closed the pipe.
///
/// # Errors
/// Fails if stdout cannot be written to for another reason.
pub fn write(text: &str) -> io::Result<bool> {
    write_with_escapes(&plain_lines(text))
}

/// Writes text with sequences for the terminal, such as colours. Whatever comes from outside has
/// passed [`plain`].
///
/// # Errors
/// As of [`write`].
pub fn write_with_escapes(text: &str) -> io::Result<bool> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}

/// Writes a message of one line to stderr.
#[allow(clippy::print_stderr, reason = "the way of all others")]
pub fn note(message: impl Display) {
    eprintln!("podgate: {}", plain(&message.to_string()));
}

/// Writes a message of one line or several to stderr.
#[allow(clippy::print_stderr, reason = "the way of all others")]
pub(crate) fn note_lines(message: impl Display) {
    eprintln!("podgate: {}", plain_lines(&message.to_string()));
}

/// Standard output for long answers, a line at a time. The end of what is written is lost without
/// [`Write::flush`].
pub struct Printer {
    line: Vec<u8>,
    stdout: BufWriter<StdoutLock<'static>>,
}

impl Printer {
    /// Locks standard output.
    pub fn new() -> Self {
        Self { line: Vec::new(), stdout: BufWriter::new(io::stdout().lock()) }
    }

    fn put(&mut self) -> io::Result<()> {
        let line = std::mem::take(&mut self.line);
        self.stdout.write_all(plain_lines(&String::from_utf8_lossy(&line)).as_bytes())
    }
}

impl Default for Printer {
    fn default() -> Self {
        Self::new()
    }
}

impl Write for Printer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") || self.line.len() > MAX_LINE_LEN {
                self.put()?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.put()?;
        self.stdout.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_acts_on_is_left() {
        let every: String = ('\0'..='\u{3000}').collect();
        let is_left =
            |text: &str| -> String { text.chars().filter(|it| is_acted_on(*it)).collect() };
        assert_eq!(is_left(&plain(&every)), "");
        assert_eq!(is_left(&plain_lines(&every)), "\t\n");
        for forged in
            ["\x1b[2J", "a\rb", "\u{9b}31m", "\u{7f}", "a\u{202e}b", "\u{2028}", "\u{2066}"]
        {
            assert!(plain(forged).contains('\u{fffd}'), "{forged:?}");
            assert!(plain_lines(forged).contains('\u{fffd}'), "{forged:?}");
        }
        assert_eq!(plain("Größe 漢字 😀"), "Größe 漢字 😀");
        assert!(matches!(plain_lines("a\tb\n"), Cow::Borrowed("a\tb\n")));
    }
}
