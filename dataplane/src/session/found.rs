//! Sessions as a lookup finds them.

use super::ConnectionState;
use crate::Adjacency;

/// A session by its record, and the record's sequence that makes it unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionId {
    pub(super) index: u32,
    pub(super) sequence: u64,
}

impl SessionId {
    /// The session's place in the table.
    pub fn place(self) -> u32 {
        self.index
    }

    /// The low half of its sequence, which differs from that of the sessions before it at this place.
    /// Never 0: the sequence of a session is odd.
    pub fn mark(self) -> u32 {
        self.sequence as u32
    }
}

/// The result of a session lookup.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// The session.
    pub id: SessionId,
    /// Whether the flow is of the initiator's direction.
    pub forward: bool,
    /// Whether packets are translated between initiator and responder.
    pub translated: bool,
    pub(super) protocol: u8,
    pub(super) forwarding: u64,
    pub(super) life: u64,
}

impl Found {
    /// Whether the session was allowed by this generation (and need not be re-evaluated).
    #[inline]
    pub fn is_of(&self, generation: u64) -> bool {
        (self.forwarding >> 32) as u32 == generation as u32
    }

    /// Whether a later generation than this one allowed the session: another worker uses that
    /// already.
    #[inline]
    pub fn is_of_later(&self, generation: u64) -> bool {
        is_later((self.forwarding >> 32) as u32, generation as u32)
    }

    /// The adjacency of this direction in the session's generation, or [`Adjacency::NONE`].
    #[inline]
    pub fn adjacency(&self) -> Adjacency {
        let shift = if self.forward { 16 } else { 0 };
        Adjacency((self.forwarding >> shift) as u16)
    }

    /// The connection's state.
    #[inline]
    pub fn state(&self) -> ConnectionState {
        ConnectionState(self.life as u8)
    }

    /// The protocol's number.
    #[inline]
    pub fn protocol(&self) -> u8 {
        self.protocol
    }

    /// Second of the last packet.
    #[inline]
    pub fn last_seen(&self) -> u32 {
        (self.life >> 32) as u32
    }
}

/// Whether generation `one` comes after `other`, of which the low halves are known.
#[inline]
pub(super) fn is_later(one: u32, other: u32) -> bool {
    (one.wrapping_sub(other) as i32) > 0
}
