//! One connection of gRPC: calls, their answers, and pings.
//!
//! The project's own HTTP/2 serves it, since clients of gRPC's C core put the percent-encoded path of a unix socket
//! into `:authority`, which the established crates refuse.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http2::{Field, Handler, Link, Role, Settings, drive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::grpc::{self, Answer, Code, Status};

/// A call as it was received.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    /// The request with its prefix; why it was not read.
    pub(crate) body: Result<BytesMut, Status>,
}

/// Calls of a connection at a time.
pub(crate) const CALLS: usize = 32;
/// Interval of pings, and how long one may take.
const PING: Duration = Duration::from_secs(30);
/// A call waits with more answers while this many bytes of it are queued.
const MOST_QUEUED: usize = 64 << 10;
const SETTINGS: Settings =
    Settings { stream_window: 256 << 10, connection_window: 1 << 20, streams: CALLS };

/// Answers the calls of a connection until it ends.
pub(crate) async fn serve<I, F, A>(io: I, answer: F) -> io::Result<()>
where
    I: AsyncRead + AsyncWrite + Unpin + Send,
    F: Fn(Call) -> A + Send,
    A: Future<Output = Result<Answer, Status>> + Send + 'static,
{
    let link = Link::new(Role::Server, SETTINGS);
    let mut calls = Calls { answer, streams: HashMap::new(), drained: Arc::default() };
    tokio::select! {
        result = drive(io, Arc::clone(&link), &mut calls) => result,
        () = silence(&link) => Err(io::Error::new(io::ErrorKind::TimedOut, "no answer to a ping")),
    }
}

/// Sends pings; returns when one has not been answered.
async fn silence(link: &Link) {
    while link.silent_for() < PING {
        link.ping();
        tokio::time::sleep(PING).await;
    }
}

/// The calls of a connection.
struct Calls<F> {
    answer: F,
    streams: HashMap<u32, Stream>,
    /// Notified when bytes of an answer have left.
    drained: Arc<Notify>,
}

enum Stream {
    Receiving(Call),
    Answering(AbortHandle),
}

impl<F, A> Calls<F>
where
    F: Fn(Call) -> A,
    A: Future<Output = Result<Answer, Status>> + Send + 'static,
{
    fn begin(&mut self, link: &Arc<Link>, stream: u32) {
        let Some(Stream::Receiving(call)) = self.streams.remove(&stream) else { return };
        let (link, drained) = (Arc::clone(link), Arc::clone(&self.drained));
        let answer = (self.answer)(call);
        let task = tokio::spawn(async move { send(&link, stream, answer.await, &drained).await });
        self.streams.insert(stream, Stream::Answering(task.abort_handle()));
    }
}

impl<F, A> Handler for Calls<F>
where
    F: Fn(Call) -> A + Send,
    A: Future<Output = Result<Answer, Status>> + Send + 'static,
{
    fn headers(&mut self, link: &Arc<Link>, stream: u32, fields: Vec<Field>, end: bool) {
        let is_over = |it: &Stream| matches!(it, Stream::Answering(task) if task.is_finished());
        self.streams.retain(|_, it| !is_over(it));
        let mut path = String::new();
        let (mut is_post, mut headers) = (false, HeaderMap::new());
        for Field { name, value } in fields {
            match name.as_str() {
                ":path" => path = value,
                ":method" => is_post = value == "POST",
                _ => {
                    let name = HeaderName::from_bytes(name.as_bytes());
                    // Neither pseudo headers nor values that are no text count.
                    if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(&value)) {
                        headers.append(name, value);
                    }
                }
            }
        }
        // Trailers of the client end its request.
        if let Entry::Vacant(entry) = self.streams.entry(stream) {
            if !is_post || !grpc::is_call(&headers) {
                return link.finish(stream, Some(grpc::no_call()));
            }
            let call = Call { path, headers, body: Ok(BytesMut::new()) };
            entry.insert(Stream::Receiving(call));
        }
        if end {
            self.begin(link, stream);
        }
    }

    fn data(&mut self, link: &Arc<Link>, stream: u32, bytes: &[u8], end: bool) {
        link.release(stream, bytes.len());
        if let Some(Stream::Receiving(Call { body, .. })) = self.streams.get_mut(&stream)
            && let Ok(received) = body
        {
            received.extend_from_slice(bytes);
            if received.len() > grpc::MOST {
                let text = format!("request: longer than {} bytes", grpc::MOST);
                *body = Err((Code::ResourceExhausted, text));
            }
        }
        if end {
            self.begin(link, stream);
        }
    }

    fn reset(&mut self, _link: &Arc<Link>, stream: u32, _code: u32) {
        if let Some(Stream::Answering(task)) = self.streams.remove(&stream) {
            task.abort();
        }
    }

    fn drained(&mut self, _link: &Arc<Link>, _stream: u32, _bytes: usize) {
        self.drained.notify_waiters();
    }
}

impl<F> Drop for Calls<F> {
    fn drop(&mut self) {
        for stream in self.streams.values() {
            if let Stream::Answering(task) = stream {
                task.abort();
            }
        }
    }
}

/// Sends the messages of an answer, no faster than the client reads them, and its status.
async fn send(link: &Link, stream: u32, answer: Result<Answer, Status>, drained: &Notify) {
    let mut messages = match answer {
        Ok(messages) => messages,
        Err((code, text)) => return link.finish(stream, Some(grpc::failure(code, &text))),
    };
    link.headers(stream, &grpc::head());
    while let Some(message) = messages.recv().await {
        loop {
            let left = drained.notified();
            tokio::pin!(left);
            left.as_mut().enable();
            if link.queued(stream) < MOST_QUEUED {
                break;
            }
            left.await;
        }
        if link.send(stream, message).is_none() {
            return;
        }
    }
    link.finish(stream, Some(grpc::success()));
}
