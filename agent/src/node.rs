//! One cluster node's snapshot: what the control side published, on the ports that are there.
//!
//! Used by everything that runs the graph: the live switch, replayed captures and probes.

use std::net::IpAddr;
use std::sync::Arc;

use control::{PodGate, PodKey, View};
use dataplane::wire::Mac;
use dataplane::{Gate, Parts, PortId, PortKind, PortState, Snapshot};

/// Name of the port towards this cluster node's kernel.
pub const HOST: &str = "host";
/// Name of the port towards other cluster nodes.
pub const UPLINK: &str = "uplink";

/// A port and whom it leads to.
#[derive(Clone, Debug)]
pub struct NodePort {
    /// Its number in the dataplane.
    pub id: PortId,
    /// MAC address of the other end, where it is known.
    pub mac: Option<Mac>,
    /// Whom it leads to.
    pub leads_to: LeadsTo,
}

/// Whom a port leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeadsTo {
    /// A pod with the addresses it was given.
    Pod(PodKey, Vec<IpAddr>),
    /// This cluster node's kernel.
    Host,
    /// Other cluster nodes.
    Uplink,
}

/// The snapshot of cluster node `node`.
///
/// `node_addresses` are addresses of the cluster node beyond those in its object (the host
/// port's gateway address, say). A pod that the view does not know is closed.
pub fn snapshot(
    view: &View,
    node: &str,
    node_addresses: &[IpAddr],
    generation: u64,
    ports: &[NodePort],
) -> Snapshot {
    let most = ports.iter().map(|port| usize::from(port.id.0) + 1).max().unwrap_or(0);
    let mut states: Vec<Option<PortState>> = vec![None; most];
    for port in ports {
        states[usize::from(port.id.0)] = Some(state(view, port));
    }
    let cluster_node = view.nodes.get(node);
    let mut own: Vec<IpAddr> = node_addresses.to_vec();
    own.extend(cluster_node.iter().flat_map(|node| &node.addresses));
    own.sort_unstable();
    own.dedup();
    Snapshot::new(Parts {
        generation,
        ports: states,
        addresses: Arc::clone(&view.addresses),
        node_addresses: own,
        local_networks: cluster_node.map_or_else(Vec::new, |node| node.pod_cidrs.clone()),
        ..Parts::default()
    })
}

fn state(view: &View, port: &NodePort) -> PortState {
    let (name, kind): (Arc<str>, _) = match &port.leads_to {
        LeadsTo::Pod(key, _) => (key.to_string().into(), PortKind::Pod),
        LeadsTo::Host => (HOST.into(), PortKind::Host),
        LeadsTo::Uplink => (UPLINK.into(), PortKind::Uplink),
    };
    let mut state = PortState { mac: port.mac, ..PortState::new(name, kind) };
    if let LeadsTo::Pod(key, addresses) = &port.leads_to {
        state.addresses = addresses.iter().map(|address| (*address).into()).collect();
        if let Some(pod) = view.pods.get(key) {
            state.to_pod = gate(&pod.to_pod);
            state.from_pod = gate(&pod.from_pod);
        }
    }
    state
}

fn gate(gate: &PodGate) -> Gate {
    match gate {
        PodGate::Open => Gate::Open,
        PodGate::Table(table) => Gate::Table(Arc::clone(table)),
    }
}
