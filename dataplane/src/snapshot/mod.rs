//! Snapshots: the immutable configuration of all workers.

mod adjacency;
mod forwarding;
mod node_addresses;
mod owners;
mod port;
mod routes;

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use acl::{Address, AddressMap, Table};
use ipnet::IpNet;

pub use adjacency::{Adjacency, Egress};
pub(crate) use port::PortLine;
pub use port::{AclBinding, DeniedReply, PortId, PortKind, PortState, StagedAcls};
pub use routes::{Peer, Routes};

use crate::services::{Entry, Services};
use crate::wire::Flow;
use crate::wire::vxlan::Vxlan;
pub(crate) use node_addresses::is_link_local;
use node_addresses::{NodeAddresses, Prefixes};
use owners::Owners;

/// The way to pods of other nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Underlay {
    /// Their packets leave by the uplink as they are, to whatever router is there.
    #[default]
    Plain,
    /// Their packets leave by the uplink as they are, to the node that has them.
    Routed,
    /// Their packets travel in VXLAN tunnels between nodes.
    Overlay(Vxlan),
}

impl Underlay {
    /// The overlay, where there is one.
    #[inline]
    pub fn overlay(&self) -> Option<&Vxlan> {
        match self {
            Self::Overlay(overlay) => Some(overlay),
            Self::Plain | Self::Routed => None,
        }
    }
}

/// The parts of a snapshot.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    /// Grows with each published snapshot.
    pub generation: u64,
    /// Ports by number.
    pub ports: Vec<Option<PortState>>,
    /// The identities that the tables were compiled for.
    pub addresses: Arc<AddressMap>,
    /// The same for sessions that are re-evaluated, if they differ; of the same lineage, and with all
    /// of its identities.
    pub live_addresses: Option<Arc<AddressMap>>,
    /// Addresses of this node's Node object, the one that it is known by first (of each
    /// family).
    pub node_addresses: Vec<IpAddr>,
    /// Other addresses at which its own processes are reached. For policies they are the
    /// node's as well; see [`Snapshot::policy_addresses`].
    pub more_node_addresses: Vec<IpAddr>,
    /// The switch's own addresses on the host port, which the kernel does not have: sources of ICMP
    /// errors to it, one a family.
    pub switch_addresses: Vec<IpAddr>,
    /// Pod networks of this node: routed only to its pods.
    pub local_networks: Vec<IpNet>,
    /// Rules about clients outside whom services lead to no pod; they match the destination.
    /// Without a table that is everything.
    pub outside: Option<Arc<Table>>,
    /// Link-local IPv4 destinations that pods reach through this node's kernel.
    pub link_local_destinations: Vec<IpNet>,
    /// Services.
    pub services: Arc<Services>,
    /// Other nodes.
    pub routes: Arc<Routes>,
    /// The route to them.
    pub underlay: Underlay,
    /// Whether connections of pods to the world outside the cluster leave directly by the
    /// uplink, from the node's own address, instead of through its kernel.
    pub masquerade: bool,
    /// Ports of the node's own addresses that only translated connections use; all
    /// dynamic ones where this is `None`.
    pub translation_ports: Option<RangeInclusive<u16>>,
    /// One of so many decisions about new connections is verified by the definition of the rules; 0 is
    /// none.
    pub verify_every: u32,
}

/// Everything a worker needs; immutable, replaced whole. What is large is shared with its copies.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Grows with each published snapshot.
    pub generation: u64,
    ports: Arc<[Option<PortState>]>,
    lines: Arc<[Option<PortLine>]>,
    addresses: Arc<AddressMap>,
    live_addresses: Arc<AddressMap>,
    /// Port of each address behind pod ports, and the host port for the node's own:
    /// [`PortId::NONE`] where there is none.
    owners: Owners,
    /// A bit for the last bits of each address of the node itself: says of most others that
    /// they are not among them.
    own_filter: u64,
    local_networks: Prefixes,
    link_local_destinations: Prefixes,
    outside: AclBinding,
    node: NodeAddresses,
    switch_addresses: Vec<Address>,
    services: Arc<Services>,
    routes: Arc<Routes>,
    underlay: Underlay,
    masquerade: bool,
    translation_ports: RangeInclusive<u16>,
    uplink: Option<PortId>,
    host: Option<PortId>,
    /// Whether any port replies to denials.
    rejects: bool,
    /// Whether packets may take frames of their own: any port replies to denials, or does not take
    /// every packet.
    needs_spare_frames: bool,
    /// Whether any port has staged ACLs.
    is_staged: bool,
    verify_every: u32,
}

/// Dynamic ports (RFC 6335, section 6).
const DYNAMIC_PORTS: RangeInclusive<u16> = 49_152..=u16::MAX;

