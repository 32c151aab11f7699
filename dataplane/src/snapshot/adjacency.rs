//! The next step of a packet's way, as a number that sessions remember.

use crate::PortId;

/// Where a packet goes next: out of a port, or by the uplink to another cluster node. Belongs to
/// the snapshot that gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Adjacency(pub(crate) u16);

/// What a [`Adjacency`] stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Egress {
    /// Whatever is at this port.
    Port(PortId),
    /// Another cluster node, by its place in the routes.
    Peer(u16),
}

/// Numbers from here on are peers'.
const PEERS: u16 = 0x8000;

impl Adjacency {
    /// Nowhere.
    pub const NONE: Self = Self(u16::MAX);
    /// Ports beyond this number cannot be a adjacency.
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

    /// What it stands for.
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
