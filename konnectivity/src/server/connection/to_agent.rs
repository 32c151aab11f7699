//! From the frontend to the agent: the queue, the agent's credit, the room on its link.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Wake, Waker};

use bytes::Bytes;

use super::{Connection, Phase, Sink, State};

/// Bytes queued for the agent at which the frontend's window stays closed.
const QUEUE: usize = 64 * 1024;
/// Bytes one connection queues before others get their turn.
const QUANTUM: usize = 64 * 1024;

impl Connection {
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

    pub(super) fn release(&self, state: &mut State) {
        let held = std::mem::take(&mut state.held);
        match &self.sink {
            Sink::Stream(link, stream) => link.release(*stream, held),
            Sink::Raw(client) => client.raw.wake(),
        }
    }

    /// Moves messages to the agent's link, within its credit and room.
    pub(super) fn pump(self: &Arc<Self>, state: &mut State) {
        let link = &self.agent.link;
        let mut sent = 0;
        let had = state.queued;
        while !state.queue.is_empty() && !state.waiting {
            if self.agent.window.is_some() && state.credit <= 0 {
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
            self.metrics().to_agent.count_data();
            self.metrics().bytes_to_agent.inc_by(raw.len() as u64);
            link.send(self.agent.stream, raw);
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
}

impl Wake for Connection {
    fn wake(self: Arc<Self>) {
        let mut state = self.lock();
        state.waiting = false;
        self.pump(&mut state);
    }
}