#[inline]
fn filter_bit(address: Address) -> u64 {
    1 << (address.bits() as u64 % 64)
}

/// An empty snapshot.
impl Default for Snapshot {
    fn default() -> Self {
        Self::new(Parts::default())
    }
}

impl Snapshot {
    /// A snapshot of these parts.
    ///
    /// Destinations neither here nor on another node are routed to the uplink, or to the
    /// host port without an uplink or where the kernel masquerades.
    pub fn new(parts: Parts) -> Self {
        let Parts { generation, ports, addresses, services, routes, underlay, .. } = parts;
        let of_kind = |kind| {
            let found = ports
                .iter()
                .position(|port| port.as_ref().is_some_and(|port: &PortState| port.kind == kind));
            found.map(|n| PortId(n as u16))
        };
        let (uplink, host) = (of_kind(PortKind::Uplink), of_kind(PortKind::Host));
        let node = NodeAddresses::new(&parts.node_addresses, &parts.more_node_addresses);
        let of_node = node.all().iter().map(|address| (*address, host.unwrap_or(PortId::NONE)));
        let of_ports = ports.iter().zip(0..).flat_map(|(port, n)| {
            let addresses = port.iter().flat_map(|port| &port.addresses);
            addresses.map(move |address| (*address, PortId(n)))
        });
        let owned: Vec<_> = of_node.chain(of_ports).collect();
        let of_host = host.and_then(|host| ports[usize::from(host.0)].as_ref());
        let own = node.all().iter().chain(of_host.iter().flat_map(|port| &port.addresses));
        let own_filter = own.fold(0, |filter, address| filter | filter_bit(*address));
        let rejects = ports.iter().flatten().any(|port| port.denied_reply != DeniedReply::Drop);
        let is_staged = ports.iter().flatten().any(|port| port.staged.is_some());
        let ports_are_narrow = ports.iter().flatten().any(|port| port.mtu > 0);
        Self {
            generation,
            own_filter,
            lines: ports.iter().map(|port| port.as_ref().map(PortLine::new)).collect(),
            ports: ports.into(),
            live_addresses: parts.live_addresses.unwrap_or_else(|| Arc::clone(&addresses)),
            addresses,
            owners: Owners::new(&owned),
            local_networks: Prefixes::new(&parts.local_networks),
            outside: parts.outside.map_or(AclBinding::Open, AclBinding::Table),
            link_local_destinations: Prefixes::new(&parts.link_local_destinations),
            node,
            switch_addresses: parts.switch_addresses.into_iter().map(Address::from).collect(),
            services,
            routes,
            underlay,
            masquerade: parts.masquerade,
            translation_ports: parts.translation_ports.unwrap_or(DYNAMIC_PORTS),
            uplink,
            host,
            rejects,
            needs_spare_frames: rejects || ports_are_narrow,
            is_staged,
            verify_every: parts.verify_every,
        }
    }

    /// The same ports, services and nodes, with other address maps of the same lineage.
    #[must_use]
    pub fn with_addresses(
        &self,
        generation: u64,
        addresses: Arc<AddressMap>,
        live_addresses: Arc<AddressMap>,
    ) -> Self {
        Self { generation, addresses, live_addresses, ..self.clone() }
    }

