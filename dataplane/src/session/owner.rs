//! Owners of sessions: whose quota a session counts against.

use acl::Address;

use crate::PortId;

/// Whose quota a session counts against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner(pub(super) u16);

/// Numbers from here on are remote owners'.
pub(super) const REMOTE: u16 = 0x8000;

impl Owner {
    /// No owner: a session of an earlier process, until its initiator's next packet.
    pub const NONE: Self = Self(u16::MAX);

    /// The pod, or kernel, behind a local port.
    pub const fn port(port: PortId) -> Self {
        if port.0 < REMOTE { Self(port.0) } else { Self::NONE }
    }

    /// Whether it stands for senders behind the uplink.
    pub fn is_remote(self) -> bool {
        self.0 >= REMOTE && self != Self::NONE
    }
}

/// The part of a sender's address that one remote owner stands for: the whole address of a pod, the
/// network of a host outside of the cluster (which may have many addresses in it).
pub(super) fn remote_sender(address: Address, is_in_cluster: bool) -> Address {
    let host_bits = match address.is_v4() {
        _ if is_in_cluster => 0,
        true => 8,
        false => 64,
    };
    Address::from_bits(address.bits() >> host_bits << host_bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senders_outside_are_networks_and_those_inside_are_pods() {
        let v4 = |text: &str| Address::from(text.parse::<std::net::IpAddr>().unwrap());
        assert_eq!(remote_sender(v4("203.0.113.77"), false), v4("203.0.113.0"));
        assert_eq!(remote_sender(v4("203.0.113.77"), true), v4("203.0.113.77"));
        assert_eq!(remote_sender(v4("2001:db8:1:2:3::4"), false), v4("2001:db8:1:2::"));
    }
}
