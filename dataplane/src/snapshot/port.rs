//! Ports in a snapshot.

use std::sync::Arc;

use acl::{Address, Table};

use crate::wire::{Mac, SWITCH_MAC};

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
    /// Towards other cluster nodes.
    Uplink,
    /// Towards this cluster node's kernel.
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
        }
    }
}
