//! The sending side of a connection, and the windows of both directions.

mod receiving;
mod state;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;

pub(crate) use receiving::Standing;
use state::{End, Phase, State};

use super::code;
use super::driven::Driven;
use super::frame::{self, kind, setting};
use super::hpack::MOST_BYTES;
use super::role::Role;

/// The settings this side offers.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Window of each stream, in bytes.
    pub stream_window: i64,
    /// Window of the connection, in bytes.
    pub connection_window: i64,
    /// Streams a client may have open at a time.
    pub streams: usize,
}

/// A handle for sending on a connection.
#[derive(Debug)]
pub struct Link {
    role: Role,
    state: Driven<State>,
    /// Time at which bytes were last received, by [`crate::clock::millis`].
    last_received: AtomicU64,
}

/// Senders wait above this many bytes in the queues, and go on below it.
const ROOM: usize = 256 * 1024;
/// Bytes that a woken sender is expected to queue.
const QUANTUM: usize = 64 * 1024;
/// Bytes handed to the socket at a time.
const FILL: usize = 64 * 1024;
/// Limit of queued answers to SETTINGS and PING; a peer that reads none of them is disconnected.
const MOST_CONTROL: usize = 1 << 20;

impl Link {
    /// A new connection, with preface and settings queued.
    pub fn new(role: Role, offer: Settings) -> Arc<Self> {
        let mut control = Vec::with_capacity(128);
        if role == Role::Client {
            control.extend_from_slice(frame::PREFACE);
        }
        let mut settings = vec![
            (setting::INITIAL_WINDOW_SIZE, offer.stream_window as u32),
            (setting::MAX_FRAME_SIZE, frame::OWN_FRAME as u32),
            (setting::MAX_HEADER_LIST_SIZE, MOST_BYTES as u32),
        ];
        settings.push(match role {
            Role::Client => (setting::ENABLE_PUSH, 0),
            Role::Server => (setting::MAX_CONCURRENT_STREAMS, offer.streams as u32),
        });
        frame::put_head(&mut control, settings.len() * 6, kind::SETTINGS, 0, 0);
        for (name, value) in settings {
            control.extend_from_slice(&name.to_be_bytes());
            control.extend_from_slice(&value.to_be_bytes());
        }
        let more = offer.connection_window - frame::DEFAULT_WINDOW;
        if more > 0 {
            frame::put_window(&mut control, 0, more);
        }
        let state = State {
            offer,
            control,
            streams: HashMap::new(),
            ready: VecDeque::new(),
            backlog: 0,
            window: frame::DEFAULT_WINDOW,
            peer_window: frame::DEFAULT_WINDOW,
            peer_frame: frame::DEFAULT_FRAME,
            receive_left: offer.connection_window.max(frame::DEFAULT_WINDOW),
            receive_used: 0,
            forget: false,
            next_stream: 1,
            last_remote: 0,
            closed: VecDeque::new(),
            last_forgotten: 0,
            phase: Phase::Open,
            waiting: VecDeque::new(),
            ping_sent: None,
        };
        Arc::new(Self {
            role,
            state: Driven::new(state),
            last_received: AtomicU64::new(crate::millis()),
        })
    }

    /// This side's role.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Opens a stream as a client; `None` when the connection is at its end.
    pub fn request(&self, block: &[u8]) -> Option<u32> {
        self.state.change(|state| {
            if state.phase != Phase::Open {
                return None;
            }
            let stream = state.next_stream;
            state.next_stream += 2;
            state.open(stream);
            let block = state.block(block);
            frame::put_headers(&mut state.control, stream, &block, false, state.peer_frame);
            Some(stream)
        })
    }

    /// Sends the headers of a response.
    pub fn headers(&self, stream: u32, block: &[u8]) {
        self.state.change(|state| {
            if state.phase == Phase::Open && state.streams.contains_key(&stream) {
                let block = state.block(block);
                frame::put_headers(&mut state.control, stream, &block, false, state.peer_frame);
            }
        });
    }

    /// Queues bytes; returns how many are queued on the stream now, or `None` if it has ended.
    pub fn send(&self, stream: u32, bytes: Bytes) -> Option<usize> {
        self.state.change(|state| {
            let it = state.streams.get_mut(&stream)?;
            if !matches!(it.end, End::Open) || state.phase != Phase::Open {
                return None;
            }
            it.queued += bytes.len();
            let queued = it.queued;
            state.backlog += bytes.len();
            it.queue.push_back(bytes);
            state.make_ready(stream);
            Some(queued)
        })
    }

    /// Ends our side of a stream after its queue, a server's with trailers.
    pub fn finish(&self, stream: u32, trailers: Option<Vec<u8>>) {
        self.state.change(|state| {
            if let Some(it) = state.streams.get_mut(&stream)
                && matches!(it.end, End::Open)
            {
                it.end = End::Wanted(trailers);
                state.make_ready(stream);
            }
        });
    }

    /// Discards a stream's queue and ends it as [`Link::finish`] does.
    pub fn cut(&self, stream: u32, trailers: Vec<u8>) {
        self.state.change(|state| {
            state.drop_queue(stream);
            if let Some(it) = state.streams.get_mut(&stream)
                && matches!(it.end, End::Open)
            {
                it.end = End::Wanted(Some(trailers));
                state.make_ready(stream);
            }
        });
        self.wake_waiting();
    }

    /// Ends both directions of a stream at once and discards its queue.
    pub fn reset(&self, stream: u32, code: u32) {
        self.state.change(|state| {
            if state.forget(stream) {
                frame::put_reset(&mut state.control, stream, code);
            }
        });
        self.wake_waiting();
    }

