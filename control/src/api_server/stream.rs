//! Parses the answer to a watch without I/O, for tests and fuzzing.

use super::Event;
use super::watch::Watch;
use crate::Kind;

/// Returns the events of a watch of `kind` whose answer is `bytes`, up to its first error.
pub fn parse_watch(kind: Kind, bytes: &[u8]) -> Vec<Event> {
    let mut watch = Watch::new(kind);
    let mut events = Vec::new();
    for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        match watch.line(line) {
            Ok(more) => events.extend(more),
            Err(_) => break,
        }
    }
    events
}
