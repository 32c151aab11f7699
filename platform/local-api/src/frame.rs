//! Lines of JSON on a stream, with a bound on their length.

use std::io::{self, BufRead, Read, Write};

use serde::Serialize;

/// Longest request a server reads, in bytes with its line end.
pub const REQUEST_BYTES: usize = 64 * 1024;
/// Longest answer a client reads, in bytes with its line end: a status with
/// thousands of pods fits.
pub const ANSWER_BYTES: usize = 16 * 1024 * 1024;

/// An error of the line framing.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// Reading failed or took too long.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The line does not end within its bound.
    #[error("a line is longer than {limit} bytes")]
    TooLong {
        /// The bound.
        limit: usize,
    },
    /// The stream ended in the middle of a line.
    #[error("the connection ended within a line, after {bytes} bytes")]
    Cut {
        /// Bytes received of the line.
        bytes: usize,
    },
    /// The line is not UTF-8.
    #[error("a line is not UTF-8 at byte {offset}")]
    NotText {
        /// Position of the first invalid byte.
        offset: usize,
    },
}

/// Reads one line of at most `limit` bytes; `None` at the end of the stream.
///
/// # Errors
/// After an error the position in the stream is unknown; close it.
pub fn read_line(reader: &mut impl BufRead, limit: usize) -> Result<Option<String>, FrameError> {
    let mut line = Vec::new();
    reader.by_ref().take(limit as u64).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.pop_if(|last| *last == b'\n').is_none() {
        return Err(match line.len() {
            bytes if bytes == limit => FrameError::TooLong { limit },
            bytes => FrameError::Cut { bytes },
        });
    }
    let text = String::from_utf8(line)
        .map_err(|error| FrameError::NotText { offset: error.utf8_error().valid_up_to() })?;
    Ok(Some(text))
}

/// Writes `value` as one line, in one piece.
///
/// # Errors
/// Fails if it cannot be written as JSON, or not to the stream.
pub fn write_line(writer: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    writer.write_all(&line)?;
    writer.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_the_end() {
        let mut stream = &b"one\n\ntwo\n"[..];
        assert_eq!(read_line(&mut stream, 4).unwrap().as_deref(), Some("one"));
        assert_eq!(read_line(&mut stream, 4).unwrap().as_deref(), Some(""));
        assert_eq!(read_line(&mut stream, 4).unwrap().as_deref(), Some("two"));
        assert_eq!(read_line(&mut stream, 4).unwrap(), None);
    }

    #[test]
    fn what_is_no_line() {
        let mut long = &b"12345\n"[..];
        assert!(matches!(read_line(&mut long, 5), Err(FrameError::TooLong { limit: 5 })));
        let mut cut = &b"123"[..];
        assert!(matches!(read_line(&mut cut, 5), Err(FrameError::Cut { bytes: 3 })));
        let mut binary = &b"ab\xff\n"[..];
        assert!(matches!(read_line(&mut binary, 5), Err(FrameError::NotText { offset: 2 })));
    }

    #[test]
    fn a_line_break_in_a_text_does_not_end_the_line() {
        let mut stream = Vec::new();
        write_line(&mut stream, &"a\nb").unwrap();
        assert_eq!(stream, b"\"a\\nb\"\n");
    }
}
