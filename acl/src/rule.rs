//! Rules: what they match and what they say.

use crate::{AddressMap, Identity, Key, Origin, PeerSetId};

/// Condition on one end (source or destination) of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// Any address of any family.
    Any,
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

    /// Whether all of `other` lies in the range.
    #[inline]
    pub const fn covers(self, other: Self) -> bool {
        self.first <= other.first && other.last <= self.last
    }
}

/// Verdict on a packet that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// The connection may be opened.
    Permit,
    /// It may not.
    Deny,
    /// This rule set does not decide; the next tier's does.
    Pass,
}

/// Condition on the TCP flags: the bits of `mask` must read `value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct TcpFlags {
    /// The flags that are looked at, as in byte 13 of the TCP header (RFC 9293).
    pub mask: u8,
    /// The bits they must read; none outside `mask`.
    pub value: u8,
}

impl TcpFlags {
    /// Any flags, also of packets that are not TCP.
    pub const ANY: Self = Self { mask: 0, value: 0 };

    /// Whether `flags` read what is demanded.
    #[inline]
    pub const fn matches(self, flags: u8) -> bool {
        flags & self.mask == self.value
    }
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
    /// For ICMP and ICMPv6 the types.
    pub source_ports: PortRange,
    /// Destination ports, likewise; for ICMP and ICMPv6 the codes.
    pub destination_ports: PortRange,
    /// TCP flags; anything but [`TcpFlags::ANY`] goes with TCP.
    pub tcp_flags: TcpFlags,
    /// Verdict of the rule.
    pub action: Action,
    /// Whether no policy states the rule: it decides what policies leave open, as the isolation of
    /// a pod does.
    pub is_default: bool,
    /// The origin that verdicts by the rule are reported with.
    pub origin: Origin,
}

impl Rule {
    /// A rule that matches everything; the setters below narrow it.
    ///
    /// ```
    /// use acl::{Action, End, PeerSetId, PortRange, Rule};
    ///
    /// let rule = Rule::new(Action::Permit, "NetworkPolicy default/db ingress[0]")
    ///     .source(End::Set(PeerSetId(7)))
    ///     .protocol(6)
    ///     .destination_ports(PortRange::one(6379));
    /// assert_eq!(rule.destination, End::Any);
    /// ```
    pub fn new(action: Action, origin: impl Into<Origin>) -> Self {
        Self {
            source: End::Any,
            destination: End::Any,
            protocol: None,
            source_ports: PortRange::ANY,
            destination_ports: PortRange::ANY,
            tcp_flags: TcpFlags::ANY,
            action,
            is_default: false,
            origin: origin.into(),
        }
    }

    /// The same rule for this source.
    #[must_use]
    pub fn source(self, source: End) -> Self {
        Self { source, ..self }
    }

    /// The same rule for this destination.
    #[must_use]
    pub fn destination(self, destination: End) -> Self {
        Self { destination, ..self }
    }

    /// The same rule for this IP protocol only.
    #[must_use]
    pub fn protocol(self, protocol: u8) -> Self {
        Self { protocol: Some(protocol), ..self }
    }

    /// The same rule for these source ports.
    #[must_use]
    pub fn source_ports(self, source_ports: PortRange) -> Self {
        Self { source_ports, ..self }
    }

    /// The same rule for these destination ports.
    #[must_use]
    pub fn destination_ports(self, destination_ports: PortRange) -> Self {
        Self { destination_ports, ..self }
    }

    /// The same rule for TCP packets whose flags read `tcp_flags`.
    #[must_use]
    pub fn tcp_flags(self, tcp_flags: TcpFlags) -> Self {
        Self { tcp_flags, ..self.protocol(6) }
    }

    /// The same rule as one that no policy states.
    #[must_use]
    pub fn as_default(self) -> Self {
        Self { is_default: true, ..self }
    }

    /// Whether this rule matches every connection that `other` matches, as far as their fields say:
    /// a peer set covers itself alone.
    pub fn covers(&self, other: &Self) -> bool {
        let end = |wide: End, end: End| wide == End::Any || wide == end;
        end(self.source, other.source)
            && end(self.destination, other.destination)
            && (self.protocol.is_none() || self.protocol == other.protocol)
            && self.source_ports.covers(other.source_ports)
            && self.destination_ports.covers(other.destination_ports)
            && (self.tcp_flags == TcpFlags::ANY || self.tcp_flags == other.tcp_flags)
    }

    /// Whether this rule matches `key`, by definition.
    pub fn matches(&self, key: &Key, addresses: &AddressMap) -> bool {
        let end = |end: End, identity: Identity| match end {
            End::Any => true,
            End::Set(set) => addresses.is_member(identity, set),
        };
        end(self.source, key.source_identity)
            && end(self.destination, key.destination_identity)
            && self.protocol.is_none_or(|protocol| protocol == key.protocol)
            && self.source_ports.contains(key.source_port)
            && self.destination_ports.contains(key.destination_port)
            && self.tcp_flags.matches(key.tcp_flags)
    }
}