    /// Whether the generation and the address maps are all that `other` may have of its own:
    /// [`Self::with_addresses`] made one of them of the other.
    pub fn shares_ports(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.ports, &other.ports)
    }

    /// The port with this number.
    #[inline]
    pub fn port(&self, id: PortId) -> Option<&PortState> {
        self.ports.get(usize::from(id.0)).and_then(Option::as_ref)
    }

    /// The fields of a port that every packet needs.
    #[inline]
    pub(crate) fn line(&self, id: PortId) -> Option<&PortLine> {
        self.lines.get(usize::from(id.0)).and_then(Option::as_ref)
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

    /// Whether an address is neither of a pod nor of a node.
    #[inline]
    pub fn is_outside(&self, address: Address) -> bool {
        self.owner(address).is_none()
            && !self.is_own_node(address)
            && self.routes.find(address).is_none()
    }

    /// Whether any port replies to denials.
    pub(crate) fn rejects(&self) -> bool {
        self.rejects
    }

    /// Whether packets may take frames of their own.
    pub(crate) fn needs_spare_frames(&self) -> bool {
        self.needs_spare_frames
    }

    /// Whether any port has staged ACLs.
    pub fn is_staged(&self) -> bool {
        self.is_staged
    }

    /// One of so many decisions is verified; 0 is none.
    #[inline]
    pub(crate) fn verify_every(&self) -> u32 {
        self.verify_every
    }

    /// The ACL of clients outside whom services lead to what is no pod.
    pub(crate) fn outside(&self) -> &AclBinding {
        &self.outside
    }

    /// The port that owns an address: a pod's, or the host port for the node's own.
    #[inline]
    pub fn owner(&self, address: Address) -> Option<PortId> {
        self.owners.find(address).filter(|port| *port != PortId::NONE)
    }

    /// Whether an address belongs to this node or its pods: one of its own, or one of their
    /// networks, taken or not.
    #[inline]
    pub fn is_local(&self, address: Address) -> bool {
        self.owners.find(address).is_some() || self.local_networks.contains(address)
    }

    /// Whether an address belongs to a pod, or is kept for one, here or on another node that
    /// is reached by the uplink alone.
    #[inline]
    pub fn is_pod(&self, address: Address) -> bool {
        let is_elsewhere = || {
            let by_uplink = self.uplink.is_some() && self.underlay != Underlay::Plain;
            by_uplink && self.routes.is_pod(address)
        };
        match self.owner(address) {
            Some(port) => self.pod(port).is_some(),
            None => {
                self.local_networks.contains(address) && !self.is_own_node(address)
                    || is_elsewhere()
            }
        }
    }

    /// The port with this number, if it is a pod's.
    #[inline]
    pub fn pod(&self, id: PortId) -> Option<&PortState> {
        self.port(id).filter(|port| port.kind == PortKind::Pod)
    }

    /// Whether an address is in the pod networks of this node, taken or not.
    #[inline]
    pub(crate) fn is_in_pod_networks(&self, address: Address) -> bool {
        self.local_networks.contains(address)
    }

    /// The pod port behind which `address` is.
    #[inline]
    pub fn pod_of(&self, address: Address) -> Option<(PortId, &PortState)> {
        let id = self.owner(address)?;
        self.pod(id).map(|port| (id, port))
    }

    /// Ports of the node's own addresses for translated connections.
    pub fn translation_ports(&self) -> RangeInclusive<u16> {
        self.translation_ports.clone()
    }

    /// The way to pods of other nodes.
    #[inline]
    pub fn underlay(&self) -> &Underlay {
        &self.underlay
    }

    /// Other nodes.
    #[inline]
    pub fn routes(&self) -> &Routes {
        &self.routes
    }

    /// Services.
    #[inline]
    pub fn services(&self) -> &Services {
        &self.services
    }

    /// The service that a flow is for: at one of its addresses, or a node port.
    pub fn service(&self, flow: &Flow) -> Option<&Entry> {
        self.services.find(flow).or_else(|| {
            let is_own = self.is_own_node(flow.destination);
            is_own.then(|| self.services.find_node_port(flow)).flatten()
        })
    }

    /// The address that the node is known by, of the family of `like`.
    pub fn node_address(&self, like: Address) -> Option<Address> {
        self.node.all().iter().copied().find(|address| address.is_v4() == like.is_v4())
    }

    /// The switch's own address on the host port, of the family of `like`.
    pub fn switch_address(&self, like: Address) -> Option<Address> {
        self.switch_addresses.iter().copied().find(|address| address.is_v4() == like.is_v4())
    }

    /// Whether `address` is one of this node's own.
    #[inline]
    pub fn is_own_node(&self, address: Address) -> bool {
        // A pod that was given one of them has it.
        let is_hosts = |port| port == self.host.unwrap_or(PortId::NONE);
        self.own_filter & filter_bit(address) != 0
            && self.owners.find(address).is_some_and(is_hosts)
    }

    /// Other addresses of the node whose processes are reached at `address`: those of its
    /// Node object, of the same family. What policies say about them holds for `address` as well.
    #[inline(always)]
    pub fn policy_addresses(&self, address: Address) -> impl Iterator<Item = Address> + Clone {
        let others = move |other: &Address| *other != address && other.is_v4() == address.is_v4();
        self.named_addresses(address).iter().copied().filter(others)
    }

    /// Whether there may be [such addresses](Self::policy_addresses).
    #[inline(always)]
    pub(crate) fn may_have_policy_addresses(&self, address: Address) -> bool {
        !self.named_addresses(address).is_empty()
    }

    #[inline(always)]
    fn named_addresses(&self, address: Address) -> &[Address] {
        match self.is_own_node(address) {
            true => self.node.named(),
            false => self.routes.named_addresses(address),
        }
    }

    /// The address map that the tables were compiled for.
    #[inline]
    pub fn address_map(&self) -> &AddressMap {
        &self.addresses
    }

    /// The same for sessions that are re-evaluated: addresses that open no connection any more may
    /// keep those that are open.
    #[inline]
    pub fn live_address_map(&self) -> &AddressMap {
        &self.live_addresses
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
