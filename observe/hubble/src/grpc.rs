//! gRPC over HTTP/2 (grpc/doc/PROTOCOL-HTTP2.md), as far as a server of small requests needs it.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use prost::Message;
pub(crate) use telemetry::grpc::Code;
use telemetry::grpc::{PREFIX, escaped};
use tokio::sync::mpsc;

/// Why a call failed: its code, and a text for people.
pub(crate) type Status = (Code, String);

/// Longest request, in bytes.
const MOST: usize = 1 << 20;
const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const KIND: HeaderValue = HeaderValue::from_static("application/grpc");

/// Whether a request is a call at all.
pub(crate) fn is_call<T>(request: &Request<T>) -> bool {
    let kind = request.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let kind = kind.and_then(|kind| kind.strip_prefix(KIND.as_bytes()));
    *request.method() == Method::POST && matches!(kind, Some([] | [b'+' | b';', ..]))
}

/// Reads the one message of a request.
pub(crate) async fn read<M: Message + Default>(body: Incoming) -> Result<M, Status> {
    let failed = |(code, text): Status| (code, format!("request: {text}"));
    let whole = Limited::new(body, MOST + PREFIX).collect().await;
    let whole = whole.map_err(|error| failed((Code::ResourceExhausted, error.to_string())))?;
    decode(&whole.to_bytes()).map_err(failed)
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

/// The response to a call.
pub(crate) fn response(answer: Result<Answer, Status>) -> Response<Content> {
    let (content, status) = match answer {
        Ok(messages) => (Some(messages), None),
        Err(status) => (None, Some(status)),
    };
    let mut response = Response::new(Content(content));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, KIND);
    if let Some((code, message)) = status {
        headers.insert(STATUS, HeaderValue::from(code as u16));
        // Percent-encoded text is a header's value.
        if let Ok(message) = HeaderValue::from_str(&escaped(&message)) {
            headers.insert(MESSAGE, message);
        }
    }
    response
}

/// The response to a request that is no call.
pub(crate) fn no_call() -> Response<Content> {
    let mut response = Response::new(Content(None));
    *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    response
}

/// The body of a response: messages, then the status OK; nothing if it failed.
pub(crate) struct Content(Option<Answer>);

impl Body for Content {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(messages) = &mut self.0 else { return Poll::Ready(None) };
        let frame = if let Some(bytes) = ready!(messages.poll_recv(context)) {
            Frame::data(bytes)
        } else {
            self.0 = None;
            Frame::trailers(HeaderMap::from_iter([(STATUS, HeaderValue::from_static("0"))]))
        };
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }
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
            is_call(&Request::post("/").header(CONTENT_TYPE, kind).body(()).unwrap())
        };
        assert!(of("application/grpc") && of("application/grpc+proto"));
        assert!(!of("application/grpc-web") && !of("text/plain"));
        assert!(!is_call(&Request::get("/").header(CONTENT_TYPE, KIND).body(()).unwrap()));
    }
}
