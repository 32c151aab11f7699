//! gRPC over HTTP/2 (grpc/doc/PROTOCOL-HTTP2.md), as far as a server of small requests needs it.

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use prost::Message;
pub(crate) use telemetry::grpc::Code;
use telemetry::grpc::{PREFIX, escaped};
use tokio::sync::mpsc;

/// Why a call failed: its code, and a text for people.
pub(crate) type Status = (Code, String);

/// Longest request with its prefix, in bytes.
pub(crate) const MOST: usize = (1 << 20) + PREFIX;
const KIND: &str = "application/grpc";

/// Whether a POST with these headers is a call at all.
pub(crate) fn is_call(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let kind = kind.and_then(|kind| kind.strip_prefix(KIND.as_bytes()));
    matches!(kind, Some([] | [b'+' | b';', ..]))
}

/// Reads the one message of a request.
pub(crate) fn read<M: Message + Default>(body: &[u8]) -> Result<M, Status> {
    decode(body).map_err(|(code, text)| (code, format!("request: {text}")))
}

fn decode<M: Message + Default>(bytes: &[u8]) -> Result<M, Status> {
    let Some(([compressed, length @ ..], message)) = bytes.split_first_chunk::<PREFIX>() else {
        return Err((Code::Internal, "there is no message".to_owned()));
    };
    if *compressed != 0 {
        return Err((Code::Unimplemented, "compressed messages are not supported".to_owned()));
    }
    if u32::from_be_bytes(*length) as usize != message.len() {
        return Err((Code::Internal, "there is not exactly one message".to_owned()));
    }
    M::decode(message).map_err(|error| (Code::InvalidArgument, error.to_string()))
}

/// Appends a message with its prefix.
pub(crate) fn append(message: &impl Message, to: &mut BytesMut) {
    let length = message.encoded_len();
    to.put_u8(0);
    // Messages of the server are a few kilobytes long.
    to.put_u32(length as u32);
    // The buffer grows as it has to.
    let _ = message.encode(to);
}

/// The messages of an answer, until the sender is dropped.
pub(crate) type Answer = mpsc::Receiver<Bytes>;

/// An answer of one message.
pub(crate) fn one(message: &impl Message) -> Answer {
    let (sender, receiver) = mpsc::channel(1);
    let mut bytes = BytesMut::new();
    append(message, &mut bytes);
    // There is room for one, and the receiver is here.
    let _ = sender.try_send(bytes.freeze());
    receiver
}

/// The head of a response with messages.
pub(crate) fn head() -> Vec<u8> {
    block(&[(":status", "200"), ("content-type", KIND)])
}

/// The trailers after the last message.
pub(crate) fn success() -> Vec<u8> {
    block(&[("grpc-status", "0")])
}

/// The whole response to a call that failed.
pub(crate) fn failure(code: Code, text: &str) -> Vec<u8> {
    let (code, text) = ((code as u16).to_string(), escaped(text));
    let status = [("grpc-status", code.as_str()), ("grpc-message", text.as_str())];
    block(&[&[(":status", "200"), ("content-type", KIND)][..], &status].concat())
}

/// The whole response to a request that is no call.
pub(crate) fn no_call() -> Vec<u8> {
    block(&[(":status", "415")])
}

fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    http2::encode(fields.iter().copied(), &mut block);
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_a_prefix() {
        let mut bytes = BytesMut::new();
        append(&300_u32, &mut bytes);
        assert_eq!(bytes[..], [0, 0, 0, 0, 3, 8, 0xac, 2]);
        assert_eq!(decode::<u32>(&bytes).unwrap(), 300);
        for (spoilt, code) in [
            (&[][..], Code::Internal),
            (&[0, 0, 0, 0], Code::Internal),
            (&[1, 0, 0, 0, 0], Code::Unimplemented),
            (&[0, 0, 0, 0, 1], Code::Internal),
            (&[0, 0, 0, 0, 0, 0], Code::Internal),
            (&[0, 0, 0, 0, 1, 8], Code::InvalidArgument),
        ] {
            assert_eq!(decode::<u32>(spoilt).unwrap_err().0, code, "{spoilt:?}");
        }
    }

    #[test]
    fn a_call_is_known_by_its_media_type() {
        let of = |kind: &'static str| {
            is_call(&HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]))
        };
        assert!(of("application/grpc") && of("application/grpc+proto"));
        assert!(!of("application/grpc-web") && !of("text/plain"));
        assert!(!is_call(&HeaderMap::new()));
    }
}
