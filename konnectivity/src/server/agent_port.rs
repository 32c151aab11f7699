//! Agents: each opens one stream, and authenticates in the request's headers.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::agent_stream::AgentStream;
use super::backend::Backend;
use super::connection::Connection;
use super::grpc_frontend::check_request;
use super::options::TokenAuth;
use super::proxy::Proxy;
use crate::accept;
use crate::grpc::{Assembler, Code, header, response, trailers};
use crate::identifiers::Identifiers;
use crate::kubernetes::is_service_account;
use crate::window::Window;
use http2::{Field, Handler, Link, Role, Settings, code, drive};

/// The service's path.
pub(crate) const PATH: &str = "/AgentService/Connect";
/// The header by which both ends announce their window for each connection. The original does not
/// send it and gets no flow control.
pub(crate) const WINDOW: &str = "podgate-window";

/// All connections of an agent share its one stream, which is read at once.
pub(crate) const SETTINGS: Settings =
    Settings { stream_window: 8 << 20, connection_window: 8 << 20, streams: 16 };

/// Serves one connection of an agent.
pub(crate) async fn serve<I>(proxy: &Arc<Proxy>, io: I, peer: String) -> io::Result<()>
where
    I: AsyncRead + AsyncWrite + Unpin + Send,
{
    let link = Link::new(Role::Server, SETTINGS);
    let admitted = Arc::new(Notify::new());
    let mut handler = AgentPort {
        proxy: Arc::clone(proxy),
        peer,
        streams: HashMap::new(),
        behind: None,
        admitted: Arc::clone(&admitted),
    };
    let limit = proxy.options.limits.greeting;
    let result = tokio::select! {
        result = drive(io, link, &mut handler) => result,
        error = accept::silence(limit, admitted.notified()) => Err(error),
    };
    let why = match &result {
        Ok(()) => "it closed its connection".to_owned(),
        Err(error) => accept::reason(error),
    };
    for (_, stream) in handler.streams.drain() {
        proxy.metrics.stream_errors.add("from_agent", Code::Canceled);
        stream.end(proxy, &why);
    }
    if handler.behind.is_some_and(|(agent, _)| agent.blocked.load(Ordering::Relaxed)) {
        proxy.metrics.full_from_agent.add(-1);
    }
    result
}

struct AgentPort {
    proxy: Arc<Proxy>,
    peer: String,
    streams: HashMap<u32, Stream>,
    /// The connection whose slow reader pauses reading.
    behind: Option<(Arc<AgentStream>, Arc<Connection>)>,
    /// Notified when an agent is authenticated.
    admitted: Arc<Notify>,
}

struct Stream {
    assembler: Assembler,
    backend: Arc<Entry>,
    /// The TokenReview that has not ended.
    review: Option<AbortHandle>,
}

/// The agent, once it is admitted.
#[derive(Default)]
struct Entry(OnceLock<Arc<Backend>>);

impl Stream {
    fn end(self, proxy: &Proxy, why: &str) {
        proxy.metrics.connect_streams.add(-1);
        if let Some(review) = self.review {
            review.abort();
        }
        // An agent admitted after this finds its stream closed.
        if let Some(backend) = self.backend.0.get() {
            tracing::info!("{} is gone: {why}", backend.stream);
            proxy.backends.remove(backend);
            backend.end(why);
        }
    }
}

