//! A socket with plain bytes on one side, packets on the other: a target of the agent, a client
//! of the CONNECT frontend.
//!
//! Bytes for the socket wait in a queue, whose owner bounds it; bytes from the socket are read
//! only while the owner has room for them. An idle socket holds no buffer.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http2::Driven;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// The queue towards the socket.
#[derive(Debug, Default)]
pub(crate) struct Raw {
    state: Driven<State>,
}

#[derive(Debug)]
struct State {
    queue: VecDeque<Bytes>,
    queued: usize,
    end: End,
    /// Time at which the socket last took bytes.
    taken: u64,
}

impl Default for State {
    fn default() -> Self {
        let taken = http2::millis();
        Self { queue: VecDeque::new(), queued: 0, end: End::Open, taken }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Open,
    /// The socket's writing direction, when the queue is empty.
    Half,
    /// When the queue is empty.
    AfterQueue,
    Now,
}

/// The packets' side.
pub(crate) trait Owner: Send + Sync {
    /// Returns whether bytes may be read; if not, the owner calls [`Raw::wake`] when they may.
    fn has_room(&self) -> bool;
    /// Bytes that were read.
    fn read(&self, bytes: &[u8]);
    /// This many bytes of the queue were written.
    fn written(&self, bytes: usize);
    /// The other end has sent its last byte. True if bytes may still come for it, until
    /// [`Raw::finish`]; otherwise the socket is closed after the queue.
    fn half_closed(&self) -> bool {
        false
    }
}

/// Cause of a socket's end.
#[derive(Debug)]
pub(crate) enum Ended {
    /// Its other end closed it.
    ByPeer,
    /// [`Raw::finish`] or [`Raw::cut`].
    ByOwner,
    /// It failed.
    Failed(io::Error),
}

/// Timeout of writing the rest of the queue at the end.
const LINGER: Duration = Duration::from_secs(10);
/// Bytes read at a time. A packet of that many fits into the window that every client offers.
const READ: usize = 32 * 1024;
/// Rounds before other tasks get their turn.
const ROUNDS: usize = 16;

impl Raw {
    /// Queues bytes; returns how many are queued now, or `None` if the socket has ended.
    pub(crate) fn push(&self, bytes: Bytes) -> Option<usize> {
        self.state.change(|state| {
            if state.end != End::Open {
                return None;
            }
            if state.queue.is_empty() {
                state.taken = http2::millis();
            }
            state.queued += bytes.len();
            state.queue.push_back(bytes);
            Some(state.queued)
        })
    }

    /// Ends the writing direction when everything is written; what comes is read on.
    pub(crate) fn half_close(&self) {
        self.state.change(|state| {
            if state.end == End::Open {
                state.end = End::Half;
            }
        });
    }

    /// Closes the socket when everything is written.
    pub(crate) fn finish(&self) {
        self.state.change(|state| {
            if matches!(state.end, End::Open | End::Half) {
                state.end = End::AfterQueue;
            }
        });
    }

    /// Closes the socket.
    pub(crate) fn cut(&self) {
        self.state.change(|state| {
            state.end = End::Now;
            state.queue = VecDeque::new();
            state.queued = 0;
        });
    }

    /// Wakes the reading side, which queries the owner again.
    pub(crate) fn wake(&self) {
        self.state.wake();
    }

    /// Bytes that wait.
    pub(crate) fn queued(&self) -> usize {
        self.state.lock().queued
    }

