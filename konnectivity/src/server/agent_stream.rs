//! The stream of one agent.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use http2::Link;

use super::metrics::Metrics;
use crate::grpc::message;
use crate::memory::Shares;
use crate::packet::Packet;

/// A stream that an agent opened.
#[derive(Debug)]
pub(crate) struct AgentStream {
    pub(crate) agent: String,
    /// Its remote address.
    pub(crate) peer: String,
    pub(crate) link: Arc<Link>,
    pub(crate) stream: u32,
    /// The agent's window for each connection, in bytes; `None` without flow control.
    pub(crate) window: Option<usize>,
    /// Reading of the link is paused for a slow reader.
    pub(crate) blocked: AtomicBool,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) shares: Arc<Shares>,
}

impl AgentStream {
    /// Sends a packet, unless the stream has ended.
    pub(crate) fn send(&self, packet: &Packet) {
        self.metrics.to_agent.count(packet);
        self.link.send(self.stream, message(packet));
    }
}

impl fmt::Display for AgentStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "agent {} ({})", self.agent, self.peer)
    }
}
