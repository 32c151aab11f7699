//! A request whose answer is read as it comes, in JSON or in protobuf.

use std::io;

use api_client::with_causes;
use futures_util::{AsyncBufRead, AsyncBufReadExt, TryStreamExt};
use http::header::{ACCEPT, CONTENT_TYPE};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::Value;

use super::protobuf;
use super::trouble::Trouble;
use super::watch::Encoding;

/// Maximum length of a line or message; the API server refuses objects of a tenth of it.
const LONGEST: usize = 32 << 20;

/// The framing of an answer's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// Into lines.
    Lines,
    /// Into messages, each after its length in four bytes, big-endian.
    Lengths,
    /// It is one part, handed out as it comes.
    Whole,
}

impl Framing {
    /// Bytes before the content of a part.
    pub(super) fn head(self) -> usize {
        if self == Self::Lengths { 4 } else { 0 }
    }
}

/// Makes a request, and waits for the head of its answer.
pub(super) async fn get(
    client: &Client,
    path: &str,
    accept: &str,
) -> Result<(Encoding, impl AsyncBufRead + use<>), Trouble> {
    let request = http::Request::get(path).header(ACCEPT, accept).body(Body::empty());
    let request = request.map_err(|error| Trouble::Other(error.to_string()))?;
    let away = |error: kube::Error| Trouble::Away(with_causes(&error));
    let answer = client.send(request).await.map_err(away)?;
    let content = answer.headers().get(CONTENT_TYPE).and_then(|it| it.to_str().ok());
    let encoding = match content.is_some_and(|it| it.contains("protobuf")) {
        true => Encoding::Protobuf,
        false => Encoding::Json,
    };
    let status = answer.status();
    if status.is_client_error() || status.is_server_error() {
        let body = answer.into_body().collect_bytes().await.map_err(away)?;
        return Err(refused(status.as_u16(), encoding, &body));
    }
    let body = answer.into_body().into_data_stream().map_err(io::Error::other);
    Ok((encoding, body.into_async_read()))
}

/// Classifies an answer that is an error: the `Status` of the API server, or the words of something before it.
fn refused(code: u16, encoding: Encoding, body: &[u8]) -> Trouble {
    let status: Option<Value> = match encoding {
        Encoding::Protobuf => protobuf::status(body).ok(),
        Encoding::Json => serde_json::from_slice(body).ok(),
    };
    match status {
        Some(status) => Trouble::of_status(&status, code),
        None => Trouble::status(code, String::from_utf8_lossy(body).trim(), 0),
    }
}

/// Appends bytes up to the end of a part; appends nothing at the end of the body. May be cancelled, and goes on
/// with the same part then.
///
/// # Errors
/// The body's, one that ends within a message, and a part that is too long.
pub(super) async fn read_part(
    body: &mut (impl AsyncBufRead + Unpin),
    part: &mut Vec<u8>,
    framing: Framing,
) -> io::Result<()> {
    loop {
        let chunk = body.fill_buf().await?;
        let (taken, done) = match framing {
            _ if chunk.is_empty() && (framing != Framing::Lengths || part.is_empty()) => (0, true),
            Framing::Lengths if chunk.is_empty() => {
                return Err(io::Error::other("the answer ended within an event"));
            }
            Framing::Lines => match chunk.iter().position(|byte| *byte == b'\n') {
                Some(at) => (at + 1, true),
                None => (chunk.len(), false),
            },
            Framing::Whole => (chunk.len(), true),
            Framing::Lengths => {
                let length = match part.first_chunk() {
                    Some(head) => framing.head() + u32::from_be_bytes(*head) as usize,
                    None => framing.head(),
                };
                let missing = length - part.len();
                (missing.min(chunk.len()), part.len() >= framing.head() && missing <= chunk.len())
            }
        };
        part.extend_from_slice(&chunk[..taken]);
        body.consume_unpin(taken);
        if done {
            return Ok(());
        }
        if part.len() > LONGEST {
            return Err(io::Error::other("a part of the answer has no end"));
        }
    }
}
