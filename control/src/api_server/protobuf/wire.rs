//! The wire format: <https://protobuf.dev/programming-guides/encoding/>.

use std::fmt;
use std::ops::Range;

/// Bytes that are no message of the kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::api_server) struct Damage {
    /// Offset in the answer's message.
    pub(super) at: usize,
    pub(super) problem: &'static str,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.problem, self.at)
    }
}

pub(super) type Result<T> = std::result::Result<T, Damage>;

/// The value of a field.
#[derive(Clone, Debug)]
pub(super) enum Wire {
    Varint(u64),
    /// The place of its bytes.
    Bytes(Range<usize>),
    /// A number of fixed width, which no field that is read has.
    Fixed,
}

/// Reads the fields of the message at a place within `bytes`.
pub(super) struct Fields<'b> {
    bytes: &'b [u8],
    at: usize,
    end: usize,
    /// Where the last field begins.
    pub(super) began: usize,
}

impl<'b> Fields<'b> {
    pub(super) fn new(bytes: &'b [u8], place: Range<usize>) -> Self {
        Self { bytes, at: place.start, end: place.end, began: place.start }
    }

    /// The next field and its number; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<(u32, Wire)>> {
        if self.at == self.end {
            return Ok(None);
        }
        let at = self.at;
        self.began = at;
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).ok().filter(|it| (1..1 << 29).contains(it));
        let number = number.ok_or(Damage { at, problem: "a field's number is out of range" })?;
        let value = match tag & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => self.skip(8).map(|_| Wire::Fixed)?,
            2 => {
                let length = usize::try_from(self.varint()?).unwrap_or(usize::MAX);
                Wire::Bytes(self.skip(length)?)
            }
            5 => self.skip(4).map(|_| Wire::Fixed)?,
            _ => return Err(Damage { at, problem: "unknown wire type" }),
        };
        Ok(Some((number, value)))
    }

    fn skip(&mut self, length: usize) -> Result<Range<usize>> {
        match length <= self.end - self.at {
            true => {
                self.at += length;
                Ok(self.at - length..self.at)
            }
            false => {
                Err(Damage { at: self.at, problem: "a field is longer than what it stands in" })
            }
        }
    }

    fn varint(&mut self) -> Result<u64> {
        let (began, mut value) = (self.at, 0);
        for shift in (0..64).step_by(7) {
            let Some(byte) = self.bytes[..self.end].get(self.at) else { break };
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Damage { at: began, problem: "a number has no end" })
    }
}

/// The text at a place.
pub(super) fn text(bytes: &[u8], place: Range<usize>) -> Result<&str> {
    let at = place.start;
    std::str::from_utf8(&bytes[place]).map_err(|_| Damage { at, problem: "a text is not UTF-8" })
}
