//! Everything a worker needs to decide about packets, immutable.

mod hop;
mod routes;

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use acl::{Address, AddressMap, Table};
use ahash::AHashMap;
use ipnet::IpNet;

pub use hop::{Hop, Leads};
pub use routes::{Peer, Routes};

use crate::SWITCH_MAC;
use crate::services::Services;
use crate::wire::Mac;
use crate::wire::vxlan::Vxlan;

/// The number of a port: its place in [`Snapshot::ports`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct PortId(pub u16);

impl PortId {
    /// No port.
    pub const NONE: Self = Self(u16::MAX);
}

/// Where a port leads.
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

/// What stands at one direction of a pod.
#[derive(Clone, Debug, Default)]
pub enum Gate {
    /// Nothing passes: the pod's tables are not known yet.
    #[default]
    Closed,
    /// Everything passes: no policy selects the pod for this direction.
    Open,
    /// The compiled rules decide.
    Table(Arc<Table>),
}

/// A port as the graph sees it.
#[derive(Clone, Debug)]
pub struct PortState {
    /// `ns/pod`, `uplink` or `host`.
    pub name: Arc<str>,
    /// Where it leads.
    pub kind: PortKind,
    /// MAC address of the other end: destination of frames that leave, and the only source a
    /// pod may use. `None` where it is unknown (captures): any source passes.
    pub mac: Option<Mac>,
    /// A pod's own addresses.
    pub addresses: Vec<Address>,
    /// The local table: judges connections towards the pod. The peer is the source.
    pub to_pod: Gate,
    /// Judges connections that the pod opens. The peer is the destination.
    pub from_pod: Gate,
    /// MAC address of the port itself: the source of frames that leave.
    pub own_mac: Mac,
    /// Bytes of the largest IP packet that may leave here; 0 if any may.
    pub mtu: u16,
}

impl PortState {
    /// A port that nothing else is known of; a pod is closed.
    pub fn new(name: impl Into<Arc<str>>, kind: PortKind) -> Self {
        Self {
            name: name.into(),
            kind,
            mac: None,
            addresses: Vec::new(),
            to_pod: Gate::Closed,
            from_pod: Gate::Closed,
            own_mac: SWITCH_MAC,
            mtu: 0,
        }
    }
}

/// How pods of other cluster nodes are reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Underlay {
    /// Their packets leave by the uplink as they are, to whatever router is there.
    #[default]
    Plain,
    /// Their packets leave by the uplink as they are, to the cluster node that has them.
    Routed,
    /// Their packets travel in VXLAN tunnels between cluster nodes.
    Overlay(Vxlan),
}

/// What a snapshot is made of.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    /// Grows with each published snapshot.
    pub generation: u64,
    /// Ports by number.
    pub ports: Vec<Option<PortState>>,
    /// The identities that the tables were compiled for.
    pub addresses: Arc<AddressMap>,
    /// This cluster node's own addresses, the one that it is known by first (of each family).
    pub node_addresses: Vec<IpAddr>,
    /// Pod networks of this cluster node: they lead nowhere but to the pods that are there.
    pub local_networks: Vec<IpNet>,
    /// Services.
    pub services: Arc<Services>,
    /// Other cluster nodes.
    pub routes: Arc<Routes>,
    /// How they are reached.
    pub underlay: Underlay,
    /// Whether connections of pods to the world outside the cluster leave directly by the
    /// uplink, from the cluster node's own address, instead of through its kernel.
    pub masquerade: bool,
    /// Ports of the cluster node's own addresses that only translated connections use; all
    /// dynamic ones where this is `None`.
    pub translation_ports: Option<RangeInclusive<u16>>,
}

/// Everything a worker needs; immutable, replaced whole.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Grows with each published snapshot.
    pub generation: u64,
    ports: Vec<Option<PortState>>,
    addresses: Arc<AddressMap>,
    /// Port of each address behind pod ports, and the host port for the node's own.
    owners: AHashMap<Address, PortId>,
    local_networks: Vec<IpNet>,
    node_addresses: Vec<Address>,
    services: Arc<Services>,
    routes: Arc<Routes>,
    underlay: Underlay,
    masquerade: bool,
    translation_ports: RangeInclusive<u16>,
    uplink: Option<PortId>,
    host: Option<PortId>,
}

/// Dynamic ports (RFC 6335, section 6).
const DYNAMIC_PORTS: RangeInclusive<u16> = 49_152..=u16::MAX;

/// A snapshot that knows nothing.
impl Default for Snapshot {
    fn default() -> Self {
        Self::new(Parts::default())
    }
}

impl Snapshot {
    /// A snapshot of these parts.
    ///
    /// What is neither here nor on another cluster node leaves by the uplink, or by the host port
    /// where there is none or where the kernel is to masquerade it.
    pub fn new(parts: Parts) -> Self {
        let Parts { generation, ports, addresses, services, routes, underlay, .. } = parts;
        let of_kind = |kind| {
            let found = ports
                .iter()
                .position(|port| port.as_ref().is_some_and(|port: &PortState| port.kind == kind));
            found.map(|n| PortId(n as u16))
        };
        let (uplink, host) = (of_kind(PortKind::Uplink), of_kind(PortKind::Host));
        let node_addresses: Vec<Address> =
            parts.node_addresses.iter().map(|address| Address::from(*address)).collect();
        let mut owners = AHashMap::with_capacity(2 * ports.len() + node_addresses.len());
        if let Some(host) = host {
            owners.extend(node_addresses.iter().map(|address| (*address, host)));
        }
        for (n, port) in ports.iter().enumerate() {
            for address in port.iter().flat_map(|port| &port.addresses) {
                owners.insert(*address, PortId(n as u16));
            }
        }
        Self {
            generation,
            ports,
            addresses,
            owners,
            local_networks: parts.local_networks,
            node_addresses,
            services,
            routes,
            underlay,
            masquerade: parts.masquerade,
            translation_ports: parts.translation_ports.unwrap_or(DYNAMIC_PORTS),
            uplink,
            host,
        }
    }

