//! The API server speaking gRPC: one stream for each connection.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;

use super::connection::{Failure, Sink};
use super::dial::{Dialed, dial};
use super::proxy::Proxy;
use crate::accept::silence;
use crate::grpc::{Assembler, Code, Message, header, message, response, trailers};
use crate::packet::Packet;
use http2::{Field, Handler, Link, Role, Settings, drive};

/// The service's path.
pub(crate) const PATH: &str = "/ProxyService/Proxy";

/// A frontend's connection usually carries one stream; its window bounds the memory for unread
/// bytes.
const SETTINGS: Settings =
    Settings { stream_window: 256 * 1024, connection_window: 1 << 20, streams: 10_000 };

/// Serves one connection of the API server.
pub(crate) async fn serve<I>(proxy: &Arc<Proxy>, io: I, who: String) -> io::Result<()>
where
    I: AsyncRead + AsyncWrite + Unpin + Send,
{
    let link = Link::new(Role::Server, SETTINGS);
    let greeted = Arc::new(Notify::new());
    let mut handler = Frontend {
        proxy: Arc::clone(proxy),
        who: who.into(),
        streams: HashMap::new(),
        greeted: Some(Arc::clone(&greeted)),
    };
    let limit = proxy.options.limits.greeting;
    let result = tokio::select! {
        result = drive(io, link, &mut handler) => result,
        error = silence(limit, greeted.notified()) => Err(error),
    };
    for (_, mut stream) in handler.streams.drain() {
        proxy.metrics.stream_errors.add("from_client", Code::Canceled);
        stream.end(proxy, "the client's connection ended");
    }
    result
}

struct Frontend {
    proxy: Arc<Proxy>,
    who: Arc<str>,
    streams: HashMap<u32, Stream>,
    /// Notified at the first request.
    greeted: Option<Arc<Notify>>,
}

/// A stream of the API server.
struct Stream {
    assembler: Assembler,
    who: Arc<str>,
    /// One, unless a client mixes them.
    connections: Vec<Dialed>,
    /// The connection that received data first.
    first: i64,
    over: bool,
}

impl Stream {
    fn end(&mut self, proxy: &Proxy, why: &str) {
        proxy.metrics.proxy_streams.add(-1);
        for connection in self.connections.drain(..) {
            connection.part(why);
        }
    }
}

impl Handler for Frontend {
    fn headers(&mut self, link: &Arc<Link>, stream: u32, fields: Vec<Field>, end: bool) {
        if let Some(greeted) = self.greeted.take() {
            greeted.notify_one();
        }
        if self.streams.contains_key(&stream) {
            // Trailers: the client is done.
            return self.over(stream, "the client ended its stream");
        }
        if let Err((status, text)) = check_request(&fields, PATH) {
            return link.finish(stream, Some(trailers(status, &text, true)));
        }
        if end {
            return link.finish(stream, Some(trailers(Code::Ok, "", true)));
        }
        let who = match header(&fields, "user-agent") {
            None => Arc::clone(&self.who),
            Some(agent) => format!("{} ({agent})", self.who).into(),
        };
        self.proxy.metrics.proxy_streams.add(1);
        link.headers(stream, &response(&[]));
        let state = Stream {
            assembler: Assembler::default(),
            who,
            connections: Vec::new(),
            first: 0,
            over: false,
        };
        self.streams.insert(stream, state);
    }

    fn data(&mut self, link: &Arc<Link>, stream: u32, bytes: &[u8], end: bool) {
        let Some(state) = self.streams.get_mut(&stream) else {
            return link.release(stream, bytes.len());
        };
        let proxy = &self.proxy;
        let mut assembler = std::mem::take(&mut state.assembler);
        let result = match state.over {
            true => Ok(()),
            false => assembler.push(bytes, |it| state.receive(proxy, link, stream, it)),
        };
        state.assembler = assembler;
        match state.connections.first() {
            Some(connection) => connection.hold(bytes.len()),
            None => link.release(stream, bytes.len()),
        }
        if let Err(error) = result {
            let text = error.to_string();
            proxy.metrics.stream_errors.add("from_client", error.code());
            tracing::warn!("{}: {text}", state.who);
            link.cut(stream, trailers(error.code(), &text, false));
            return self.over(stream, &text);
        }
        if end {
            link.finish(stream, Some(trailers(Code::Ok, "", false)));
            self.over(stream, "the client ended its stream");
        }
    }

