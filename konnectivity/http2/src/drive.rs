//! The task of a connection: the only one that touches its socket.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::handler::Handler;
use super::link::Link;
use super::receive::Receiver;

/// Bytes read at a time.
const READ: usize = 64 * 1024;
/// Reads before other tasks get their turn.
const ROUNDS: usize = 16;

thread_local! {
    // Buffers shared by all connections, since none needs them between two polls.
    static BUFFERS: RefCell<(Vec<u8>, Vec<u8>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// Transfers bytes until the connection ends; `Ok` if either side closed it.
pub async fn drive<I, H>(mut io: I, link: Arc<Link>, handler: &mut H) -> io::Result<()>
where
    I: AsyncRead + AsyncWrite + Unpin + Send,
    H: Handler,
{
    let mut receiver = Receiver::new(link.role());
    let mut pending = Vec::new();
    let mut drained = Vec::new();
    let mut dirty = false;
    let mut ended = None;
    let result = poll_fn(|cx| {
        let (mut read, mut write) = BUFFERS.take();
        read.resize(READ, 0);
        let mut driver = Driver {
            io: &mut io,
            link: &link,
            receiver: &mut receiver,
            handler: &mut *handler,
            pending: &mut pending,
            drained: &mut drained,
            dirty: &mut dirty,
            ended: &mut ended,
        };
        let poll = driver.poll(cx, &mut read, &mut write);
        write.clear();
        BUFFERS.set((read, write));
        poll
    })
    .await;
    link.abort();
    result
}

struct Driver<'a, I, H> {
    io: &'a mut I,
    link: &'a Arc<Link>,
    receiver: &'a mut Receiver,
    handler: &'a mut H,
    /// Bytes that the socket did not take.
    pending: &'a mut Vec<u8>,
    drained: &'a mut Vec<(u32, usize)>,
    dirty: &'a mut bool,
    /// The end of reading, once it has come; the rest is still written.
    ended: &'a mut Option<io::Result<()>>,
}

impl<I: AsyncRead + AsyncWrite + Unpin, H: Handler> Driver<'_, I, H> {
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        read: &mut [u8],
        write: &mut Vec<u8>,
    ) -> Poll<io::Result<()>> {
        for _ in 0..ROUNDS {
            let idle = match self.write(cx, write) {
                Poll::Ready(Ok(())) => true,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => false,
            };
            if self.link.is_aborted() {
                return Poll::Ready(self.ended.take().unwrap_or(Ok(())));
            }
            if idle && (self.ended.is_some() || self.link.is_closing()) {
                return match Pin::new(&mut *self.io).poll_shutdown(cx) {
                    Poll::Pending => Poll::Pending,
                    Poll::Ready(_) => Poll::Ready(self.ended.take().unwrap_or(Ok(()))),
                };
            }
            if let Some(ended) = self.ended.take() {
                // A peer that does not read gets no last bytes.
                return Poll::Ready(ended);
            }
            if self.handler.paused() {
                return Poll::Pending;
            }
            let mut buffer = ReadBuf::new(read);
            match Pin::new(&mut *self.io).poll_read(cx, &mut buffer) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(())) if buffer.filled().is_empty() => {
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Ok(())) => {}
            }
            let now = crate::millis();
            self.link.note_received(now);
            // What the handler queues is written in the next round, without a wake.
            self.link.unregister();
            let received = self.receiver.receive(buffer.filled(), now, self.link, self.handler);
            if let Err(fault) = received {
                self.link.close(fault.code, &fault.text);
                *self.ended = Some(Err(io::Error::other(fault)));
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Ready when there is nothing left to write.
    fn write(&mut self, cx: &mut Context<'_>, buffer: &mut Vec<u8>) -> Poll<io::Result<()>> {
        loop {
            while !self.pending.is_empty() {
                match Pin::new(&mut *self.io).poll_write(cx, self.pending) {
                    Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    Poll::Ready(Ok(count)) => {
                        self.pending.drain(..count);
                    }
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => {
                        self.link.register(cx.waker());
                        return Poll::Pending;
                    }
                }
                *self.dirty = true;
            }
            *self.pending = Vec::new();
            buffer.clear();
            self.link.fill(buffer, self.drained, cx.waker());
            for (stream, bytes) in self.drained.drain(..) {
                self.handler.drained(self.link, stream, bytes);
            }
            if self.drained.capacity() > 64 {
                *self.drained = Vec::new();
            }
            if buffer.is_empty() {
                break;
            }
            let mut at = 0;
            while at < buffer.len() {
                match Pin::new(&mut *self.io).poll_write(cx, &buffer[at..]) {
                    Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    Poll::Ready(Ok(count)) => at += count,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => {
                        *self.pending = buffer[at..].to_vec();
                        *self.dirty = true;
                        self.link.register(cx.waker());
                        return Poll::Pending;
                    }
                }
                *self.dirty = true;
            }
        }
        if *self.dirty {
            match Pin::new(&mut *self.io).poll_flush(cx) {
                Poll::Ready(Ok(())) => *self.dirty = false,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }
}
