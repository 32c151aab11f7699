//! What is sent on a connection, and what the windows of both directions are.

mod state;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;

use state::{End, Phase, State};

use super::frame::{self, flag, kind, setting};
use super::receive::Role;
use super::{Fault, code};

/// Windows we offer, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Windows {
    pub(crate) stream: i64,
    pub(crate) connection: i64,
}

/// One connection, seen by those who send on it.
#[derive(Debug)]
pub(crate) struct Link {
    state: Mutex<State>,
    /// When the other side was heard last, by [`crate::clock::millis`].
    heard: AtomicU64,
}

/// Senders wait above this many bytes in the queues, and go on below it.
const ROOM: usize = 256 * 1024;
/// What a waiting sender is expected to bring when it is woken.
const QUANTUM: usize = 64 * 1024;
/// Bytes handed to the socket at a time.
const FILL: usize = 128 * 1024;
/// More answers than this to someone who reads none of them, and it is over.
const MOST_CONTROL: usize = 1 << 20;

impl Link {
    pub(crate) fn new(role: Role, windows: Windows) -> Arc<Self> {
        let mut control = Vec::with_capacity(128);
        if role == Role::Client {
            control.extend_from_slice(frame::PREFACE);
        }
        let mut settings = vec![
            (setting::INITIAL_WINDOW_SIZE, windows.stream as u32),
            (setting::MAX_FRAME_SIZE, frame::OWN_FRAME as u32),
        ];
        settings.push(match role {
            Role::Client => (setting::ENABLE_PUSH, 0),
            Role::Server => (setting::MAX_CONCURRENT_STREAMS, frame::OWN_STREAMS as u32),
        });
        frame::put_head(&mut control, settings.len() * 6, kind::SETTINGS, 0, 0);
        for (name, value) in settings {
            control.extend_from_slice(&name.to_be_bytes());
            control.extend_from_slice(&value.to_be_bytes());
        }
        let more = windows.connection - frame::DEFAULT_WINDOW;
        if more > 0 {
            frame::put_window(&mut control, 0, more);
        }
        let state = State {
            windows,
            control,
            streams: HashMap::new(),
            ready: VecDeque::new(),
            backlog: 0,
            window: frame::DEFAULT_WINDOW,
            peer_window: frame::DEFAULT_WINDOW,
            peer_frame: frame::DEFAULT_FRAME,
            receive_left: windows.connection.max(frame::DEFAULT_WINDOW),
            receive_used: 0,
            forget: false,
            next_stream: 1,
            phase: Phase::Open,
            driver: None,
            waiting: VecDeque::new(),
            ping_sent: None,
        };
        Arc::new(Self { state: Mutex::new(state), heard: AtomicU64::new(crate::clock::millis()) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, then wakes the driver.
    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let result = change(&mut state);
        let driver = state.driver.take();
        drop(state);
        if let Some(driver) = driver {
            driver.wake();
        }
        result
    }

    /// Opens a stream as a client; `None` when the connection is at its end.
    pub(crate) fn request(&self, block: &[u8]) -> Option<u32> {
        self.with(|state| {
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

    /// Sends the first headers of an answer.
    pub(crate) fn headers(&self, stream: u32, block: &[u8]) {
        self.with(|state| {
            if state.phase == Phase::Open && state.streams.contains_key(&stream) {
                let block = state.block(block);
                frame::put_headers(&mut state.control, stream, &block, false, state.peer_frame);
            }
        });
    }

    /// Queues bytes; gives back how many wait on the stream now, or `None` if it has ended.
    pub(crate) fn send(&self, stream: u32, bytes: Bytes) -> Option<usize> {
        self.with(|state| {
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

    /// Ends our side of a stream after what is queued, a server's with trailers.
    pub(crate) fn finish(&self, stream: u32, trailers: Option<Vec<u8>>) {
        self.with(|state| {
            if let Some(it) = state.streams.get_mut(&stream)
                && matches!(it.end, End::Open)
            {
                it.end = End::Wanted(trailers);
                state.make_ready(stream);
            }
        });
    }

    /// Throws away what is queued on a stream and ends it as [`Link::finish`] does.
    pub(crate) fn cut(&self, stream: u32, trailers: Vec<u8>) {
        self.with(|state| {
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

    /// Tells that bytes which arrived on a stream are consumed.
    pub(crate) fn release(&self, stream: u32, bytes: usize) {
        if bytes > 0 && self.lock().release(stream, bytes as i64) {
            self.with(|_| ());
        }
    }

    /// Bytes queued on a stream.
    pub(crate) fn queued(&self, stream: u32) -> usize {
        self.lock().streams.get(&stream).map_or(0, |it| it.queued)
    }

    /// Whether a sender may queue more now; if not, `waker` is woken when it may, or when the
    /// connection has ended.
    pub(crate) fn has_room(&self, waker: &Waker) -> bool {
        let mut state = self.lock();
        let room = state.backlog < ROOM || state.phase == Phase::Closed;
        if !room {
            state.waiting.push_back(waker.clone());
        }
        room
    }

    /// As [`Link::has_room`], behind everyone who waits already.
    pub(crate) fn has_room_after_others(&self, waker: &Waker) -> bool {
        let mut state = self.lock();
        let room = state.waiting.is_empty() && state.backlog < ROOM;
        if !room && state.phase != Phase::Closed {
            state.waiting.push_back(waker.clone());
            return false;
        }
        true
    }

    /// Sends a ping unless one is on its way.
    pub(crate) fn ping(&self) {
        self.with(|state| {
            if state.ping_sent.is_none() && state.phase == Phase::Open {
                state.ping_sent = Some(crate::clock::millis());
                frame::put_head(&mut state.control, 8, kind::PING, 0, 0);
                state.control.extend_from_slice(b"podgate\0");
            }
        });
    }

    /// For how long an answer to a ping is overdue; heard of at all since then counts.
    pub(crate) fn silent_for(&self) -> Duration {
        let Some(sent) = self.lock().ping_sent else { return Duration::ZERO };
        let since = sent.max(self.heard.load(Ordering::Relaxed));
        Duration::from_millis(crate::clock::millis().saturating_sub(since))
    }

    /// How long ago the other side was heard.
    pub(crate) fn idle_for(&self) -> Duration {
        let heard = self.heard.load(Ordering::Relaxed);
        Duration::from_millis(crate::clock::millis().saturating_sub(heard))
    }

    /// Ends the connection after everything that is queued.
    pub(crate) fn close(&self, code: u32, why: &str) {
        self.with(|state| {
            if state.phase == Phase::Open {
                state.phase = Phase::Closing;
                frame::put_head(&mut state.control, 8 + why.len(), kind::GOAWAY, 0, 0);
                state.control.extend_from_slice(&0x7fff_ffff_u32.to_be_bytes());
                state.control.extend_from_slice(&code.to_be_bytes());
                state.control.extend_from_slice(why.as_bytes());
            }
        });
    }

    /// Ends the connection now; its driver returns.
    pub(crate) fn abort(&self) {
        self.with(|state| {
            state.phase = Phase::Closed;
            state.control = Vec::new();
            state.streams = HashMap::new();
            state.ready = VecDeque::new();
            state.backlog = 0;
        });
        self.wake_waiting();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().phase != Phase::Open
    }

    /// Wakes the driver, so that it asks its handler again.
    pub(crate) fn wake(&self) {
        self.with(|_| ());
    }

    /// Wakes as many waiting senders as there is room for.
    fn wake_waiting(&self) {
        loop {
            let mut state = self.lock();
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
    /// Appends what may be written now; `drained` is told per stream what left its queue.
    /// Whoever waits for room is woken.
    pub(super) fn fill(&self, out: &mut Vec<u8>, drained: &mut Vec<(u32, usize)>, waker: &Waker) {
        let mut state = self.lock();
        out.append(&mut state.control);
        state.control = Vec::new();
        while out.len() < FILL && state.fill_one(out, drained) {}
        state.driver = Some(waker.clone());
        let wake = !state.waiting.is_empty() && state.backlog < ROOM;
        drop(state);
        if wake {
            self.wake_waiting();
        }
    }

    /// Wakes `waker` at the next change.
    pub(super) fn register(&self, waker: &Waker) {
        self.lock().driver = Some(waker.clone());
    }

    /// Wakes nobody until [`Link::fill`].
    pub(super) fn unregister(&self) {
        self.lock().driver = None;
    }

    pub(super) fn is_closing(&self) -> bool {
        self.lock().phase == Phase::Closing
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.lock().phase == Phase::Closed
    }

    pub(super) fn heard(&self) {
        self.heard.store(crate::clock::millis(), Ordering::Relaxed);
    }
}

/// For the receiver.
impl Link {
    /// Opens a stream the client asked for; false if it has too many.
    pub(super) fn accept(&self, stream: u32) -> bool {
        let mut state = self.lock();
        let few = state.streams.len() < frame::OWN_STREAMS;
        if few {
            state.open(stream);
        } else {
            frame::put_reset(&mut state.control, stream, code::REFUSED_STREAM);
        }
        few
    }

    pub(crate) fn has_stream(&self, stream: u32) -> bool {
        self.lock().streams.contains_key(&stream)
    }

    /// Whether a stream that is not open any more was ever opened by us.
    pub(super) fn was_opened(&self, stream: u32) -> bool {
        stream % 2 == 1 && stream < self.lock().next_stream
    }

    /// Counts bytes of a DATA frame; false if nobody wants them.
    pub(super) fn arrived(&self, stream: u32, bytes: usize) -> Result<bool, Fault> {
        let mut state = self.lock();
        let bytes = bytes as i64;
        let fault = |of| Fault::new(code::FLOW_CONTROL_ERROR, format!("{of}: beyond its window"));
        state.receive_left -= bytes;
        if state.receive_left < 0 {
            return Err(fault("connection".to_owned()));
        }
        if let Some(it) = state.streams.get_mut(&stream) {
            it.receive_left -= bytes;
            if it.receive_left < 0 {
                return Err(fault(format!("stream {stream}")));
            }
            return Ok(true);
        }
        state.release(stream, bytes);
        Ok(false)
    }

    pub(super) fn remote_ended(&self, stream: u32) {
        let mut state = self.lock();
        let Some(it) = state.streams.get_mut(&stream) else { return };
        it.remote_ended = true;
        if matches!(it.end, End::Sent) {
            state.forget(stream);
        }
    }

    pub(super) fn remote_reset(&self, stream: u32) {
        self.lock().forget(stream);
        self.wake_waiting();
    }

    pub(super) fn grow(&self, stream: u32, bytes: i64) -> Result<(), Fault> {
        let mut state = self.lock();
        let window = match state.streams.get_mut(&stream) {
            _ if stream == 0 => &mut state.window,
            Some(it) => &mut it.window,
            None => return Ok(()),
        };
        *window += bytes;
        if *window > frame::MOST_WINDOW {
            return Err(Fault::new(code::FLOW_CONTROL_ERROR, "a window above 2^31-1"));
        }
        if stream != 0 {
            state.make_ready(stream);
        }
        Ok(())
    }

    pub(super) fn setting(&self, name: u16, value: u32) -> Result<(), Fault> {
        let mut state = self.lock();
        match name {
            setting::INITIAL_WINDOW_SIZE => {
                let window = i64::from(value);
                if window > frame::MOST_WINDOW {
                    return Err(Fault::new(
                        code::FLOW_CONTROL_ERROR,
                        "an initial window above 2^31-1",
                    ));
                }
                let more = window - std::mem::replace(&mut state.peer_window, window);
                let ids: Vec<u32> = state.streams.keys().copied().collect();
                for id in ids {
                    if let Some(it) = state.streams.get_mut(&id) {
                        it.window += more;
                    }
                    state.make_ready(id);
                }
            }
            setting::HEADER_TABLE_SIZE => state.forget |= value < frame::DEFAULT_TABLE,
            setting::MAX_FRAME_SIZE => {
                if !(16_384..=16_777_215).contains(&value) {
                    return Err(Fault::new(code::PROTOCOL_ERROR, format!("frame size {value}")));
                }
                state.peer_frame = (value as usize).min(frame::OWN_FRAME);
            }
            _ => {}
        }
        Ok(())
    }

    /// Queues an answer to SETTINGS or PING.
    pub(super) fn acknowledge(&self, kind: u8, payload: &[u8]) -> Result<(), Fault> {
        let mut state = self.lock();
        if state.control.len() > MOST_CONTROL {
            return Err(Fault::new(code::ENHANCE_YOUR_CALM, "answers are asked for and not read"));
        }
        frame::put_head(&mut state.control, payload.len(), kind, flag::ACK, 0);
        state.control.extend_from_slice(payload);
        Ok(())
    }

    pub(super) fn ping_answered(&self) {
        self.lock().ping_sent = None;
    }
}
