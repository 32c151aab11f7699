//! Adjacencies: next hops as numbers that sessions store.

use crate::PortId;

/// The next hop of a packet: a port, or another node behind the uplink. Valid in the
/// snapshot that returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Adjacency(pub(crate) u16);

/// The egress of an [`Adjacency`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Egress {
    /// This port.
    Port(PortId),
    /// Another node, by its index in the routes.
    Peer(u16),
}

/// First number of a peer.
const PEERS: u16 = 0x8000;

impl Adjacency {
    /// Nowhere.
    pub const NONE: Self = Self(u16::MAX);
    /// Ports from this number on cannot be an adjacency.
    pub const MOST_PORTS: u16 = PEERS;

    /// Out of a port.
    #[inline]
    pub const fn port(port: PortId) -> Self {
        if port.0 < PEERS { Self(port.0) } else { Self::NONE }
    }

    /// To the peer with this number.
    #[inline]
    pub const fn peer(n: u16) -> Self {
        Self(PEERS | n)
    }

    /// Decodes the number.
    #[inline]
    pub const fn egress(self) -> Egress {
        match self.0 {
            u16::MAX => Egress::Port(PortId::NONE),
            PEERS.. => Egress::Peer(self.0 - PEERS),
            port => Egress::Port(PortId(port)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adjacency_keeps_its_egress() {
        assert_eq!(Adjacency::port(PortId(7)).egress(), Egress::Port(PortId(7)));
        assert_eq!(Adjacency::peer(7).egress(), Egress::Peer(7));
        assert_eq!(Adjacency::NONE.egress(), Egress::Port(PortId::NONE));
        assert_eq!(Adjacency::port(PortId::NONE), Adjacency::NONE);
    }
}
