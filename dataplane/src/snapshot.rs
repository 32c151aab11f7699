//! Everything a worker needs to decide about packets, immutable.

use std::net::IpAddr;
use std::sync::Arc;

use acl::{Address, AddressMap, Table};
use ahash::AHashMap;
use ipnet::IpNet;

use crate::wire::Mac;

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
}

/// Everything a worker needs; immutable, replaced whole.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Grows with each published snapshot.
    pub generation: u64,
    ports: Vec<Option<PortState>>,
    addresses: Arc<AddressMap>,
    /// Port of each address behind pod ports, and the host port for the node's own.
    owners: AHashMap<Address, PortId>,
    /// Pod networks of this cluster node: what no pod owns there is nowhere.
    local_networks: Vec<IpNet>,
    node_addresses: Vec<Address>,
    uplink: Option<PortId>,
    host: Option<PortId>,
}

impl Snapshot {
    /// A snapshot over these ports (a port's number is its place), identities and this cluster
    /// node's own addresses.
    ///
    /// Pod networks of this cluster node (`local_networks`) lead nowhere but to the pods that
    /// are there; everything else leaves by the uplink, or by the host port where there is none.
    pub fn new(
        generation: u64,
        ports: Vec<Option<PortState>>,
        addresses: Arc<AddressMap>,
        node_addresses: &[IpAddr],
        local_networks: &[IpNet],
    ) -> Self {
        let of_kind = |kind| {
            let found = ports
                .iter()
                .position(|port| port.as_ref().is_some_and(|port: &PortState| port.kind == kind));
            found.map(|n| PortId(n as u16))
        };
        let (uplink, host) = (of_kind(PortKind::Uplink), of_kind(PortKind::Host));
        let node_addresses: Vec<Address> =
            node_addresses.iter().map(|address| Address::from(*address)).collect();
        let mut owners = AHashMap::default();
        if let Some(host) = host {
            owners.extend(node_addresses.iter().map(|address| (*address, host)));
        }
        for (n, port) in ports.iter().enumerate() {
            for address in port.iter().flat_map(|port| &port.addresses) {
                owners.insert(*address, PortId(n as u16));
            }
        }
        let local_networks = local_networks.to_vec();
        Self { generation, ports, addresses, owners, local_networks, node_addresses, uplink, host }
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

    /// The pod port behind which `address` is.
    #[inline]
    pub fn pod_of(&self, address: Address) -> Option<(PortId, &PortState)> {
        let id = self.owner(address)?;
        self.port(id).filter(|port| port.kind == PortKind::Pod).map(|port| (id, port))
    }

    /// Where a packet to `destination` leaves.
    #[inline]
    pub fn route(&self, destination: Address) -> Option<PortId> {
        if let Some(port) = self.owner(destination) {
            return Some(port);
        }
        let ip = destination.to_ip();
        if self.local_networks.iter().any(|net| net.contains(&ip)) {
            return None;
        }
        self.uplink.or(self.host)
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