    fn reset(&mut self, _link: &Arc<Link>, stream: u32, _reason: u32) {
        // Any reset, as the original counts it.
        if self.streams.contains_key(&stream) {
            self.proxy.metrics.stream_errors.add("from_client", Code::Canceled);
        }
        self.over(stream, "the client cancelled its stream");
    }

    fn drained(&mut self, _link: &Arc<Link>, stream: u32, bytes: usize) {
        if let Some(state) = self.streams.get(&stream)
            && let Some(connection) = state.connections.last()
        {
            connection.drained(bytes);
        }
    }
}

impl Frontend {
    fn over(&mut self, stream: u32, why: &str) {
        if let Some(mut state) = self.streams.remove(&stream) {
            state.end(&self.proxy, why);
        }
    }
}

impl Stream {
    /// Handles a packet; false if the stream ends.
    fn receive(
        &mut self,
        proxy: &Arc<Proxy>,
        link: &Arc<Link>,
        stream: u32,
        received: Message,
    ) -> bool {
        proxy.metrics.from_client.count(&received.packet);
        let send = |packet: Packet| {
            proxy.metrics.to_client.count(&packet);
            link.send(stream, message(&packet));
        };
        match received.packet {
            Packet::DialRequest { protocol, address, random } => {
                self.dial(proxy, link, stream, &protocol, &address, random);
            }
            Packet::Data { connection, bytes, .. } => {
                if connection == 0 {
                    return true;
                }
                if self.first == 0 {
                    self.first = connection;
                }
                let known = self.connections.iter().find(|it| it.number() == connection);
                if self.first != connection {
                    for number in [connection, self.first] {
                        let error = "mismatched connection IDs".to_owned();
                        send(Packet::CloseResponse { error, connection: number });
                    }
                    tracing::warn!(
                        "{}: data of connection {connection} on the stream of connection {}",
                        self.who,
                        self.first
                    );
                    for connection in self.connections.drain(..) {
                        connection.part("mismatched connection IDs");
                    }
                    link.finish(stream, Some(trailers(Code::Ok, "", false)));
                    self.over = true;
                    return false;
                }
                match known {
                    Some(known) => known.submit(received.raw, bytes.len()),
                    None if self.connections.is_empty() => {
                        let error = "backend not initialized".to_owned();
                        send(Packet::CloseResponse { error, connection });
                    }
                    // Closed, and the client does not know yet.
                    None => {}
                }
            }
            Packet::CloseRequest { connection, .. } => {
                match self.connections.iter().find(|it| it.number() == connection) {
                    Some(known) => known.close(),
                    None => {
                        let error = match self.connections.is_empty() {
                            true => "backend uninitialized",
                            false => "Unknown connectID",
                        };
                        let error = error.to_owned();
                        send(Packet::CloseResponse { error, connection });
                    }
                }
            }
            Packet::DialClosed { random } => {
                let pending =
                    self.connections.iter().find(|it| it.client_dial == random && it.number() == 0);
                if let Some(known) = pending {
                    known.part("the client gave it up");
                }
            }
            // Only agents and servers send these.
            Packet::DialResponse { .. }
            | Packet::CloseResponse { .. }
            | Packet::Drain
            | Packet::Credit { .. } => {}
        }
        true
    }

    fn dial(
        &mut self,
        proxy: &Arc<Proxy>,
        link: &Arc<Link>,
        stream: u32,
        protocol: &str,
        address: &str,
        random: i64,
    ) {
        let result = match protocol {
            "tcp" => {
                dial(proxy, Sink::Stream(Arc::clone(link), stream), &self.who, address, random)
            }
            other => {
                let text = format!("protocol '{other}' is not supported; there is tcp");
                Err(Failure::of_agent(text))
            }
        };
        match result {
            Ok(connection) => self.connections.push(connection),
            Err(failure) => {
                let answer = Packet::DialResponse { error: failure.text, connection: 0, random };
                proxy.metrics.to_client.count(&answer);
                link.send(stream, message(&answer));
            }
        }
    }
}

/// Checks that a request is for this service; the error is the response.
pub(crate) fn check_request(fields: &[Field], path: &str) -> Result<(), (Code, String)> {
    let is_grpc =
        header(fields, "content-type").is_some_and(|it| it.starts_with("application/grpc"));
    if header(fields, ":method") != Some("POST") || !is_grpc {
        return Err((Code::Internal, "this is not a gRPC request".to_owned()));
    }
    match header(fields, ":path") {
        Some(it) if it == path => Ok(()),
        other => {
            let other = other.unwrap_or_default();
            Err((Code::Unimplemented, format!("unknown method {other}; here is {path}")))
        }
    }
}
