//! Builds the snapshot of one node from the control side's view and the open ports.
//!
//! Used by everything that runs the graph: the live switch, replayed captures and probes.

mod endpoints;
mod host_ports;
mod maker;
mod services;
mod switch_ports;

use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::sync::Arc;

use control::{ClusterNode, PodAcl, PodKey, PodView, View, model};
use dataplane::services::Services;
use dataplane::wire::Mac;
use dataplane::wire::vxlan::HOP_LIMIT;
use dataplane::{
    AclBinding, DeniedReply, Parts, Peer, PortId, PortKind, PortState, Routes, Snapshot,
    StagedAcls, Underlay,
};
use ipnet::IpNet;

use linux_net::host_port;

pub use maker::SnapshotMaker;
pub use services::ServiceMaker;
pub use switch_ports::SWITCH_ADDRESSES;

/// Name of the port towards this node's kernel.
pub const HOST: &str = "host";
/// Name of the port towards other nodes.
pub const UPLINK: &str = "uplink";

/// A port and its role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePort {
    /// Its number in the dataplane.
    pub id: PortId,
    /// MAC address of the peer, where it is known.
    pub mac: Option<Mac>,
    /// The port's own, where it is not the switch's.
    pub own_mac: Option<Mac>,
    /// Bytes of the largest packet that it takes; 0 if it takes any.
    pub mtu: u16,
    /// Its role.
    pub role: PortRole,
    /// `ns/pod`, `uplink` or `host`.
    pub name: Arc<str>,
}

impl NodePort {
    /// A port with defaults for everything else.
    pub fn new(id: PortId, role: PortRole) -> Self {
        let name = match &role {
            PortRole::Pod(key, _) => key.to_string().into(),
            PortRole::Host => HOST.into(),
            PortRole::Uplink => UPLINK.into(),
        };
        Self::named(id, role, name)
    }

    /// The same with a shared name, since each change in the cluster makes a snapshot.
    pub fn named(id: PortId, role: PortRole, name: Arc<str>) -> Self {
        Self { id, mac: None, own_mac: None, mtu: 0, role, name }
    }
}

/// The metadata service of clouds: the one link-local destination that pods reach by default.
pub const METADATA_SERVICE: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254));

/// The context of a node, beside its ports.
#[derive(Clone, Debug, Default)]
pub struct NodeContext {
    /// Addresses of the node beyond those of its object (the host port's gateway address,
    /// say).
    pub node_addresses: Vec<IpAddr>,
    /// Link-local destinations that pods reach through this node's kernel.
    pub link_local_destinations: Vec<IpNet>,
    /// Services, as this node sees them.
    pub services: Arc<Services>,
    /// Other nodes.
    pub routes: Arc<Routes>,
    /// The underlay on which they are reached.
    pub underlay: Underlay,
    /// Whether pods leave the cluster directly, as the node.
    pub masquerade: bool,
    /// Ports of the node for translated connections; see [`Parts`].
    pub translation_ports: Option<RangeInclusive<u16>>,
    /// One of so many decisions is verified; see [`Parts`].
    pub verify_every: u32,
}

/// The other end of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortRole {
    /// A pod with the addresses it was given.
    Pod(PodKey, Vec<IpAddr>),
    /// This node's kernel.
    Host,
    /// Other nodes.
    Uplink,
}

/// Builds the snapshot of node `node`. A pod that is not in the view is closed.
pub fn snapshot(
    view: &View,
    node: &str,
    node_context: NodeContext,
    generation: u64,
    ports: &[NodePort],
) -> Snapshot {
    let most = ports.iter().map(|port| usize::from(port.id.0) + 1).max().unwrap_or(0);
    let mut states: Vec<Option<PortState>> = vec![None; most];
    // Where ports are in the order of pods, one pass over both finds all.
    let mut pods = view.pods.iter().peekable();
    let mut find = |key: &PodKey| {
        while pods.next_if(|(known, _)| *known < key).is_some() {}
        let next = pods.next_if(|(known, _)| *known == key);
        next.map(|(_, pod)| pod).or_else(|| view.pods.get(key))
    };
    for port in ports {
        states[usize::from(port.id.0)] = Some(state(view, node, port, &mut find));
    }
    let cluster_node = view.nodes.get(node);
    Snapshot::new(Parts {
        generation,
        ports: states,
        addresses: Arc::clone(&view.addresses),
        live_addresses: Some(Arc::clone(&view.live_addresses)),
        node_addresses: cluster_node.map_or_else(Vec::new, |node| node.addresses.clone()),
        more_node_addresses: cluster_node
            .into_iter()
            .flat_map(|node| gateways(&node.pod_cidrs))
            .chain(node_context.node_addresses)
            .collect(),
        switch_addresses: SWITCH_ADDRESSES.to_vec(),
        local_networks: cluster_node.map_or_else(Vec::new, |node| node.pod_cidrs.clone()),
        link_local_destinations: node_context.link_local_destinations,
        services: node_context.services,
        routes: node_context.routes,
        underlay: node_context.underlay,
        masquerade: node_context.masquerade,
        outside: match &view.outside {
            PodAcl::Open => None,
            PodAcl::Table(table) => Some(Arc::clone(table)),
        },
        translation_ports: node_context.translation_ports,
        verify_every: node_context.verify_every,
    })
}

/// The next hop towards another node.
#[derive(Clone, Copy, Debug, Default)]
pub struct NextHop {
    /// Its MAC address, where it is known.
    pub mac: Option<Mac>,
    /// Whether it is a router: the other node is not on the uplink's link.
    pub is_router: bool,
    /// Bytes of the longest packet that the route takes; 0 if the uplink's MTU alone decides.
    pub mtu: u16,
}