    /// Gives received bytes of a stream back to the window.
    pub fn release(&self, stream: u32, bytes: usize) {
        if bytes > 0 && self.state.lock().release(stream, bytes as i64) {
            self.state.wake();
        }
    }

    /// Bytes queued on a stream.
    pub fn queued(&self, stream: u32) -> usize {
        self.state.lock().streams.get(&stream).map_or(0, |it| it.queued)
    }

    /// Returns whether a sender may queue more now; if not, wakes `waker` when it may, or when the
    /// connection has ended.
    pub fn has_room(&self, waker: &Waker) -> bool {
        let mut state = self.state.lock();
        let room = state.backlog < ROOM || state.phase == Phase::Closed;
        if !room {
            state.waiting.push_back(waker.clone());
        }
        room
    }

    /// As [`Link::has_room`], behind all senders that wait already.
    pub fn has_room_after_others(&self, waker: &Waker) -> bool {
        let mut state = self.state.lock();
        let room = state.waiting.is_empty() && state.backlog < ROOM;
        if !room && state.phase != Phase::Closed {
            state.waiting.push_back(waker.clone());
            return false;
        }
        true
    }

    /// Sends a ping unless one is on its way.
    pub fn ping(&self) {
        self.state.change(|state| {
            if state.ping_sent.is_none() && state.phase == Phase::Open {
                state.ping_sent = Some(crate::millis());
                frame::put_head(&mut state.control, 8, kind::PING, 0, 0);
                state.control.extend_from_slice(b"podgate\0");
            }
        });
    }

    /// Returns for how long a ping has been unanswered; any byte received since counts as an
    /// answer.
    pub fn silent_for(&self) -> Duration {
        let Some(sent) = self.state.lock().ping_sent else { return Duration::ZERO };
        let since = sent.max(self.last_received.load(Ordering::Relaxed));
        Duration::from_millis(crate::millis().saturating_sub(since))
    }

    /// Time since bytes were last received.
    pub fn idle_for(&self) -> Duration {
        let last_received = self.last_received.load(Ordering::Relaxed);
        Duration::from_millis(crate::millis().saturating_sub(last_received))
    }

    /// Closes the connection after all queued frames.
    pub fn close(&self, code: u32, why: &str) {
        self.go_away(code, why, Phase::Closing);
    }

    /// Announces that the connection accepts no new streams; those that are open go on.
    pub fn drain(&self, why: &str) {
        self.go_away(code::NO_ERROR, why, Phase::Open);
    }

    fn go_away(&self, code: u32, why: &str, next: Phase) {
        self.state.change(|state| {
            if state.phase == Phase::Open {
                state.phase = next;
                frame::put_head(&mut state.control, 8 + why.len(), kind::GOAWAY, 0, 0);
                state.control.extend_from_slice(&state.last_remote.to_be_bytes());
                state.control.extend_from_slice(&code.to_be_bytes());
                state.control.extend_from_slice(why.as_bytes());
            }
        });
    }

    /// Closes the connection now; its driver returns.
    pub fn abort(&self) {
        self.state.change(|state| {
            state.phase = Phase::Closed;
            state.control = Vec::new();
            state.streams = HashMap::new();
            state.ready = VecDeque::new();
            state.backlog = 0;
        });
        self.wake_waiting();
    }

    /// Returns whether the connection has ended or is about to.
    pub fn is_closed(&self) -> bool {
        self.state.lock().phase != Phase::Open
    }

    /// Wakes the driver, which queries its handler again.
    pub fn wake(&self) {
        self.state.wake();
    }

    /// Wakes as many waiting senders as fit.
    fn wake_waiting(&self) {
        loop {
            let mut state = self.state.lock();
            let closed = state.phase == Phase::Closed;
            if state.backlog >= ROOM && !closed || state.waiting.is_empty() {
                return;
            }
            let count = match closed {
                true => state.waiting.len(),
                false => (ROOM - state.backlog).div_ceil(QUANTUM).min(state.waiting.len()),
            };
            let woken: Vec<Waker> = state.waiting.drain(..count).collect();
            drop(state);
            woken.into_iter().for_each(Waker::wake);
            if !closed {
                return;
            }
        }
    }
}

/// For the driver.
impl Link {
    /// Appends what may be written now; calls `drained` for each stream with the bytes that left
    /// its queue. Wakes senders that wait for room.
    pub(super) fn fill(&self, out: &mut Vec<u8>, drained: &mut Vec<(u32, usize)>, waker: &Waker) {
        let mut state = self.state.lock();
        out.append(&mut state.control);
        state.control = Vec::new();
        while out.len() < FILL && state.fill_one(out, drained) {}
        state.set_driver(Some(waker));
        let wake = !state.waiting.is_empty() && state.backlog < ROOM;
        drop(state);
        if wake {
            self.wake_waiting();
        }
    }

    /// Wakes `waker` at the next change.
    pub(super) fn register(&self, waker: &Waker) {
        self.state.lock().set_driver(Some(waker));
    }

    /// Wakes no task until [`Link::fill`].
    pub(super) fn unregister(&self) {
        self.state.lock().set_driver(None);
    }

    pub(super) fn is_closing(&self) -> bool {
        self.state.lock().phase == Phase::Closing
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.state.lock().phase == Phase::Closed
    }

    pub(super) fn note_received(&self, now: u64) {
        self.last_received.store(now, Ordering::Relaxed);
    }
}

#[cfg(test)]
impl Link {
    /// Capacities of the tables of streams, of those that are ready, and of queued frames.
    pub(crate) fn room(&self) -> (usize, usize, usize) {
        let state = self.state.lock();
        (state.streams.capacity(), state.ready.capacity(), state.control.capacity())
    }
}
