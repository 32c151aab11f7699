//! Header compression (RFC 7541): a complete decoder, and an encoder of literals.
//!
//! The encoder uses neither Huffman codes nor the dynamic table, so it has no state: a stream has only a few headers.

mod huffman;
mod table;

use std::collections::VecDeque;

/// A header; names are lower case, values as far as they are text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name; pseudo headers begin with a colon.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// Fault of a header block. It ends the connection, as the two ends' tables differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HpackError {
    /// The block ends inside a field.
    #[error("header block: cut short")]
    Cut,
    /// A number larger than anything here can be.
    #[error("header block: a number that is too large")]
    Number,
    /// An index that no table entry has.
    #[error("header block: index {0} is in no table")]
    Index(usize),
    /// A string that the Huffman code does not give.
    #[error("header block: a string that is not in the Huffman code")]
    Huffman,
    /// The table's size was raised above what was offered, or in the middle of a block.
    #[error("header block: a table size that was not offered")]
    TableSize,
    /// More headers than allowed.
    #[error("header block: more than {MOST_BYTES} bytes of headers")]
    TooLong,
}

/// The dynamic table's size, the protocol's default.
const TABLE_BYTES: usize = 4096;
/// All names and values of a block; a token of a service account is about 1 KiB.
pub(crate) const MOST_BYTES: usize = 64 * 1024;
/// Overhead of an entry, in bytes (section 4.1).
const ENTRY_BYTES: usize = 32;

/// Reads header blocks of one connection, in their order.
#[derive(Debug)]
pub(crate) struct Decoder {
    entries: VecDeque<Field>,
    size: usize,
    limit: usize,
}

impl Default for Decoder {
    fn default() -> Self {
        Self { entries: VecDeque::new(), size: 0, limit: TABLE_BYTES }
    }
}

impl Decoder {
    /// The headers of a block.
    ///
    /// # Errors
    /// After an error the decoder must not be used any more.
    pub(crate) fn decode(&mut self, block: &[u8]) -> Result<Vec<Field>, HpackError> {
        let mut fields = Vec::new();
        let mut bytes = 0;
        let mut input = Input { bytes: block, at: 0 };
        while let Some(first) = input.peek() {
            let field = if first & 0x80 != 0 {
                let index = input.number(7)?;
                self.entry(index)?.clone()
            } else if first & 0x40 != 0 {
                let field = self.literal(&mut input, 6)?;
                self.insert(field.clone());
                field
            } else if first & 0x20 != 0 {
                let limit = input.number(5)?;
                if limit > TABLE_BYTES || !fields.is_empty() {
                    return Err(HpackError::TableSize);
                }
                self.limit = limit;
                self.evict(0);
                continue;
            } else {
                self.literal(&mut input, 4)?
            };
            bytes += field.name.len() + field.value.len() + ENTRY_BYTES;
            if bytes > MOST_BYTES {
                return Err(HpackError::TooLong);
            }
            fields.push(field);
        }
        Ok(fields)
    }

    fn literal(&self, input: &mut Input<'_>, prefix: u32) -> Result<Field, HpackError> {
        let name = match input.number(prefix)? {
            0 => input.string()?,
            index => self.entry(index)?.name.clone(),
        };
        Ok(Field { name, value: input.string()? })
    }

    fn entry(&self, index: usize) -> Result<&Field, HpackError> {
        let dynamic = index.checked_sub(table::STATIC.len() + 1);
        let entry = match dynamic {
            Some(dynamic) => self.entries.get(dynamic),
            None => table::entry(index),
        };
        entry.ok_or(HpackError::Index(index))
    }

    fn insert(&mut self, field: Field) {
        let size = field.name.len() + field.value.len() + ENTRY_BYTES;
        self.evict(size);
        if size <= self.limit {
            self.size += size;
            self.entries.push_front(field);
        }
    }

    /// Makes room for `wanted` bytes.
    fn evict(&mut self, wanted: usize) {
        while self.size + wanted > self.limit {
            let Some(field) = self.entries.pop_back() else { return };
            self.size -= field.name.len() + field.value.len() + ENTRY_BYTES;
        }
    }
}

/// Appends a header block.
pub fn encode<'a>(fields: impl IntoIterator<Item = (&'a str, &'a str)>, out: &mut Vec<u8>) {
    for (name, value) in fields {
        if let Some(index) = table::exact(name, value) {
            put_number(out, 0x80, 7, index);
            continue;
        }
        match table::named(name) {
            Some(index) => put_number(out, 0, 4, index),
            None => {
                out.push(0);
                put_string(out, name);
            }
        }
        put_string(out, value);
    }
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    put_number(out, 0, 7, text.len());
    out.extend_from_slice(text.as_bytes());
}

/// Section 5.1.
fn put_number(out: &mut Vec<u8>, flags: u8, prefix: u32, value: usize) {
    let most = (1_usize << prefix) - 1;
    if value < most {
        out.push(flags | value as u8);
        return;
    }
    out.push(flags | most as u8);
    let mut rest = value - most;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Input<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn byte(&mut self) -> Result<u8, HpackError> {
        let byte = self.peek().ok_or(HpackError::Cut)?;
        self.at += 1;
        Ok(byte)
    }

    fn number(&mut self, prefix: u32) -> Result<usize, HpackError> {
        let most = (1_usize << prefix) - 1;
        let mut value = usize::from(self.byte()?) & most;
        if value < most {
            return Ok(value);
        }
        for shift in [0, 7, 14, 21] {
            let byte = self.byte()?;
            value += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(HpackError::Number)
    }

    fn string(&mut self) -> Result<String, HpackError> {
        let huffman = self.peek().ok_or(HpackError::Cut)? & 0x80 != 0;
        let length = self.number(7)?;
        let rest = &self.bytes[self.at..];
        let bytes = rest.get(..length).ok_or(HpackError::Cut)?;
        self.at += length;
        let bytes = if huffman { huffman::decode(bytes)? } else { bytes.to_vec() };
        Ok(String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }
}

#[cfg(test)]
mod tests;