/// Returns the other nodes that have an address; `next_hop` gives the next hop towards one.
pub fn peers(view: &View, node: &str, mut next_hop: impl FnMut(IpAddr) -> NextHop) -> Vec<Peer> {
    let own = view.nodes.get(node);
    let has_v4 = own.is_some_and(|own| own.addresses.first().is_some_and(IpAddr::is_ipv4));
    let others = view.nodes.iter().filter(|(name, _)| &***name != node);
    let peer = |(name, other): (&Arc<str>, &Arc<ClusterNode>)| {
        // Tunnels use the family of the nodes' first addresses.
        let endpoint = other.addresses.iter().find(|it| it.is_ipv4() == has_v4)?;
        let hop = next_hop(*endpoint);
        Some(Peer {
            name: name.to_string(),
            addresses: other.addresses.iter().map(|address| (*address).into()).collect(),
            more_addresses: gateways(&other.pod_cidrs).map(Into::into).collect(),
            networks: other.pod_cidrs.clone(),
            endpoint: (*endpoint).into(),
            next_hop: hop.mac,
            mtu: hop.mtu,
            least_hop_limit: if hop.is_router { 0 } else { HOP_LIMIT },
        })
    };
    others.filter_map(peer).collect()
}

/// Addresses of a node's kernel on its host port that other nodes can reach: its
/// processes answer there.
pub fn gateways(pod_networks: &[IpNet]) -> impl Iterator<Item = IpAddr> {
    let has_networks = !pod_networks.is_empty();
    has_networks.then(|| host_port::gateways(pod_networks)).into_iter().flatten()
}

fn state<'v>(
    view: &View,
    node: &str,
    port: &NodePort,
    mut find: impl FnMut(&PodKey) -> Option<&'v Arc<PodView>>,
) -> PortState {
    let kind = match &port.role {
        PortRole::Pod(..) => PortKind::Pod,
        PortRole::Host => PortKind::Host,
        PortRole::Uplink => PortKind::Uplink,
    };
    let name = Arc::clone(&port.name);
    let mut state = PortState { mac: port.mac, mtu: port.mtu, ..PortState::new(name, kind) };
    state.own_mac = port.own_mac.unwrap_or(state.own_mac);
    if port.role == PortRole::Host
        && let Some(acls) = view.host_services.get(node)
    {
        [state.to_pod, state.from_pod] = acls.each_ref().map(binding);
    }
    if let PortRole::Pod(key, addresses) = &port.role {
        state.addresses = addresses.iter().map(|address| (*address).into()).collect();
        if let Some(pod) = find(key) {
            state.to_pod = binding(&pod.to_pod);
            state.from_pod = binding(&pod.from_pod);
            state.follows_names = !pod.names.is_empty();
            state.denied_reply = denied_reply(pod.denied_reply);
            state.staged = pod.staged.as_ref().map(|[to_pod, from_pod]| {
                let (to_pod, from_pod) = (binding(to_pod), binding(from_pod));
                Arc::new(StagedAcls { to_pod, from_pod })
            });
        }
    }
    state
}

fn denied_reply(reply: model::DeniedReply) -> DeniedReply {
    match reply {
        model::DeniedReply::Drop => DeniedReply::Drop,
        model::DeniedReply::Reject => DeniedReply::Reject,
        model::DeniedReply::RejectAll => DeniedReply::RejectAll,
    }
}

fn binding(binding: &PodAcl) -> AclBinding {
    match binding {
        PodAcl::Open => AclBinding::Open,
        PodAcl::Table(table) => AclBinding::Table(Arc::clone(table)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view() -> View {
        let node = |address: &str, cidr: &str| {
            Arc::new(ClusterNode {
                addresses: vec![address.parse().unwrap()],
                pod_cidrs: vec![cidr.parse().unwrap()],
                ..ClusterNode::default()
            })
        };
        let near = (Arc::from("near"), node("192.0.2.1", "10.1.0.0/24"));
        let far = (Arc::from("far"), node("192.0.2.2", "10.2.0.0/24"));
        View { nodes: Arc::new([near, far].into()), ..View::default() }
    }

    #[test]
    fn a_cluster_node_has_the_gateway_addresses_of_its_pod_networks() {
        let more = vec!["172.17.0.1".parse().unwrap()];
        let context = NodeContext { node_addresses: more, ..NodeContext::default() };
        let host = NodePort::new(PortId(0), PortRole::Host);
        let snapshot = snapshot(&view(), "near", context, 1, &[host]);
        let is_own = |text: &str| snapshot.is_own_node(text.parse::<IpAddr>().unwrap().into());
        assert!(is_own("192.0.2.1") && is_own("10.1.0.1") && is_own("172.17.0.1"));
        assert!(!is_own("192.0.2.2") && !is_own("10.2.0.1") && !is_own("10.1.0.2"));
        let peers = peers(&view(), "near", |_| NextHop::default());
        assert_eq!(peers.len(), 1);
        assert_eq!(peers[0].more_addresses, ["10.2.0.1".parse::<IpAddr>().unwrap().into()]);
    }

    #[test]
    fn tunnel_packets_of_a_neighbour_have_passed_no_router() {
        for (is_router, least) in [(false, 255), (true, 0)] {
            let peers = peers(&view(), "near", |_| NextHop { is_router, ..NextHop::default() });
            assert_eq!(peers[0].least_hop_limit, least);
        }
    }
}
