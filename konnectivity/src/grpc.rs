//! gRPC over HTTP/2 (grpc/doc/PROTOCOL-HTTP2.md): messages, headers, statuses.

use bytes::{Buf, Bytes, BytesMut};
use percent_encoding::percent_decode_str;
pub(crate) use telemetry::grpc::Code;
use telemetry::grpc::{PREFIX, escaped};

use crate::packet::{Packet, PacketError, encode_data};
use http2::{Field, encode};

/// The largest message; what the original takes.
const MOST: usize = 4 << 20;

/// Fault of a stream's messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MessageError {
    #[error("grpc: message of {0} bytes, more than {MOST}")]
    TooLong(usize),
    #[error("grpc: a compressed message; no compression was offered")]
    Compressed,
    #[error("{0}")]
    Packet(#[from] PacketError),
}

impl MessageError {
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::TooLong(_) => Code::ResourceExhausted,
            Self::Compressed => Code::Unimplemented,
            Self::Packet(_) => Code::Internal,
        }
    }
}

/// A message: its bytes with prefix, and the packet in it.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) raw: Bytes,
    pub(crate) packet: Packet,
}

/// Assembles messages. Holds no memory between them.
#[derive(Debug, Default)]
pub(crate) struct Assembler {
    partial: BytesMut,
}

impl Assembler {
    /// Appends received bytes; passes each complete message to `take`, until it returns false.
    pub(crate) fn push(
        &mut self,
        mut bytes: &[u8],
        mut take: impl FnMut(Message) -> bool,
    ) -> Result<(), MessageError> {
        loop {
            if self.partial.is_empty()
                && let Some(length) = length(bytes)?
                && bytes.len() >= PREFIX + length
            {
                let (mine, rest) = bytes.split_at(PREFIX + length);
                bytes = rest;
                if !deliver(Bytes::copy_from_slice(mine), &mut take)? {
                    return Ok(());
                }
                continue;
            }
            if bytes.is_empty() {
                return Ok(());
            }
            let missing = match length(&self.partial)? {
                None => PREFIX - self.partial.len(),
                Some(length) => PREFIX + length - self.partial.len(),
            };
            let count = missing.min(bytes.len());
            if self.partial.capacity() - self.partial.len() < count {
                // At once what the message needs, unless it is unusually large.
                self.partial.reserve(missing.clamp(count, 128 * 1024));
            }
            self.partial.extend_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
            let complete =
                length(&self.partial)?.is_some_and(|it| self.partial.len() == PREFIX + it);
            if complete {
                let message = std::mem::take(&mut self.partial).freeze();
                if !deliver(message, &mut take)? {
                    return Ok(());
                }
            }
        }
    }
}

fn length(bytes: &[u8]) -> Result<Option<usize>, MessageError> {
    let Some(prefix) = bytes.first_chunk::<PREFIX>() else { return Ok(None) };
    let [compressed, length @ ..] = *prefix;
    let length = u32::from_be_bytes(length) as usize;
    if compressed != 0 {
        return Err(MessageError::Compressed);
    }
    if length > MOST {
        return Err(MessageError::TooLong(length));
    }
    Ok(Some(length))
}

