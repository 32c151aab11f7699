//! Ports in a snapshot.

use std::sync::Arc;

use acl::{Address, Table};

use crate::frame::ONE_PIECE;
use crate::wire::{Mac, MacWord, SWITCH_MAC};

/// The number of a port: its place in [`crate::Snapshot::ports`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct PortId(pub u16);

impl PortId {
    /// No port.
    pub const NONE: Self = Self(u16::MAX);
}

/// The role of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortKind {
    /// Towards one pod.
    Pod,
    /// Towards other nodes.
    Uplink,
    /// Towards this node's kernel.
    Host,
}

impl PortKind {
    /// The name used in every output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::Uplink => "uplink",
            Self::Host => "host",
        }
    }
}

/// The ACL binding of one direction of a pod's port.
#[derive(Clone, Debug, Default)]
pub enum AclBinding {
    /// Denies everything: the pod's tables are not known yet.
    #[default]
    Closed,
    /// Permits everything: no policy selects the pod for this direction.
    Open,
    /// Classifies by compiled rules.
    Table(Arc<Table>),
}

impl AclBinding {
    /// The table that it classifies by.
    pub fn table(&self) -> Option<&Table> {
        match self {
            Self::Table(table) => Some(table),
            Self::Closed | Self::Open => None,
        }
    }
}

/// The reply to the initiator of a connection that an ACL denies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeniedReply {
    /// None: the packet is dropped.
    #[default]
    Drop,
    /// A TCP reset, or an ICMP error (administratively prohibited), if the initiator is a pod.
    Reject,
    /// The same to any initiator.
    RejectAll,
}

/// A port in a snapshot.
#[derive(Clone, Debug)]
pub struct PortState {
    /// `ns/pod`, `uplink` or `host`.
    pub name: Arc<str>,
    /// Its role.
    pub kind: PortKind,
    /// MAC address of the other end: destination of frames that leave, and the only source a
    /// pod may use. `None` where it is unknown (captures): any source passes.
    pub mac: Option<Mac>,
    /// A pod's own addresses.
    pub addresses: Vec<Address>,
    /// The outbound ACL: classifies connections towards the pod. The peer is the source.
    pub to_pod: AclBinding,
    /// The inbound ACL: classifies connections that the pod opens. The peer is the destination.
    pub from_pod: AclBinding,
    /// MAC address of the port itself: the source of frames that leave.
    pub own_mac: Mac,
    /// Bytes of the largest IP packet that may leave here; 0 if any may.
    pub mtu: u16,
    /// Whether the pod's policies name domains: its DNS is copied, and answers to it are held; see
    /// [`crate::dns`].
    pub follows_names: bool,
    /// The reply where one of the pod's ACLs denies.
    pub denied_reply: DeniedReply,
    /// The ACLs if staged policies were enforced; `None` if that changes nothing.
    pub staged: Option<Arc<StagedAcls>>,
}

/// The ACLs of a port that staged policies would give it.
#[derive(Debug)]
pub struct StagedAcls {
    /// See [`PortState::to_pod`].
    pub to_pod: AclBinding,
    /// See [`PortState::from_pod`].
    pub from_pod: AclBinding,
}

impl PortState {
    /// A port without addresses, and with both ACL bindings closed.
    pub fn new(name: impl Into<Arc<str>>, kind: PortKind) -> Self {
        Self {
            name: name.into(),
            kind,
            mac: None,
            addresses: Vec::new(),
            to_pod: AclBinding::Closed,
            from_pod: AclBinding::Closed,
            own_mac: SWITCH_MAC,
            mtu: 0,
            follows_names: false,
            denied_reply: DeniedReply::Drop,
            staged: None,
        }
    }
}

/// Destination of frames on ports without a MAC address (only captures have such ports).
const UNKNOWN_MAC: Mac = [0x02, 0, 0, 0, 0, 0];

/// The fields of a port that every packet needs, in one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct PortLine {
    /// Two of the pod's own addresses: most pods have one of each family, and no more.
    addresses: [Address; 2],
    /// The only source MAC address, if there is one; see [`PortState::mac`].
    pub(crate) mac: Option<MacWord>,
    /// Destination and source MAC address of frames that leave.
    pub(crate) ethernet: [u8; 12],
    /// Bytes of the largest IP packet that may leave here.
    pub(crate) most: u16,
    /// [`Self::FOLLOWS_NAMES`], [`Self::PARTIAL_CHECKSUMS`].
    pub(crate) traits: u8,
    pub(crate) kind: PortKind,
}

impl PortLine {
    /// See [`PortState::follows_names`].
    pub(crate) const FOLLOWS_NAMES: u8 = 1;
    /// The kernel behind the port may send partial checksums: the plugin leaves checksum offload on
    /// for large MTUs. Memory ports and captures have no MTU.
    pub(crate) const PARTIAL_CHECKSUMS: u8 = 2;

    pub(super) fn new(port: &PortState) -> Self {
        // No packet has a multicast source.
        let address = |n: usize| port.addresses.get(n).copied().unwrap_or(Address::from_bits(!0));
        let mut ethernet = [0; 12];
        ethernet[..6].copy_from_slice(&port.mac.unwrap_or(UNKNOWN_MAC));
        ethernet[6..].copy_from_slice(&port.own_mac);
        let is_large = port.mtu == 0 || port.mtu > ONE_PIECE;
        let names = if port.follows_names { Self::FOLLOWS_NAMES } else { 0 };
        let checksums = if is_large { Self::PARTIAL_CHECKSUMS } else { 0 };
        Self {
            addresses: [address(0), address(1)],
            mac: port.mac.map(MacWord::from),
            ethernet,
            most: if port.mtu == 0 { u16::MAX } else { port.mtu },
            traits: names | checksums,
            kind: port.kind,
        }
    }

    /// Whether an address is one of the two that stand here.
    #[inline]
    pub(crate) fn has(&self, address: Address) -> bool {
        self.addresses[0] == address || self.addresses[1] == address
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_takes_one_cache_line() {
        assert_eq!(size_of::<Option<PortLine>>(), 64);
    }
}