    /// Time since the socket last took bytes, while bytes are queued.
    pub(crate) fn stalled_for(&self) -> Duration {
        let state = self.state.lock();
        match state.queue.is_empty() {
            true => Duration::ZERO,
            false => Duration::from_millis(http2::millis().saturating_sub(state.taken)),
        }
    }
}

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Transfers bytes until either side ends.
pub(crate) async fn run<I, O>(mut io: I, raw: &Raw, owner: &O) -> Ended
where
    I: AsyncRead + AsyncWrite + Unpin + Send,
    O: Owner,
{
    let mut task = Task {
        io: &mut io,
        raw,
        owner,
        dirty: false,
        half_closed: false,
        peer_ended: false,
        answering: false,
        linger: None,
    };
    let ended = poll_fn(|cx| {
        let mut buffer = BUFFER.take();
        buffer.resize(READ, 0);
        let poll = task.poll(cx, &mut buffer);
        BUFFER.set(buffer);
        poll
    })
    .await;
    raw.cut();
    // What is written reaches the other end before the end itself does.
    if matches!(ended, Ended::ByOwner | Ended::ByPeer) {
        let shutdown = poll_fn(|cx| Pin::new(&mut io).poll_shutdown(cx));
        let _late = tokio::time::timeout(Duration::from_secs(1), shutdown).await;
    }
    ended
}

struct Task<'a, I, O> {
    io: &'a mut I,
    raw: &'a Raw,
    owner: &'a O,
    dirty: bool,
    /// The writing direction is ended.
    half_closed: bool,
    peer_ended: bool,
    /// The other end has ended its direction and still takes bytes.
    answering: bool,
    linger: Option<Pin<Box<Sleep>>>,
}

impl<I: AsyncRead + AsyncWrite + Unpin, O: Owner> Task<'_, I, O> {
    fn poll(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<Ended> {
        for _ in 0..ROUNDS {
            let idle = match self.write(cx) {
                Poll::Ready(Ok(idle)) => idle,
                Poll::Ready(Err(error)) => return Poll::Ready(Ended::Failed(error)),
                Poll::Pending => false,
            };
            let end = self.raw.state.lock().end;
            let ended = if self.peer_ended { Ended::ByPeer } else { Ended::ByOwner };
            let over = self.peer_ended && !self.answering;
            if end == End::Now || idle && (end == End::AfterQueue || over) {
                return Poll::Ready(ended);
            }
            if idle && end == End::Half && !self.half_closed {
                match Pin::new(&mut *self.io).poll_shutdown(cx) {
                    Poll::Ready(Ok(())) => self.half_closed = true,
                    Poll::Ready(Err(error)) => return Poll::Ready(Ended::Failed(error)),
                    Poll::Pending => return Poll::Pending,
                }
            }
            if end == End::AfterQueue || over {
                let linger =
                    self.linger.get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
                return linger.as_mut().poll(cx).map(|()| ended);
            }
            if self.peer_ended || !self.owner.has_room() {
                return Poll::Pending;
            }
            let mut buffer = ReadBuf::new(buffer);
            match Pin::new(&mut *self.io).poll_read(cx, &mut buffer) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Ended::Failed(error)),
                Poll::Ready(Ok(())) if buffer.filled().is_empty() => {
                    self.peer_ended = true;
                    self.answering = self.owner.half_closed();
                }
                Poll::Ready(Ok(())) => self.owner.read(buffer.filled()),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Writes what the socket takes; true when nothing is left.
    fn write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        loop {
            let mut front = {
                let mut state = self.raw.state.lock();
                state.set_driver(Some(cx.waker()));
                match state.queue.pop_front() {
                    Some(front) => front,
                    None => {
                        state.queue = VecDeque::new();
                        break;
                    }
                }
            };
            let poll = Pin::new(&mut *self.io).poll_write(cx, &front);
            let mut state = self.raw.state.lock();
            let count = match poll {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(count)) => count,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending if state.end == End::Now => return Poll::Pending,
                Poll::Pending => {
                    state.queue.push_front(front);
                    return Poll::Pending;
                }
            };
            front.advance(count);
            if state.end != End::Now {
                state.queued -= count;
                state.taken = http2::millis();
                if !front.is_empty() {
                    state.queue.push_front(front);
                }
            }
            drop(state);
            self.dirty = true;
            self.owner.written(count);
        }
        if self.dirty {
            match Pin::new(&mut *self.io).poll_flush(cx) {
                Poll::Ready(Ok(())) => self.dirty = false,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(true))
    }
}
