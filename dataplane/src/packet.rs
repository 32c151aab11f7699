//! A packet on its way through the graph.

use crate::wire::Headers;
use crate::{Deciders, Frame, Outcome, PortId};

/// Packets that travel the graph together.
pub const VECTOR: usize = 256;

/// A frame with everything the nodes have found out about it.
#[derive(Debug)]
pub struct Packet {
    /// The bytes.
    pub frame: Frame,
    /// Where it came in.
    pub in_port: PortId,
    /// Where it leaves, once that is known; also set for answers of the switch itself.
    pub out_port: PortId,
    /// What became of it; `None` while it is under way.
    pub outcome: Option<Outcome>,
    /// Hash of the flow, the same for both directions; 0 until the session node.
    pub hash: u64,
    /// What its headers say.
    pub headers: Headers,
    /// The rules that decided about its connection, if one was judged.
    pub by: Deciders,
}

impl Packet {
    /// A packet that just came in.
    #[inline]
    pub fn new(frame: Frame, in_port: PortId) -> Self {
        Self {
            frame,
            in_port,
            out_port: PortId::NONE,
            outcome: None,
            hash: 0,
            headers: Headers::default(),
            by: Deciders::default(),
        }
    }

    /// Whether it (or the switch's answer in its frame) is to be sent out of `out_port`.
    #[inline]
    pub fn leaves(&self) -> bool {
        self.out_port != PortId::NONE
            && !self.outcome.is_some_and(|outcome| outcome.verdict() == crate::Verdict::Drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A vector of packets should leave room for anything else in a 32 KiB cache of data.
    #[test]
    fn a_packet_takes_little_room() {
        assert!(size_of::<Packet>() <= 144, "{} bytes", size_of::<Packet>());
    }
}
