//! One proxied connection, from dial to close.
//!
//! ```text
//!   frontend ──submit──▶ queue ──pump──▶ agent's link        (credit, room on the link)
//!   frontend ◀─ sink's own queue ◀──deliver── agent's link   (drained: credit to the agent)
//! ```
//!
//! Locks: the state's before a link's; never with a backend's table.

mod closing;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::backend::Backend;
use super::connect_frontend::Client;
use super::proxy::Proxy;
use crate::audit::Record;
use crate::grpc::{Status, message, trailers};
use crate::packet::Packet;
use crate::window::Window;
use http2::{Link, millis};

/// Destination of bytes for the API server.
#[derive(Debug)]
pub(crate) enum Sink {
    /// A gRPC stream.
    Stream(Arc<Link>, u32),
    /// A CONNECT request.
    Raw(Arc<Client>),
}

/// Why a dial failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// The metric's label.
    pub(crate) reason: &'static str,
    /// The error text for the API server.
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn no_agent() -> Self {
        Self { reason: "no_agent", text: "No agent available".to_owned() }
    }

    pub(crate) fn too_many() -> Self {
        let text = "too many dials wait for this agent already".to_owned();
        Self { reason: "too_many_pending", text }
    }
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Connection {
    proxy: Arc<Proxy>,
    pub(crate) backend: Arc<Backend>,
    sink: Sink,
    pub(crate) who: Arc<str>,
    pub(crate) target: String,
    /// The dial's number towards the agent.
    pub(crate) dial: i64,
    /// The dial's number towards the frontend.
    pub(crate) client_dial: i64,
    started: u64,
    number: AtomicI64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// Messages for the agent.
    queue: VecDeque<Bytes>,
    queued: usize,
    /// Received bytes not yet returned to the frontend's window.
    held: usize,
    /// Credit from the agent, in bytes.
    credit: i64,
    /// What the agent may send.
    window: Window,
    /// The link's driver wakes this connection when it has room.
    waiting: bool,
    /// A close is wanted, after the queue: since when, or since the last byte from the target if
    /// the frontend still takes them.
    closing: Option<u64>,
    /// The frontend has ended its own direction only.
    half_closed: bool,
    close_sent: bool,
    /// When the frontend last took bytes.
    taken: u64,
    to_target: u64,
    from_target: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Pending,
    Established,
    /// Waiting for the agent's answer to the close; the frontend is gone.
    Closing,
    Closed,
}

/// Bytes queued for the agent at which the frontend's window stays closed.
const QUEUE: usize = 64 * 1024;
/// What one connection may queue before others get their turn.
const QUANTUM: usize = 64 * 1024;

impl Connection {
    /// Dials `target` through an agent. A failure is counted and audited, and returned.
    pub(crate) fn dial(
        proxy: &Arc<Proxy>,
        sink: Sink,
        who: &Arc<str>,
        target: &str,
        wanted: i64,
    ) -> Result<Arc<Self>, Failure> {
        let begun = Self::begin(proxy, sink, who, target, wanted);
        match &begun {
            Ok(connection) => {
                proxy.metrics.pending.add(1);
                let request = Packet::DialRequest {
                    protocol: "tcp".to_owned(),
                    address: target.to_owned(),
                    random: connection.dial,
                };
                // If the agent goes away just now, its end fails the dial.
                connection.backend.send(proxy, &request);
            }
            Err(failure) => {
                proxy.metrics.dial_failures.with_label_values(&[failure.reason]).inc();
                let outcome = format!("dial failed: {}", failure.text);
                let record =
                    Record { role: "server", who, target, outcome: &outcome, ..Record::default() };
                proxy.options.audit.write(&record);
            }
        }
        begun
    }

