//! The messages of the protocol, in protocol buffers' encoding (protobuf.dev, "Encoding").
//!
//! One message travels both ways on every stream: `Packet`, a type and at most one payload.
//! The definition is small and does not change, so it is written out here; the golden bytes in
//! the tests pin it.
//!
//! | field of `Packet` | payload | its fields |
//! |---|---|---|
//! | 1 | the type, a number | |
//! | 2 | dial request | 1 protocol, 2 address, 3 random |
//! | 3 | dial response | 1 error, 2 connection, 3 random |
//! | 4 | data | 1 connection, 2 error, 3 bytes |
//! | 5 | close request | 1 connection |
//! | 6 | close response | 1 error, 2 connection |
//! | 7 | dial closed | 1 random |
//! | 8 | drain | |
//! | 64 | credit, only between ends that agreed on it | 1 connection, 2 bytes |
//!
//! Unknown fields are skipped; missing fields have their zero value.

use bytes::Bytes;

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// Asks for a connection.
    DialRequest {
        /// Always `tcp`.
        protocol: String,
        /// `host:port`.
        address: String,
        /// Number of the dial, unique among pending ones.
        random: i64,
    },
    /// The result of a dial.
    DialResponse {
        /// Empty for success.
        error: String,
        /// The number of the connection.
        connection: i64,
        /// The request's.
        random: i64,
    },
    /// Asks to close a connection.
    CloseRequest {
        /// Its number.
        connection: i64,
        /// The target's bytes are still wanted: only the other direction is at its end. Sent to
        /// agents of this implementation alone.
        half: bool,
    },
    /// A connection is closed.
    CloseResponse {
        /// The error; empty if it was requested, or if the target closed.
        error: String,
        /// Its number.
        connection: i64,
    },
    /// Bytes of a connection.
    Data {
        /// Its number.
        connection: i64,
        /// Unused.
        error: String,
        /// The bytes.
        bytes: Bytes,
    },
    /// A dial was cancelled, by either side.
    DialClosed {
        /// The request's.
        random: i64,
    },
    /// The agent takes no further dials.
    Drain,
    /// The receiver of data has room for so many more bytes.
    Credit {
        /// The connection's number.
        connection: i64,
        /// Bytes.
        bytes: i64,
    },
}

/// Fault of a packet's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// The bytes end inside a field.
    #[error("packet: offset {0}: cut short")]
    Cut(usize),
    /// A number takes more than ten bytes.
    #[error("packet: offset {0}: a number that does not end")]
    Number(usize),
    /// Field number zero, or an unknown wire type.
    #[error("packet: offset {0}: no valid field")]
    Field(usize),
    /// Text that is not UTF-8.
    #[error("packet: offset {0}: text that is not UTF-8")]
    Text(usize),
    /// A type that is not in the definition.
    #[error("packet: type {0} is unknown")]
    Type(u64),
    /// The payload is not the one that the type says.
    #[error("packet: type {0} without its payload")]
    Payload(&'static str),
}

/// Type and payload field of [`Packet::Credit`], which the original's definition does not have.
const CREDIT: u64 = 64;
/// The field of a CLOSE_REQ that the original's definition does not have.
const HALF: usize = 2;

