//! Parses the answer to a watch without I/O, for tests and fuzzing.

use super::Event;
use super::watch::{Encoding, Watch};
use crate::Kind;

/// Returns the events of a watch of `kind` whose answer is `bytes` in JSON, up to its first error.
pub fn parse_watch(kind: Kind, bytes: &[u8]) -> Vec<Event> {
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    parse(kind, Encoding::Json, lines)
}

/// The same of an answer in protobuf: messages, each after its length.
pub fn parse_watch_protobuf(kind: Kind, mut bytes: &[u8]) -> Vec<Event> {
    let messages = std::iter::from_fn(move || {
        let (length, rest) = bytes.split_first_chunk()?;
        let (message, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        bytes = rest;
        Some(message)
    });
    parse(kind, Encoding::Protobuf, messages)
}

fn parse<'b>(kind: Kind, encoding: Encoding, parts: impl Iterator<Item = &'b [u8]>) -> Vec<Event> {
    let mut watch = Watch::new(kind);
    watch.answered(encoding);
    let mut events = Vec::new();
    for part in parts {
        match watch.part(part) {
            Ok(more) => events.extend(more),
            Err(_) => break,
        }
    }
    events
}
