//! Streams, windows and queues of a connection, and the order of sending.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::task::Waker;

use bytes::{Buf, Bytes};

use super::Settings;
use crate::code;
use crate::frame::{self, flag, kind};

/// Maximum of closed streams recorded.
const REMEMBERED: usize = 32;
/// Streams a table may have room for when none is open.
const SPARE: usize = 64;

#[derive(Debug)]
pub(super) struct State {
    pub(super) offer: Settings,
    /// Frames other than DATA, ready to go.
    pub(super) control: Vec<u8>,
    pub(super) streams: HashMap<u32, Stream>,
    /// Streams with something to send and a window for it, each once.
    pub(super) ready: VecDeque<u32>,
    /// Bytes in all queues.
    pub(super) backlog: usize,
    /// Send window of the connection.
    pub(super) window: i64,
    pub(super) peer_window: i64,
    pub(super) peer_frame: usize,
    /// Receive window of the connection, and bytes consumed since the last update.
    pub(super) receive_left: i64,
    pub(super) receive_used: i64,
    /// The peer reduced its header table; the next header block has to begin with a size update.
    pub(super) forget: bool,
    pub(super) next_stream: u32,
    /// The last stream the peer opened.
    pub(super) last_remote: u32,
    /// Streams closed last, and whether the peer had ended its side.
    pub(super) closed: VecDeque<(u32, bool)>,
    /// The highest number that left `closed`.
    pub(super) last_forgotten: u32,
    pub(super) phase: Phase,
    pub(super) waiting: VecDeque<Waker>,
    pub(super) ping_sent: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    /// Ends when everything is written.
    Closing,
    Closed,
}

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) window: i64,
    pub(super) queue: VecDeque<Bytes>,
    pub(super) queued: usize,
    pub(super) in_ready: bool,
    pub(super) end: End,
    pub(super) remote_ended: bool,
    /// The headers that open the peer's message came.
    pub(super) answered: bool,
    pub(super) receive_left: i64,
    pub(super) receive_used: i64,
}

#[derive(Debug)]
pub(super) enum End {
    Open,
    /// After the queue: a header block, or none.
    Wanted(Option<Vec<u8>>),
    Sent,
}

impl State {
    pub(super) fn open(&mut self, stream: u32) {
        let it = Stream {
            window: self.peer_window,
            queue: VecDeque::new(),
            queued: 0,
            in_ready: false,
            end: End::Open,
            remote_ended: false,
            answered: false,
            receive_left: self.offer.stream_window,
            receive_used: 0,
        };
        self.streams.insert(stream, it);
    }

    /// A header block as it is to be sent now (RFC 7541, section 4.2).
    pub(super) fn block<'a>(&mut self, block: &'a [u8]) -> Cow<'a, [u8]> {
        match std::mem::take(&mut self.forget) {
            true => [&[frame::FORGET], block].concat().into(),
            false => block.into(),
        }
    }

    pub(super) fn make_ready(&mut self, stream: u32) {
        if let Some(it) = self.streams.get_mut(&stream) {
            let data = !it.queue.is_empty() && it.window > 0;
            let end = it.queue.is_empty() && matches!(it.end, End::Wanted(_));
            if (data || end) && !it.in_ready {
                it.in_ready = true;
                self.ready.push_back(stream);
            }
        }
    }

    pub(super) fn drop_queue(&mut self, stream: u32) {
        if let Some(it) = self.streams.get_mut(&stream) {
            self.backlog -= it.queued;
            it.queued = 0;
            it.queue = VecDeque::new();
        }
    }

    /// Records how a stream ended; only the last ones are kept.
    pub(super) fn remember(&mut self, stream: u32, remote_ended: bool) {
        if self.closed.len() == REMEMBERED
            && let Some((oldest, _)) = self.closed.pop_front()
        {
            self.last_forgotten = self.last_forgotten.max(oldest);
        }
        self.closed.push_back((stream, remote_ended));
    }

    /// Closes a stream; false if it was closed before.
    pub(super) fn forget(&mut self, stream: u32) -> bool {
        self.drop_queue(stream);
        let Some(it) = self.streams.remove(&stream) else { return false };
        self.remember(stream, it.remote_ended);
        if self.streams.is_empty() && self.streams.capacity() > SPARE {
            self.streams = HashMap::new();
            self.ready = VecDeque::new();
        }
        true
    }

    /// Writes one frame of the next stream in turn; false if there is nothing to write.
    pub(super) fn fill_one(&mut self, out: &mut Vec<u8>, drained: &mut Vec<(u32, usize)>) -> bool {
        let Some(stream) = self.ready.pop_front() else { return false };
        let Some(it) = self.streams.get_mut(&stream) else { return true };
        it.in_ready = false;
        if it.queue.is_empty() {
            if let End::Wanted(trailers) = std::mem::replace(&mut it.end, End::Sent) {
                let remote_ended = it.remote_ended;
                match &trailers {
                    Some(block) => {
                        let block = self.block(block);
                        frame::put_headers(out, stream, &block, true, self.peer_frame);
                    }
                    None => frame::put_head(out, 0, kind::DATA, flag::END_STREAM, stream),
                }
                // A server that has answered stops the rest of the request (section 8.1).
                if trailers.is_some() && !remote_ended {
                    frame::put_reset(out, stream, code::NO_ERROR);
                }
                if trailers.is_some() || remote_ended {
                    self.forget(stream);
                }
            }
            return true;
        }
        if self.window <= 0 {
            it.in_ready = true;
            self.ready.push_front(stream);
            return false;
        }
        let room = it.window.min(self.window).min(self.peer_frame as i64);
        // A window that shrank comes back with an update (section 6.9.2).
        let room = usize::try_from(room).unwrap_or(0).min(it.queued);
        if room == 0 {
            return true;
        }
        frame::put_head(out, room, kind::DATA, 0, stream);
        let mut left = room;
        while left > 0
            && let Some(front) = it.queue.front_mut()
        {
            let take = left.min(front.len());
            out.extend_from_slice(&front[..take]);
            front.advance(take);
            if front.is_empty() {
                it.queue.pop_front();
            }
            left -= take;
        }
        if it.queue.is_empty() {
            it.queue = VecDeque::new();
        }
        it.queued -= room;
        it.window -= room as i64;
        self.window -= room as i64;
        self.backlog -= room;
        drained.push((stream, room));
        self.make_ready(stream);
        true
    }

    /// Returns whether a window update was queued.
    pub(super) fn release(&mut self, stream: u32, bytes: i64) -> bool {
        let mut appended = false;
        self.receive_used += bytes;
        if self.receive_used * 4 >= self.offer.connection_window {
            frame::put_window(&mut self.control, 0, self.receive_used);
            self.receive_left += self.receive_used;
            self.receive_used = 0;
            appended = true;
        }
        if let Some(it) = self.streams.get_mut(&stream) {
            it.receive_used += bytes;
            if it.receive_used * 4 >= self.offer.stream_window && !it.remote_ended {
                frame::put_window(&mut self.control, stream, it.receive_used);
                it.receive_left += it.receive_used;
                it.receive_used = 0;
                appended = true;
            }
        }
        appended
    }
}