impl Packet {
    /// The type's name, as the original's metrics show it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::DialRequest { .. } => "DIAL_REQ",
            Self::DialResponse { .. } => "DIAL_RSP",
            Self::CloseRequest { .. } => "CLOSE_REQ",
            Self::CloseResponse { .. } => "CLOSE_RSP",
            Self::Data { .. } => "DATA",
            Self::DialClosed { .. } => "DIAL_CLS",
            Self::Drain => "DRAIN",
            Self::Credit { .. } => "CREDIT",
        }
    }

    /// Reads one.
    ///
    /// # Errors
    /// With the offset of the fault; an unknown type is [`PacketError::Type`].
    pub fn decode(bytes: &Bytes) -> Result<Self, PacketError> {
        let mut kind = 0;
        let mut payload = None;
        let mut reader = Reader { bytes, at: 0 };
        while let Some((field, value)) = reader.field()? {
            match (field, value) {
                (1, Value::Number(number)) => kind = number,
                (2..=8 | CREDIT, Value::Bytes(start, end)) => {
                    payload = Some((field, start, end));
                }
                _ => {}
            }
        }
        let (name, wanted) = match kind {
            0 => ("DIAL_REQ", 2),
            1 => ("DIAL_RSP", 3),
            2 => ("CLOSE_REQ", 5),
            3 => ("CLOSE_RSP", 6),
            4 => ("DATA", 4),
            5 => ("DIAL_CLS", 7),
            6 => return Ok(Self::Drain),
            CREDIT => ("CREDIT", CREDIT),
            other => return Err(PacketError::Type(other)),
        };
        let Some((_, start, end)) = payload.filter(|(field, ..)| *field == wanted) else {
            return Err(PacketError::Payload(name));
        };
        let fields = Fields::read(bytes, start, end)?;
        Ok(match kind {
            0 => Self::DialRequest {
                protocol: fields.text(1)?,
                address: fields.text(2)?,
                random: fields.number(3),
            },
            1 => Self::DialResponse {
                error: fields.text(1)?,
                connection: fields.number(2),
                random: fields.number(3),
            },
            2 => {
                Self::CloseRequest { connection: fields.number(1), half: fields.number(HALF) != 0 }
            }
            3 => Self::CloseResponse { error: fields.text(1)?, connection: fields.number(2) },
            4 => Self::Data {
                connection: fields.number(1),
                error: fields.text(2)?,
                bytes: fields.slice(3),
            },
            5 => Self::DialClosed { random: fields.number(1) },
            _ => Self::Credit { connection: fields.number(1), bytes: fields.number(2) },
        })
    }

    /// Appends the encoding: fields in order, zero values left out, as the original does.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut body = Vec::new();
        let (kind, field) = match self {
            Self::DialRequest { protocol, address, random } => {
                put_text(&mut body, 1, protocol);
                put_text(&mut body, 2, address);
                put_number(&mut body, 3, *random);
                (0, 2)
            }
            Self::DialResponse { error, connection, random } => {
                put_text(&mut body, 1, error);
                put_number(&mut body, 2, *connection);
                put_number(&mut body, 3, *random);
                (1, 3)
            }
            Self::CloseRequest { connection, half } => {
                put_number(&mut body, 1, *connection);
                put_number(&mut body, HALF as u64, i64::from(*half));
                (2, 5)
            }
            Self::CloseResponse { error, connection } => {
                put_text(&mut body, 1, error);
                put_number(&mut body, 2, *connection);
                (3, 6)
            }
            Self::Data { connection, error, bytes } if error.is_empty() => {
                return encode_data(*connection, bytes, out);
            }
            Self::Data { connection, error, bytes } => {
                put_number(&mut body, 1, *connection);
                put_text(&mut body, 2, error);
                put_bytes(&mut body, 3, bytes);
                (4, 4)
            }
            Self::DialClosed { random } => {
                put_number(&mut body, 1, *random);
                (5, 7)
            }
            Self::Drain => (6, 8),
            Self::Credit { connection, bytes } => {
                put_number(&mut body, 1, *connection);
                put_number(&mut body, 2, *bytes);
                (CREDIT.cast_signed(), CREDIT)
            }
        };
        put_number(out, 1, kind);
        put_head(out, field, 2);
        put_varint(out, body.len() as u64);
        out.extend_from_slice(&body);
    }
}

