//! From the agent to the frontend: its queue, its reader's pace, the credit for the agent.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http2::millis;

use super::{Connection, Phase, Sink, State};
use crate::grpc::{Code, trailers};
use crate::packet::Packet;

impl Connection {
    /// Queues bytes from the agent; returns true if the frontend's queue exceeds its limit.
    pub(crate) fn deliver(&self, raw: Bytes, bytes: Bytes) -> bool {
        let begin = Instant::now();
        let mut state = self.lock();
        if state.phase != Phase::Established {
            return false;
        }
        let metrics = self.metrics();
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
        let limit = self.options.limits.connection_bytes;
        if self.agent.window.is_some() { limit * 2 } else { limit }
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
        let limits = &self.options.limits;
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
        self.metrics().slow_readers.inc();
        match &self.sink {
            Sink::Stream(link, stream) => {
                link.cut(*stream, trailers(Code::ResourceExhausted, &why, false));
            }
            Sink::Raw(client) => client.raw.cut(),
        }
        // It has received data, so its dial is over.
        let _answered = self.part(&why, true);
        true
    }

    /// The frontend took bytes out of its queue.
    pub(crate) fn drained(&self, bytes: usize) {
        let mut state = self.lock();
        state.taken = millis();
        self.grant(&mut state, bytes, self.queued());
        drop(state);
        if self.agent.blocked.load(Ordering::Relaxed) {
            self.agent.link.wake();
        }
    }

    /// Sends the agent credit for `bytes` that the frontend has taken, while `queued` still wait.
    fn grant(&self, state: &mut State, bytes: usize, queued: usize) {
        if self.agent.window.is_none() || state.phase != Phase::Established {
            return;
        }
        if let Some(credit) = state.window.consume(bytes, queued, &self.agent.shares) {
            let bytes = i64::try_from(credit).unwrap_or(i64::MAX);
            let packet = Packet::Credit { connection: self.number(), bytes };
            self.agent.send(&packet);
        }
    }
}
