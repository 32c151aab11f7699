//! Rules: what they match and what they say.

use std::sync::Arc;

use ipnet::IpNet;

use crate::{AddressMap, Identity, Key, PeerSetId};

/// What a rule demands of one end (source or destination) of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// Any address of any family.
    Any,
    /// An address inside a prefix; `0.0.0.0/0` leaves IPv6 out and `::/0` IPv4.
    Net(IpNet),
    /// An address that is in this peer set.
    Set(PeerSetId),
}

/// An inclusive range of ports, in host byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortRange {
    /// First port of the range.
    pub first: u16,
    /// Last port of the range, itself included; never below `first`.
    pub last: u16,
}

impl PortRange {
    /// Every port; also what protocols without ports carry.
    pub const ANY: Self = Self { first: 0, last: u16::MAX };

    /// Exactly one port.
    pub const fn one(port: u16) -> Self {
        Self { first: port, last: port }
    }

    /// Whether `port` lies in the range.
    #[inline]
    pub const fn contains(self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }
}

/// What becomes of a packet that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// The connection may be opened.
    Permit,
    /// It may not.
    Deny,
}

/// One rule of an ordered rule set; it matches if every field does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// The sending end.
    pub source: End,
    /// The receiving end.
    pub destination: End,
    /// IP protocol number, or any protocol.
    pub protocol: Option<u8>,
    /// Source ports. A range other than [`PortRange::ANY`] goes with a protocol that has ports.
    pub source_ports: PortRange,
    /// Destination ports, likewise.
    pub destination_ports: PortRange,
    /// What the rule says.
    pub action: Action,
    /// Whom the verdict is reported by, such as `NetworkPolicy default/db ingress[0]`.
    pub origin: Arc<str>,
}

impl Rule {
    /// Whether this rule matches `key`, by definition.
    pub fn matches(&self, key: &Key, addresses: &AddressMap) -> bool {
        let end = |end: &End, address: crate::Address, identity: Identity| match end {
            End::Any => true,
            End::Net(net) => net.contains(&address.to_ip()),
            End::Set(set) => addresses.is_member(identity, *set),
        };
        end(&self.source, key.source, key.source_identity)
            && end(&self.destination, key.destination, key.destination_identity)
            && self.protocol.is_none_or(|protocol| protocol == key.protocol)
            && self.source_ports.contains(key.source_port)
            && self.destination_ports.contains(key.destination_port)
    }
}