/// Appends a data packet; its bytes are copied once.
pub(crate) fn encode_data(connection: i64, bytes: &[u8], out: &mut Vec<u8>) {
    let number = if connection == 0 { 0 } else { 1 + varint_len(connection.cast_unsigned()) };
    let content =
        if bytes.is_empty() { 0 } else { 1 + varint_len(bytes.len() as u64) + bytes.len() };
    out.reserve(16 + number + content);
    put_number(out, 1, 4);
    put_head(out, 4, 2);
    put_varint(out, (number + content) as u64);
    put_number(out, 1, connection);
    put_bytes(out, 3, bytes);
}

fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value as u8) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_head(out: &mut Vec<u8>, field: u64, wire: u64) {
    put_varint(out, field << 3 | wire);
}

fn put_number(out: &mut Vec<u8>, field: u64, value: i64) {
    if value != 0 {
        put_head(out, field, 0);
        put_varint(out, value.cast_unsigned());
    }
}

fn put_bytes(out: &mut Vec<u8>, field: u64, value: &[u8]) {
    if !value.is_empty() {
        put_head(out, field, 2);
        put_varint(out, value.len() as u64);
        out.extend_from_slice(value);
    }
}

fn put_text(out: &mut Vec<u8>, field: u64, value: &str) {
    put_bytes(out, field, value.as_bytes());
}

enum Value {
    Number(u64),
    /// Start and end.
    Bytes(usize, usize),
    /// Four or eight bytes, which no field of ours is.
    Fixed,
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn field(&mut self) -> Result<Option<(u64, Value)>, PacketError> {
        if self.at == self.bytes.len() {
            return Ok(None);
        }
        let start = self.at;
        let head = self.varint()?;
        let value = match head & 7 {
            0 => Value::Number(self.varint()?),
            1 => self.skip(8).map(|()| Value::Fixed)?,
            2 => {
                let length = self.varint()?;
                let from = self.at;
                let length = usize::try_from(length).map_err(|_| PacketError::Cut(start))?;
                self.skip(length)?;
                Value::Bytes(from, self.at)
            }
            5 => self.skip(4).map(|()| Value::Fixed)?,
            _ => return Err(PacketError::Field(start)),
        };
        match head >> 3 {
            0 => Err(PacketError::Field(start)),
            field => Ok(Some((field, value))),
        }
    }

    fn skip(&mut self, count: usize) -> Result<(), PacketError> {
        if count > self.bytes.len() - self.at {
            return Err(PacketError::Cut(self.at));
        }
        self.at += count;
        Ok(())
    }

    fn varint(&mut self) -> Result<u64, PacketError> {
        let start = self.at;
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = *self.bytes.get(self.at).ok_or(PacketError::Cut(start))?;
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(PacketError::Number(start))
    }
}

/// The fields of a payload; the last of each number counts.
struct Fields<'a> {
    bytes: &'a Bytes,
    numbers: [u64; 4],
    slices: [(usize, usize); 4],
}

impl<'a> Fields<'a> {
    fn read(bytes: &'a Bytes, start: usize, end: usize) -> Result<Self, PacketError> {
        let mut fields = Self { bytes, numbers: [0; 4], slices: [(0, 0); 4] };
        let mut reader = Reader { bytes: &bytes[..end], at: start };
        while let Some((field, value)) = reader.field()? {
            let Some(index) = usize::try_from(field).ok().filter(|index| *index < 4) else {
                continue;
            };
            match value {
                Value::Number(number) => fields.numbers[index] = number,
                Value::Bytes(from, to) => fields.slices[index] = (from, to),
                Value::Fixed => {}
            }
        }
        Ok(fields)
    }

    fn number(&self, field: usize) -> i64 {
        self.numbers[field].cast_signed()
    }

    fn slice(&self, field: usize) -> Bytes {
        let (start, end) = self.slices[field];
        self.bytes.slice(start..end)
    }

    fn text(&self, field: usize) -> Result<String, PacketError> {
        let (start, end) = self.slices[field];
        let text = std::str::from_utf8(&self.bytes[start..end]);
        text.map(str::to_owned).map_err(|_| PacketError::Text(start))
    }
}

#[cfg(test)]
mod tests;