impl Handler for AgentPort {
    fn headers(&mut self, link: &Arc<Link>, stream: u32, fields: Vec<Field>, end: bool) {
        if self.streams.contains_key(&stream) {
            link.finish(stream, Some(trailers(Code::Ok, "", false)));
            return self.over(link, stream, "it ended its stream");
        }
        if let Err((status, text)) = check_request(&fields, PATH) {
            return link.finish(stream, Some(trailers(status, &text, true)));
        }
        let wanted = match Wanted::read(&fields) {
            Ok(wanted) => wanted,
            Err(text) => {
                self.proxy.metrics.agents_refused.with_label_values(&["metadata"]).inc();
                tracing::warn!("an agent at {} is refused: {text}", self.peer);
                return link.finish(stream, Some(trailers(Code::Unknown, &text, true)));
            }
        };
        if end || *self.proxy.stopping.borrow() {
            return link.finish(stream, Some(trailers(Code::Unavailable, "the server ends", true)));
        }
        self.proxy.metrics.connect_streams.add(1);
        let entry = Arc::new(Entry::default());
        let pending = PendingAgent {
            proxy: Arc::clone(&self.proxy),
            link: Arc::clone(link),
            stream,
            peer: self.peer.clone(),
            entry: Arc::clone(&entry),
            admitted: Arc::clone(&self.admitted),
        };
        let state = Stream { assembler: Assembler::default(), backend: entry, review: None };
        let state = self.streams.entry(stream).or_insert(state);
        let Some(tokens) = &self.proxy.options.tokens else { return pending.admit(wanted) };
        let Ok(place) = Arc::clone(&self.proxy.waiting).try_acquire_owned() else {
            return pending.refuse(&wanted.agent, "too many agents wait for their TokenReview");
        };
        let tokens = tokens.clone();
        let authorization: Vec<String> = fields
            .into_iter()
            .filter(|field| field.name == "authorization")
            .map(|field| field.value)
            .collect();
        // It ends with its stream (`Stream::end`).
        let review = tokio::spawn(async move {
            let _place = place;
            let authenticated = {
                let _turn = pending.proxy.reviews.acquire().await;
                authenticate(&tokens, &authorization).await
            };
            match authenticated {
                Ok(()) => pending.admit(wanted),
                Err(text) => pending.refuse(&wanted.agent, &text),
            }
        });
        state.review = Some(review.abort_handle());
    }

    fn data(&mut self, link: &Arc<Link>, stream: u32, bytes: &[u8], end: bool) {
        link.release(stream, bytes.len());
        let Some(state) = self.streams.get_mut(&stream) else { return };
        let Some(backend) = state.backend.0.get() else {
            // The agent has to wait for the response headers.
            let text = "data before the agent was admitted";
            link.cut(stream, trailers(Code::Unauthenticated, text, true));
            return self.over(link, stream, text);
        };
        let (proxy, behind) = (&self.proxy, &mut self.behind);
        let result = state.assembler.push(bytes, |message| {
            if let Some(connection) = backend.receive(message) {
                let stalled = connection.cut_if_stalled();
                if !stalled && behind.is_none() {
                    *behind = Some((Arc::clone(&backend.stream), connection));
                }
            }
            true
        });
        if let Err(error) = result {
            let text = error.to_string();
            proxy.metrics.stream_errors.add("from_agent", error.code());
            tracing::warn!("{}: {text}", backend.stream);
            link.cut(stream, trailers(error.code(), &text, false));
            return self.over(link, stream, &text);
        }
        if end {
            link.finish(stream, Some(trailers(Code::Ok, "", false)));
            self.over(link, stream, "it ended its stream");
        }
    }

    fn reset(&mut self, link: &Arc<Link>, stream: u32, _reason: u32) {
        if self.streams.contains_key(&stream) {
            self.proxy.metrics.stream_errors.add("from_agent", Code::Canceled);
        }
        self.over(link, stream, "it cancelled its stream");
    }

    fn paused(&mut self) -> bool {
        let Some((agent, connection)) = &self.behind else { return false };
        let paused = !connection.has_caught_up() && !connection.cut_if_stalled();
        let was = agent.blocked.swap(paused, Ordering::Relaxed);
        if was != paused {
            self.proxy.metrics.full_from_agent.add(if paused { 1 } else { -1 });
        }
        if !paused {
            self.behind = None;
        } else if connection.has_caught_up() {
            // The end came before the wakers were set.
            agent.link.wake();
        }
        paused
    }
}

impl AgentPort {
    fn over(&mut self, link: &Link, stream: u32, why: &str) {
        if let Some(state) = self.streams.remove(&stream) {
            state.end(&self.proxy, why);
            if self.streams.is_empty() {
                link.close(code::NO_ERROR, "");
            }
        }
    }
}

