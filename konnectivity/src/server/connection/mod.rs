//! One proxied connection, from dial to close.
//!
//! ```text
//!   frontend ──submit──▶ queue ──pump──▶ agent's link        (credit, room on the link)
//!   frontend ◀─ sink's own queue ◀──deliver── agent's link   (drained: credit to the agent)
//! ```
//!
//! Locks: the state's before a link's; never with a backend's table.

mod closing;
mod failure;
mod sink;
mod to_agent;
mod to_frontend;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use super::agent_stream::AgentStream;
use super::metrics::Metrics;
use super::options::Options;
use crate::grpc::message;
use crate::packet::Packet;
use crate::window::Window;
pub(crate) use failure::{Cause, Failure, Kind};
use http2::millis;
pub(crate) use sink::{Client, Sink};

/// One connection.
#[derive(Debug)]
pub(crate) struct Connection {
    options: Arc<Options>,
    agent: Arc<AgentStream>,
    sink: Sink,
    who: Arc<str>,
    target: String,
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
    /// The agent's window.
    window: Window,
    /// The link's driver wakes this connection when it has room.
    waiting: bool,
    /// A close is wanted, after the queue: since when, or since the last byte from the target if
    /// the frontend still takes them.
    closing: Option<u64>,
    /// The frontend has ended its own direction only.
    half_closed: bool,
    close_sent: bool,
    /// Time at which the frontend last took bytes.
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

impl Connection {
    /// A connection whose dial is to be sent.
    pub(crate) fn new(
        options: &Arc<Options>,
        agent: &Arc<AgentStream>,
        sink: Sink,
        who: &Arc<str>,
        target: &str,
        client_dial: i64,
        dial: i64,
    ) -> Arc<Self> {
        let now = millis();
        Arc::new(Self {
            options: Arc::clone(options),
            agent: Arc::clone(agent),
            sink,
            who: Arc::clone(who),
            target: target.to_owned(),
            dial,
            client_dial,
            started: now,
            number: AtomicI64::new(0),
            state: Mutex::new(State {
                phase: Phase::Pending,
                queue: VecDeque::new(),
                queued: 0,
                held: 0,
                credit: agent.window.map_or(0, |it| i64::try_from(it).unwrap_or(i64::MAX)),
                window: Window::new(options.limits.connection_bytes),
                waiting: false,
                closing: None,
                half_closed: false,
                close_sent: false,
                taken: now,
                to_target: 0,
                from_target: 0,
            }),
        })
    }

    fn metrics(&self) -> &Metrics {
        &self.agent.metrics
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
        let metrics = self.metrics();
        metrics.pending.add(-1);
        metrics.established.add(1);
        metrics.dial_duration.observe(self.age().as_secs_f64());
        // Under the lock, so that it precedes the first data.
        self.answer(Ok(number));
        true
    }

    fn answer(&self, result: Result<i64, &Failure>) {
        match &self.sink {
            Sink::Stream(link, stream) => {
                let packet = Packet::DialResponse {
                    error: result.err().map(|it| it.text.clone()).unwrap_or_default(),
                    connection: result.unwrap_or_default(),
                    random: self.client_dial,
                };
                self.metrics().to_client.count(&packet);
                link.send(*stream, message(&packet));
            }
            Sink::Raw(client) => client.dialed(result.map(|_| ()).map_err(Failure::clone)),
        }
    }

    /// The dial failed.
    pub(crate) fn fail(&self, failure: &Failure) {
        let mut state = self.lock();
        if state.phase != Phase::Pending {
            return;
        }
        state.phase = Phase::Closed;
        self.metrics().pending.add(-1);
        self.metrics().dial_failures.with_label_values(&[failure.kind.label()]).inc();
        self.answer(Err(failure));
        self.release(&mut state);
        self.audit(&state, &format!("dial failed: {}", failure.text));
    }

    /// Handles a dial that the agent cancelled.
    pub(crate) fn dial_closed(&self) {
        if let Sink::Raw(_) = &self.sink {
            let text = "the agent gave the dial up".to_owned();
            return self.fail(&Failure { kind: Kind::AgentGone, text });
        }
        let mut state = self.lock();
        if state.phase != Phase::Pending {
            return;
        }
        state.phase = Phase::Closed;
        self.metrics().pending.add(-1);
        self.metrics().dial_failures.with_label_values(&["backend_close"]).inc();
        if let Sink::Stream(link, stream) = &self.sink {
            let packet = Packet::DialClosed { random: self.client_dial };
            self.metrics().to_client.count(&packet);
            link.send(*stream, message(&packet));
        }
        self.release(&mut state);
        self.audit(&state, "dial failed: the agent gave it up");
    }
}
