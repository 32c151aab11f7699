//! A packet in the graph.

use crate::session::Candidate;
use crate::wire::{Fragment, Headers, Plain, Role, protocol};
use crate::{Adjacency, Deciders, Frame, Outcome, PortId, Verdict};

/// Packets that travel the graph together.
pub const VECTOR: usize = 256;

/// A frame with everything the nodes have found about it.
#[derive(Debug)]
pub struct Packet {
    /// The bytes.
    pub frame: Frame,
    /// The ingress port.
    pub in_port: PortId,
    /// The node whose tunnel it came out of; see [`Adjacency::peer`].
    pub from_peer: Adjacency,
    /// The adjacency, once it is routed.
    pub adjacency: Adjacency,
    /// The egress port, once it is known; also set for replies of the switch itself.
    pub out_port: PortId,
    /// Whether the frame now holds the switch's reply to the packet.
    pub is_reply: bool,
    /// The outcome; `None` while the packet is in the graph.
    pub outcome: Option<Outcome>,
    /// Index of its translation in the vector's list, or [`Packet::AS_IT_IS`].
    pub(crate) translation: u16,
    /// Hash of the flow, the same for both directions.
    pub hash: u64,
    /// The most likely record of its session.
    pub(crate) candidate: Candidate,
    /// Whether it is whole, untagged, in one frame, and its checksum complete.
    pub(crate) is_plain: bool,
    /// Whether the fast path of the session lookup may take it: whole, and neither opens a TCP
    /// connection nor quotes another packet.
    pub(crate) may_take_fast_path: bool,
    /// Traits of the ingress port; see [`crate::snapshot::PortLine`].
    pub(crate) in_traits: u8,
    /// The parsed headers.
    pub headers: Headers,
    /// The rules that decided about its connection, if it was evaluated.
    pub by: Deciders,
}

impl Packet {
    /// Not rewritten.
    pub(crate) const AS_IT_IS: u16 = u16::MAX;

    /// A packet just received, of which only frame and port are to be filled in.
    const UNKNOWN: Self = Self {
        frame: Frame::NONE,
        in_port: PortId::NONE,
        from_peer: Adjacency::NONE,
        adjacency: Adjacency::NONE,
        out_port: PortId::NONE,
        is_reply: false,
        translation: Self::AS_IT_IS,
        outcome: None,
        hash: 0,
        candidate: Candidate::UNKNOWN,
        is_plain: false,
        may_take_fast_path: false,
        in_traits: 0,
        headers: Headers::NONE,
        by: Deciders { from_pod: None, to_pod: None },
    };

    /// A packet just received.
    #[inline]
    pub fn new(frame: Frame, in_port: PortId) -> Self {
        Self { frame, in_port, ..Self::UNKNOWN }
    }

    /// Notes what the parser found beside the headers, for the fast paths of later nodes.
    #[inline(always)]
    pub(crate) fn note(&mut self, plain: Option<Plain>) {
        let Headers { role, fragment, flow, .. } = &self.headers;
        let opens_tcp = *role == Role::Opens && flow.protocol == protocol::TCP;
        self.may_take_fast_path =
            !opens_tcp && *role != Role::Quotes && *fragment == Fragment::Whole;
        self.is_plain = plain.is_some_and(|plain| !plain.may_be_partial) && !self.frame.is_chain();
    }

    /// Whether the frame is sent out of `out_port`.
    #[inline]
    pub fn leaves(&self) -> bool {
        let is_dropped = self.outcome.is_some_and(|it| it.verdict() == Verdict::Drop);
        self.out_port != PortId::NONE && (self.is_reply || !is_dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A vector of packets should leave room for anything else in a 32 KiB cache of data.
    #[test]
    fn a_packet_takes_little_room() {
        assert!(size_of::<Packet>() <= 160, "{} bytes", size_of::<Packet>());
    }
}
