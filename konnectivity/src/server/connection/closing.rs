//! Closing of connections: by the frontend, by the agent, or because either is gone.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::{Connection, Phase, Sink, State};
use crate::audit::Record;
use crate::grpc::message;
use crate::packet::Packet;
use http2::millis;

/// Timeout of the answer to a close; equals the original client's.
const CLOSE: Duration = Duration::from_secs(10);

impl Connection {
    /// Handles the frontend's close; answered when the agent has answered.
    pub(crate) fn close(self: &Arc<Self>) {
        let mut state = self.lock();
        if state.phase == Phase::Established && state.closing.is_none() {
            state.closing = Some(millis());
            self.pump(&mut state);
        }
    }

    /// Handles the end of the frontend's own direction. The agent ends the target's after the queue, and bytes that the
    /// target still sends are delivered. False if the agent can only end both directions.
    pub(crate) fn half_close(self: &Arc<Self>) -> bool {
        let mut state = self.lock();
        if self.agent.window.is_none() || state.phase != Phase::Established {
            return false;
        }
        if state.closing.is_none() {
            state.closing = Some(millis());
            state.half_closed = true;
            self.pump(&mut state);
        }
        true
    }

    pub(super) fn request_close(&self, half: bool) {
        let request = Packet::CloseRequest { connection: self.number(), half };
        self.agent.send(&request);
    }

    /// Handles a frontend that cancelled the dial or disconnected. Returns whether the dial is to
    /// be cancelled at the agent.
    #[must_use]
    pub(crate) fn part(self: &Arc<Self>, why: &str, at_once: bool) -> bool {
        let mut state = self.lock();
        match state.phase {
            Phase::Pending => {
                state.phase = Phase::Closed;
                let metrics = self.metrics();
                metrics.pending.add(-1);
                metrics.dial_failures.with_label_values(&["frontend_close"]).inc();
                self.audit(&state, &format!("dial given up: {why}"));
                return true;
            }
            Phase::Established => {
                state.phase = Phase::Closing;
                self.finished(&state, why);
                state.closing.get_or_insert(millis());
                if std::mem::take(&mut state.half_closed) {
                    // Now the other direction ends as well.
                    state.close_sent = false;
                }
                if at_once {
                    state.queue = VecDeque::new();
                    state.queued = 0;
                }
                self.pump(&mut state);
                self.release(&mut state);
            }
            Phase::Closing | Phase::Closed => {}
        }
        false
    }

    /// Handles an agent that closed the connection or disconnected.
    pub(crate) fn closed_by_agent(&self, error: &str) {
        let mut state = self.lock();
        if state.phase == Phase::Established {
            match &self.sink {
                Sink::Stream(link, stream) => {
                    let packet = Packet::CloseResponse {
                        error: error.to_owned(),
                        connection: self.number(),
                    };
                    self.metrics().to_client.count(&packet);
                    link.send(*stream, message(&packet));
                }
                Sink::Raw(client) => client.raw.finish(),
            }
            let requested = state.closing.is_some();
            let why = match error {
                "" if requested => "closed by client",
                "" => "closed by target",
                error => error,
            };
            self.finished(&state, why);
        }
        state.phase = Phase::Closed;
        state.queue = VecDeque::new();
        state.queued = 0;
        self.release(&mut state);
    }

    pub(crate) fn close_is_late(&self) -> bool {
        let state = self.lock();
        let limit = if state.half_closed { self.options.limits.half_closed } else { CLOSE };
        state.closing.is_some_and(|since| u128::from(millis() - since) > limit.as_millis())
    }

    /// Handles an unanswered close: sends it once more and ends the connection.
    pub(crate) fn give_up_closing(self: &Arc<Self>) {
        self.request_close(false);
        let half_closed = self.lock().half_closed;
        // A target that keeps its direction open without a byte answers nothing either.
        self.closed_by_agent(if half_closed { "" } else { "the agent did not answer the close" });
    }

    fn finished(&self, state: &State, why: &str) {
        let metrics = self.metrics();
        metrics.established.add(-1);
        metrics.connection_duration.observe(self.age().as_secs_f64());
        self.audit(state, why);
    }

    pub(super) fn audit(&self, state: &State, outcome: &str) {
        self.options.audit.write(&Record {
            role: "server",
            who: &self.who,
            target: &self.target,
            agent: &self.agent.agent,
            connection: self.number(),
            to_target: state.to_target,
            from_target: state.from_target,
            duration: self.age(),
            outcome,
        });
    }
}
