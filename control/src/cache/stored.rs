//! Objects as the cache holds them.

use std::sync::Arc;

use serde::Serialize;

use crate::model::{
    ClusterEgressFirewall, ClusterHostFirewall, ClusterNetworkPolicy, EndpointSlice, Namespace,
    NetworkPolicy, Node, NodeAddresses, Pod, Service,
};

/// An [`Object`](crate::Object), shared; reads and writes the same.
#[derive(Debug, Serialize)]
pub(crate) enum StoredObject {
    Namespace(Namespace),
    Pod(Arc<Pod>),
    Node(Arc<Node>),
    Service(Arc<Service>),
    EndpointSlice(Arc<EndpointSlice>),
    NetworkPolicy(Arc<NetworkPolicy>),
    ClusterNetworkPolicy(Arc<ClusterNetworkPolicy>),
    ClusterEgressFirewall(Arc<ClusterEgressFirewall>),
    ClusterHostFirewall(Arc<ClusterHostFirewall>),
    NodeAddresses(Arc<NodeAddresses>),
}