    /// The port with this number.
    #[inline]
    pub fn port(&self, id: PortId) -> Option<&PortState> {
        self.ports.get(usize::from(id.0)).and_then(Option::as_ref)
    }

    /// All ports with their numbers.
    pub fn ports(&self) -> impl Iterator<Item = (PortId, &PortState)> {
        let numbered = self.ports.iter().enumerate();
        numbered.filter_map(|(n, port)| port.as_ref().map(|port| (PortId(n as u16), port)))
    }

    /// The number of the port with this name.
    pub fn port_named(&self, name: &str) -> Option<PortId> {
        self.ports().find(|(_, port)| &*port.name == name).map(|(id, _)| id)
    }

    /// The port that owns an address: a pod's, or the host port for the cluster node's own.
    #[inline]
    pub fn owner(&self, address: Address) -> Option<PortId> {
        self.owners.get(&address).copied()
    }

    /// The port with this number, if it leads to a pod.
    #[inline]
    pub fn pod(&self, id: PortId) -> Option<&PortState> {
        self.port(id).filter(|port| port.kind == PortKind::Pod)
    }

    /// The pod port behind which `address` is.
    #[inline]
    pub fn pod_of(&self, address: Address) -> Option<(PortId, &PortState)> {
        let id = self.owner(address)?;
        self.pod(id).map(|port| (id, port))
    }

    /// Where a packet to `destination` leaves.
    #[inline]
    pub fn route(&self, destination: Address) -> Option<Hop> {
        if let Some(port) = self.owner(destination) {
            return Some(Hop::port(port));
        }
        let ip = destination.to_ip();
        if self.local_networks.iter().any(|net| net.contains(&ip)) {
            return None;
        }
        if let Some(uplink) = self.uplink
            && self.underlay != Underlay::Plain
        {
            return match self.routes.find(destination) {
                Some(peer) => Some(Hop::peer(peer)),
                None if self.masquerade => Some(Hop::port(uplink)),
                None => self.host.or(self.uplink).map(Hop::port),
            };
        }
        self.uplink.or(self.host).map(Hop::port)
    }

    /// The port that packets for `hop` leave by, and the cluster node they are for.
    #[inline]
    pub fn way(&self, hop: Hop) -> Option<(PortId, Option<&Peer>)> {
        match hop.leads() {
            Leads::Port(port) => Some((port, None)),
            Leads::Peer(n) => Some((self.uplink?, Some(self.routes.peer(n)?))),
        }
    }

    /// Bytes of the largest IP packet that `hop` takes, or 0 if it takes any.
    #[inline]
    pub fn mtu(&self, hop: Hop) -> u16 {
        let Some((port, peer)) = self.way(hop) else { return 0 };
        let mtu = self.port(port).map_or(0, |port| port.mtu);
        match (peer, &self.underlay) {
            (Some(peer), Underlay::Overlay(_)) if mtu > 0 => {
                mtu.saturating_sub(Vxlan::overhead(peer.endpoint.is_v4()) as u16)
            }
            _ => mtu,
        }
    }

    /// Whether a connection that `source` opens by this hop must seem to come from this cluster
    /// node: the world outside does not know pods.
    #[inline]
    pub fn masquerades(&self, source: Address, hop: Hop) -> bool {
        self.masquerade
            && self.uplink.is_some_and(|uplink| Hop::port(uplink) == hop)
            && self.pod_of(source).is_some()
    }

    /// Ports of the cluster node's own addresses for translated connections.
    pub fn translation_ports(&self) -> RangeInclusive<u16> {
        self.translation_ports.clone()
    }

    /// How pods of other cluster nodes are reached.
    #[inline]
    pub fn underlay(&self) -> &Underlay {
        &self.underlay
    }

    /// Other cluster nodes.
    #[inline]
    pub fn routes(&self) -> &Routes {
        &self.routes
    }

    /// Services.
    #[inline]
    pub fn services(&self) -> &Services {
        &self.services
    }

    /// The address that the cluster node is known by, of the family of `like`.
    pub fn node_address(&self, like: Address) -> Option<Address> {
        self.node_addresses.iter().copied().find(|address| address.is_v4() == like.is_v4())
    }

    /// Whether `address` is one of this cluster node's own.
    #[inline]
    pub fn is_own_node(&self, address: Address) -> bool {
        self.node_addresses.contains(&address)
    }

    /// The address map that the tables were compiled for.
    #[inline]
    pub fn address_map(&self) -> &AddressMap {
        &self.addresses
    }

    /// The uplink, if there is one.
    pub fn uplink(&self) -> Option<PortId> {
        self.uplink
    }

    /// The host port, if there is one.
    pub fn host(&self) -> Option<PortId> {
        self.host
    }
}
