//! The next step of a packet's way, as a number that sessions remember.

use crate::PortId;

/// Where a packet goes next: out of a port, or by the uplink to another cluster node. Belongs to
/// the snapshot that gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Hop(pub(crate) u16);

/// What a [`Hop`] stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leads {
    /// Whatever is at this port.
    Port(PortId),
    /// Another cluster node, by its place in the routes.
    Peer(u16),
}

/// Numbers from here on are peers'.
const PEERS: u16 = 0x8000;

impl Hop {
    /// Nowhere.
    pub const NONE: Self = Self(u16::MAX);
    /// Ports beyond this number cannot be a hop.
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
    pub const fn leads(self) -> Leads {
        match self.0 {
            u16::MAX => Leads::Port(PortId::NONE),
            PEERS.. => Leads::Peer(self.0 - PEERS),
            port => Leads::Port(PortId(port)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hops_keep_what_they_stand_for() {
        assert_eq!(Hop::port(PortId(7)).leads(), Leads::Port(PortId(7)));
        assert_eq!(Hop::peer(7).leads(), Leads::Peer(7));
        assert_eq!(Hop::NONE.leads(), Leads::Port(PortId::NONE));
        assert_eq!(Hop::port(PortId::NONE), Hop::NONE);
    }
}