    fn begin(
        proxy: &Arc<Proxy>,
        sink: Sink,
        who: &Arc<str>,
        target: &str,
        wanted: i64,
    ) -> Result<Arc<Self>, Failure> {
        if let Some(rules) = &proxy.options.rules {
            rules.ask_literal(target).map_err(|text| Failure { reason: "denied_by_rule", text })?;
        }
        let backend = proxy.backends.choose(target).ok_or_else(Failure::no_agent)?;
        backend.begin(proxy.options.limits.pending_dials, wanted, |dial| {
            let credit = backend.window.map_or(0, |it| i64::try_from(it).unwrap_or(i64::MAX));
            let now = millis();
            Arc::new(Self {
                proxy: Arc::clone(proxy),
                backend: Arc::clone(&backend),
                sink,
                who: Arc::clone(who),
                target: target.to_owned(),
                dial,
                client_dial: wanted,
                started: now,
                number: AtomicI64::new(0),
                state: Mutex::new(State {
                    phase: Phase::Pending,
                    queue: VecDeque::new(),
                    queued: 0,
                    held: 0,
                    credit,
                    window: Window::new(proxy.options.limits.connection_bytes),
                    waiting: false,
                    closing: None,
                    half_closed: false,
                    close_sent: false,
                    taken: now,
                    to_target: 0,
                    from_target: 0,
                }),
            })
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The agent's number for it; 0 before it is established.
    pub(crate) fn number(&self) -> i64 {
        self.number.load(Ordering::Relaxed)
    }

    pub(crate) fn age(&self) -> Duration {
        Duration::from_millis(millis().saturating_sub(self.started))
    }

    /// Handles a successful dial; false if the connection was closed in the meantime.
    pub(crate) fn establish(&self, number: i64) -> bool {
        let mut state = self.lock();
        if state.phase != Phase::Pending {
            return false;
        }
        self.number.store(number, Ordering::Relaxed);
        state.phase = Phase::Established;
        let metrics = &self.proxy.metrics;
        metrics.pending.add(-1);
        metrics.established.add(1);
        metrics.dial_duration.observe(self.age().as_secs_f64());
        // Under the lock, so that it precedes the first data.
        self.answer(Ok(number));
        true
    }

    fn answer(&self, result: Result<i64, &str>) {
        match &self.sink {
            Sink::Stream(link, stream) => {
                let packet = Packet::DialResponse {
                    error: result.err().unwrap_or_default().to_owned(),
                    connection: result.unwrap_or_default(),
                    random: self.client_dial,
                };
                self.proxy.metrics.to_client.count(&packet);
                link.send(*stream, message(&packet));
            }
            Sink::Raw(client) => client.dialed(result.map(|_| ()).map_err(str::to_owned)),
        }
    }

    /// The dial failed.
    pub(crate) fn fail(&self, failure: &Failure) {
        let mut state = self.lock();
        if state.phase != Phase::Pending {
            return;
        }
        state.phase = Phase::Closed;
        self.proxy.metrics.pending.add(-1);
        self.proxy.metrics.dial_failures.with_label_values(&[failure.reason]).inc();
        self.answer(Err(&failure.text));
        self.release(&mut state);
        self.audit(&state, &format!("dial failed: {}", failure.text));
    }

    /// Handles a dial that the agent cancelled.
    pub(crate) fn dial_closed(&self) {
        if let Sink::Raw(_) = &self.sink {
            let text = "the agent gave the dial up".to_owned();
            return self.fail(&Failure { reason: "backend_close", text });
        }
        let mut state = self.lock();
        if state.phase != Phase::Pending {
            return;
        }
        state.phase = Phase::Closed;
        self.proxy.metrics.pending.add(-1);
        self.proxy.metrics.dial_failures.with_label_values(&["backend_close"]).inc();
        if let Sink::Stream(link, stream) = &self.sink {
            let packet = Packet::DialClosed { random: self.client_dial };
            self.proxy.metrics.to_client.count(&packet);
            link.send(*stream, message(&packet));
        }
        self.release(&mut state);
        self.audit(&state, "dial failed: the agent gave it up");
    }

    /// Bytes from the frontend, as a message with `count` bytes of content. They count against
    /// its window until they are on their way.
    pub(crate) fn submit(self: &Arc<Self>, raw: Bytes, count: usize) {
        let mut state = self.lock();
        if state.phase != Phase::Established || state.closing.is_some() {
            return;
        }
        state.to_target += count as u64;
        state.queued += raw.len();
        state.queue.push_back(raw);
        self.pump(&mut state);
    }

    /// Returns whether the frontend may send more now; if not, it is woken later.
    pub(crate) fn has_room(&self) -> bool {
        self.lock().queued < QUEUE
    }

    /// Returns bytes to the frontend's window when there is room.
    pub(crate) fn hold(&self, bytes: usize) {
        let mut state = self.lock();
        state.held += bytes;
        if state.queued < QUEUE || state.phase != Phase::Established {
            self.release(&mut state);
        }
    }

    fn release(&self, state: &mut State) {
        let held = std::mem::take(&mut state.held);
        match &self.sink {
            Sink::Stream(link, stream) => link.release(*stream, held),
            Sink::Raw(client) => client.raw.wake(),
        }
    }

    /// Moves messages to the agent's link, within its credit and room.
    fn pump(self: &Arc<Self>, state: &mut State) {
        let link = &self.backend.link;
        let mut sent = 0;
        let had = state.queued;
        while !state.queue.is_empty() && !state.waiting {
            if self.backend.window.is_some() && state.credit <= 0 {
                break;
            }
            let waker = Waker::from(Arc::clone(self));
            let room = match sent < QUANTUM {
                true => link.has_room(&waker),
                false => link.has_room_after_others(&waker),
            };
            if !room {
                state.waiting = true;
                break;
            }
            if sent >= QUANTUM {
                sent = 0;
            }
            let Some(raw) = state.queue.pop_front() else { break };
            sent += raw.len();
            state.queued -= raw.len();
            state.credit -= raw.len() as i64;
            self.proxy.metrics.to_agent.count_data();
            self.proxy.metrics.bytes_to_agent.inc_by(raw.len() as u64);
            link.send(self.backend.stream, raw);
        }
        if state.queue.is_empty() {
            state.queue = VecDeque::new();
            if state.closing.is_some() && !state.close_sent {
                state.close_sent = true;
                self.request_close(state.half_closed);
            }
        }
        if state.queued < QUEUE && (state.held > 0 || had >= QUEUE) {
            self.release(state);
        }
    }

    /// Adds credit from the agent.
    pub(crate) fn credit(self: &Arc<Self>, bytes: i64) {
        let mut state = self.lock();
        state.credit = state.credit.saturating_add(bytes.max(0)).min(i64::from(u32::MAX));
        self.pump(&mut state);
    }

    /// Queues bytes from the agent; returns true if the frontend's queue exceeds its limit.
    pub(crate) fn deliver(&self, raw: Bytes, bytes: Bytes) -> bool {
        let begin = Instant::now();
        let mut state = self.lock();
        if state.phase != Phase::Established {
            return false;
        }
        let metrics = &self.proxy.metrics;
        state.from_target += bytes.len() as u64;
        if state.half_closed {
            state.closing = Some(millis());
        }
        metrics.bytes_from_agent.inc_by(bytes.len() as u64);
        let count = raw.len();
        let queued = match &self.sink {
            Sink::Stream(link, stream) => {
                metrics.to_client.count_data();
                link.send(*stream, raw)
            }
            Sink::Raw(client) => {
                // What is not queued needs no room.
                self.grant(&mut state, count - bytes.len(), client.raw.queued());
                client.raw.push(bytes)
            }
        };
        let queued = queued.unwrap_or_default();
        if queued <= count {
            state.taken = millis();
        }
        drop(state);
        metrics.frontend_write.observe(begin.elapsed().as_secs_f64());
        queued > self.limit()
    }

    /// Limit of the frontend's queue: the agent may exceed its window by one packet.
    fn limit(&self) -> usize {
        let limit = self.proxy.options.limits.connection_bytes;
        if self.backend.window.is_some() { limit * 2 } else { limit }
    }

    /// Bytes that wait for the frontend.
    fn queued(&self) -> usize {
        match &self.sink {
            Sink::Stream(link, stream) => link.queued(*stream),
            Sink::Raw(client) => client.raw.queued(),
        }
    }

    /// Returns whether the frontend has caught up enough for reading the agent's link again.
    pub(crate) fn has_caught_up(&self) -> bool {
        self.queued() <= self.limit() / 2 || self.lock().phase != Phase::Established
    }

    /// Closes the connection if its reader has taken nothing for too long; returns whether it did.
    pub(crate) fn cut_if_stalled(self: &Arc<Self>) -> bool {
        let stalled = Duration::from_millis(millis().saturating_sub(self.lock().taken));
        let limits = &self.proxy.options.limits;
        if stalled < limits.slow_reader {
            return false;
        }
        let why = format!(
            "connection {} to {}: its reader took nothing for {:.1} s while {} bytes waited",
            self.number(),
            self.target,
            stalled.as_secs_f64(),
            limits.connection_bytes,
        );
        tracing::warn!("{why}");
        self.proxy.metrics.slow_readers.inc();
        match &self.sink {
            Sink::Stream(link, stream) => {
                link.cut(*stream, trailers(Status::ResourceExhausted, &why, false));
            }
            Sink::Raw(client) => client.raw.cut(),
        }
        self.part(&why, true);
        true
    }

    /// The frontend took bytes out of its queue.
    pub(crate) fn drained(&self, bytes: usize) {
        let mut state = self.lock();
        state.taken = millis();
        self.grant(&mut state, bytes, self.queued());
        drop(state);
        if self.backend.blocked.load(Ordering::Relaxed) {
            self.backend.link.wake();
        }
    }

    /// Sends the agent credit for `bytes` that the frontend has taken, while `queued` still wait.
    fn grant(&self, state: &mut State, bytes: usize, queued: usize) {
        if self.backend.window.is_none() || state.phase != Phase::Established {
            return;
        }
        if let Some(credit) = state.window.consume(bytes, queued) {
            let bytes = i64::try_from(credit).unwrap_or(i64::MAX);
            let packet = Packet::Credit { connection: self.number(), bytes };
            self.backend.send(&self.proxy, &packet);
        }
    }
}

impl Wake for Connection {
    fn wake(self: Arc<Self>) {
        let mut state = self.lock();
        state.waiting = false;
        self.pump(&mut state);
    }
}
