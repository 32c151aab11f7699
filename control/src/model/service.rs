//! Services and their endpoints.

use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::{Addresses, Key, Protocol};

/// A v1 Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// Namespace and name.
    pub key: Key,
    /// `spec.clusterIPs` (or `clusterIP`) without `None`.
    pub cluster_ips: Vec<IpAddr>,
    /// `spec.externalIPs`.
    pub external_ips: Vec<IpAddr>,
    /// Addresses of `status.loadBalancer.ingress` of mode `VIP`.
    pub load_balancer_ips: Vec<IpAddr>,
    /// `spec.loadBalancerSourceRanges`: the only sources that `load_balancer_ips` admit; `None`
    /// admits all.
    #[serde(default)]
    pub source_ranges: Option<Vec<IpNet>>,
    /// `spec.ports`.
    pub ports: Vec<ServicePort>,
    /// `externalTrafficPolicy: Local`.
    pub external_local: bool,
    /// `internalTrafficPolicy: Local`.
    pub internal_local: bool,
    /// `sessionAffinity: ClientIP` with its timeout in seconds.
    pub affinity_seconds: Option<u32>,
    /// `healthCheckNodePort` of a load balancer with `externalTrafficPolicy: Local`.
    #[serde(default)]
    pub health_check_node_port: Option<u16>,
}

impl Service {
    /// The addresses that the cluster gave it: not those that its `spec` asks for.
    pub fn given_addresses(&self) -> impl Iterator<Item = &IpAddr> {
        self.cluster_ips.iter().chain(&self.load_balancer_ips)
    }
}

/// One element of a service's `spec.ports`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServicePort {
    /// `name`; empty where absent.
    pub name: Arc<str>,
    /// `protocol`.
    pub protocol: Protocol,
    /// `port`.
    pub port: u16,
    /// `targetPort`, the same as `port` where absent.
    pub target: TargetPort,
    /// `nodePort`.
    pub node_port: Option<u16>,
}

/// The target port of a service port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TargetPort {
    /// A number.
    Number(u16),
    /// The name of a container port.
    Name(Arc<str>),
}

/// A discovery.k8s.io/v1 EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointSlice {
    /// Namespace and name.
    pub key: Key,
    /// The service it belongs to: label `kubernetes.io/service-name`.
    pub service: Option<Arc<str>>,
    /// `endpoints`; shared by the copies of a slice.
    pub endpoints: Arc<[Endpoint]>,
    /// `ports`.
    pub ports: Vec<EndpointPort>,
}

/// One element of `endpoints`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// `addresses`.
    pub addresses: Addresses,
    /// `conditions.ready`, true where absent.
    pub ready: bool,
    /// `conditions.serving`, as `ready` where absent.
    pub serving: bool,
    /// `conditions.terminating`, false where absent.
    pub terminating: bool,
    /// Its node and its hints.
    #[serde(flatten)]
    pub topology: Arc<Topology>,
}

/// Where an endpoint is, and where it is meant to be used; shared by the endpoints that have it in common.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Topology {
    /// `nodeName`.
    pub node: Option<Arc<str>>,
    /// `hints`.
    #[serde(default, skip_serializing_if = "Hints::is_empty")]
    pub hints: Hints,
}

/// The consumers an endpoint is meant for; an empty list is no hint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Hints {
    /// `forZones`.
    pub zones: Vec<Arc<str>>,
    /// `forNodes`.
    pub nodes: Vec<Arc<str>>,
}

impl Hints {
    fn is_empty(&self) -> bool {
        self.zones.is_empty() && self.nodes.is_empty()
    }
}

impl Topology {
    /// The same, with what `other` has and this one does not.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        let hints = if self.hints.is_empty() { &other.hints } else { &self.hints };
        Self { node: self.node.clone().or_else(|| other.node.clone()), hints: hints.clone() }
    }
}

/// One element of an endpoint slice's `ports`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointPort {
    /// `name`; empty where absent.
    pub name: Arc<str>,
    /// `protocol`.
    pub protocol: Protocol,
    /// `port`; absent means every port, which services never use.
    pub port: Option<u16>,
}
