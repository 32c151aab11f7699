//! The receiver of a connection's events.

use std::sync::Arc;

use super::hpack::Field;
use super::link::Link;

/// Receives the events of a connection. No method may block; no lock of the link is held.
pub trait Handler: Send {
    /// Headers or trailers arrived; `end` if nothing follows on the stream.
    fn headers(&mut self, link: &Arc<Link>, stream: u32, fields: Vec<Field>, end: bool);
    /// Bytes arrived; they count against the window until [`Link::release`].
    fn data(&mut self, link: &Arc<Link>, stream: u32, bytes: &[u8], end: bool);
    /// The peer ended a stream.
    fn reset(&mut self, link: &Arc<Link>, stream: u32, code: u32);
    /// Bytes left a stream's queue for the socket.
    fn drained(&mut self, _link: &Arc<Link>, _stream: u32, _bytes: usize) {}
    /// The peer accepts no new streams.
    fn going_away(&mut self, _link: &Arc<Link>, _code: u32, _text: &str) {}
    /// Returns whether to stop reading the socket for now; [`Link::wake`] repeats the question.
    fn paused(&mut self) -> bool {
        false
    }
}