fn deliver(raw: Bytes, take: &mut impl FnMut(Message) -> bool) -> Result<bool, MessageError> {
    let mut body = raw.clone();
    body.advance(PREFIX);
    match Packet::decode(&body) {
        Ok(packet) => Ok(take(Message { raw, packet })),
        // Types that came later than this are ignored, as the original does.
        Err(PacketError::Type(_)) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// A packet as a message.
pub(crate) fn message(packet: &Packet) -> Bytes {
    let mut out = vec![0; PREFIX];
    packet.encode(&mut out);
    complete(out)
}

/// A data packet as a message.
pub(crate) fn data_message(connection: i64, bytes: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(PREFIX + 24 + bytes.len());
    out.resize(PREFIX, 0);
    encode_data(connection, bytes, &mut out);
    complete(out)
}

fn complete(mut out: Vec<u8>) -> Bytes {
    let length = (out.len() - PREFIX) as u32;
    out[1..PREFIX].copy_from_slice(&length.to_be_bytes());
    out.into()
}

/// The headers of a request.
pub(crate) fn request(
    scheme: &str,
    authority: &str,
    path: &str,
    metadata: &[(&str, &str)],
) -> Vec<u8> {
    let mut block = Vec::new();
    let head = [
        (":method", "POST"),
        (":scheme", scheme),
        (":path", path),
        (":authority", authority),
        ("content-type", "application/grpc"),
        ("user-agent", concat!("podgate/", env!("CARGO_PKG_VERSION"))),
        ("te", "trailers"),
    ];
    encode(head.into_iter().chain(metadata.iter().copied()), &mut block);
    block
}

/// The first headers of an answer.
pub(crate) fn response(metadata: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    let head = [(":status", "200"), ("content-type", "application/grpc")];
    encode(head.into_iter().chain(metadata.iter().copied()), &mut block);
    block
}

/// The trailers of a response; its only headers if `alone`.
pub(crate) fn trailers(code: Code, text: &str, alone: bool) -> Vec<u8> {
    let mut block = Vec::new();
    if alone {
        encode([(":status", "200"), ("content-type", "application/grpc")], &mut block);
    }
    encode([("grpc-status", (code as u32).to_string().as_str())], &mut block);
    if !text.is_empty() {
        encode([("grpc-message", escaped(text).as_str())], &mut block);
    }
    block
}

/// The value of the header called `name`.
pub(crate) fn header<'a>(fields: &'a [Field], name: &str) -> Option<&'a str> {
    fields.iter().find(|field| field.name == name).map(|field| field.value.as_str())
}

/// Returns the error in a response's trailers, if any.
pub(crate) fn failure(fields: &[Field]) -> Option<String> {
    let status = header(fields, "grpc-status")?;
    if status == "0" {
        return None;
    }
    let text = header(fields, "grpc-message").unwrap_or_default();
    Some(format!("status {status}: {}", percent_decode_str(text).decode_utf8_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packets(chunks: &[&[u8]]) -> Result<Vec<Packet>, MessageError> {
        let mut assembler = Assembler::default();
        let mut packets = Vec::new();
        for chunk in chunks {
            assembler.push(chunk, |message| {
                packets.push(message.packet);
                true
            })?;
        }
        assert_eq!(assembler.partial.len(), 0);
        Ok(packets)
    }

    #[test]
    fn messages_in_whatever_pieces_they_come() {
        let wanted = [Packet::Drain, Packet::CloseRequest { connection: 300, half: false }];
        let bytes: Vec<u8> = wanted.iter().flat_map(message).collect();
        assert_eq!(&bytes[..9], [0, 0, 0, 0, 4, 8, 6, 0x42, 0]);
        for size in 1..=bytes.len() {
            let chunks: Vec<&[u8]> = bytes.chunks(size).collect();
            assert_eq!(packets(&chunks).unwrap(), wanted, "in pieces of {size}");
        }
    }

    #[test]
    fn data_is_written_the_same_either_way() {
        let packet = Packet::Data { connection: 7, error: String::new(), bytes: "abc".into() };
        assert_eq!(data_message(7, b"abc"), message(&packet));
    }

    #[test]
    fn what_is_no_message() {
        assert_eq!(packets(&[&[1, 0, 0, 0, 0]]), Err(MessageError::Compressed));
        let length = [0, 0, 0x40, 0, 1];
        assert_eq!(packets(&[&length]), Err(MessageError::TooLong((4 << 20) + 1)));
        let unknown = [0, 0, 0, 0, 2, 8, 99, 0, 0, 0, 0, 4, 8, 6, 0x42, 0];
        assert_eq!(packets(&[&unknown]), Ok(vec![Packet::Drain]));
        assert!(matches!(packets(&[&[0, 0, 0, 0, 1, 8]]), Err(MessageError::Packet(_))));
    }

    #[test]
    fn spoilt_escapes_stay() {
        let fields = [("grpc-status", "2"), ("grpc-message", "%zz%4")];
        let fields = fields.map(|(name, value)| Field { name: name.into(), value: value.into() });
        assert_eq!(failure(&fields).unwrap(), "status 2: %zz%4");
    }
}