/// An agent's request headers.
struct Wanted {
    agent: String,
    identifiers: Identifiers,
    window: Option<usize>,
}

impl Wanted {
    fn read(fields: &[Field]) -> Result<Self, String> {
        let all = |name: &str| -> Vec<&str> {
            fields.iter().filter(|it| it.name == name).map(|it| it.value.as_str()).collect()
        };
        let agent = match all("agentid")[..] {
            [agent] if !agent.is_empty() => agent.to_owned(),
            [_] => return Err("agentid: empty".to_owned()),
            [] => return Err("agentid: missing in the metadata".to_owned()),
            ref several => return Err(format!("agentid: {} of them", several.len())),
        };
        let identifiers = match all("agentidentifiers")[..] {
            [] => Identifiers::default(),
            [one] => Identifiers::parse(one),
            ref several => return Err(format!("agentidentifiers: {} of them", several.len())),
        };
        let window = header(fields, WINDOW).and_then(|text| text.parse().ok()).filter(|it| *it > 0);
        Ok(Self { agent, identifiers, window })
    }
}

/// An agent that is not admitted yet.
struct PendingAgent {
    proxy: Arc<Proxy>,
    link: Arc<Link>,
    stream: u32,
    peer: String,
    entry: Arc<Entry>,
    admitted: Arc<Notify>,
}

impl PendingAgent {
    fn admit(self, wanted: Wanted) {
        let proxy = &self.proxy;
        let same = proxy.backends.all().into_iter().find(|it| it.stream.agent == wanted.agent);
        if let Some(same) = same.filter(|it| it.stream.peer != self.peer) {
            tracing::info!("agent {} is connected from {} already", wanted.agent, same.stream.peer);
        }
        let stream = AgentStream {
            agent: wanted.agent,
            peer: self.peer,
            link: Arc::clone(&self.link),
            stream: self.stream,
            window: wanted.window,
            blocked: AtomicBool::new(false),
            metrics: Arc::clone(&proxy.metrics),
            shares: Arc::clone(&proxy.shares),
        };
        let backend = Backend::new(stream, wanted.identifiers);
        let count = proxy.server_count().to_string();
        let own_window = Window::initial(proxy.options.limits.connection_bytes).to_string();
        let mut metadata =
            vec![("serverid", proxy.options.server_id.as_str()), ("servercount", count.as_str())];
        if backend.stream.window.is_some() {
            metadata.push((WINDOW, &own_window));
        }
        // Before the headers: the agent sends as soon as it has them.
        let entered = self.entry.0.set(Arc::clone(&backend)).is_ok();
        self.admitted.notify_one();
        self.link.headers(self.stream, &response(&metadata));
        tracing::info!("{} is connected", backend.stream);
        proxy.backends.add(&backend);
        if !entered || !self.link.has_stream(self.stream) {
            // Disconnected while its token was verified.
            proxy.backends.remove(&backend);
            backend.end("it closed its connection");
        }
    }

    fn refuse(self, agent: &str, text: &str) {
        self.proxy.metrics.agents_refused.with_label_values(&["token"]).inc();
        tracing::warn!("agent {agent} ({}) is refused: {text}", self.peer);
        self.link.finish(self.stream, Some(trailers(Code::Unknown, text, true)));
        // An agent opens one stream, so the connection ends with a refusal.
        self.link.close(code::NO_ERROR, "");
    }
}

/// Checks that the token is the expected service account's.
async fn authenticate(tokens: &TokenAuth, authorization: &[String]) -> Result<(), String> {
    let value = match authorization {
        [value] => value,
        [] => return Err("Authentication context was not found in metadata".to_owned()),
        several => return Err(format!("too many ({}) tokens are received", several.len())),
    };
    let Some(token) = value.strip_prefix("Bearer ") else {
        return Err("received token does not have \"Bearer \" prefix".to_owned());
    };
    let validated = tokens
        .cluster
        .review(token, &tokens.audience)
        .await
        .and_then(|user| is_service_account(&user, &tokens.namespace, &tokens.service_account));
    validated.map_err(|error| format!("Failed to validate authentication token, err:{error}"))
}
