//! Kubernetes objects, reduced to what the pipeline needs.
//!
//! All values are validated: only [`crate::objects`] makes these from API objects.

mod addresses;
mod cluster;
mod cluster_policy;
mod denied_reply;
mod labels;
mod object;
mod policy;
mod report;
mod selector;
mod service;
mod staging;
mod uid;

pub use acl::Direction;
pub use addresses::Addresses;
pub use cluster::{
    ContainerPort, HostPort, Namespace, Node, NodeAddresses, Pod, PodPorts, WireGuard,
};
pub use cluster_policy::{
    ClusterEgressFirewall, ClusterHostFirewall, ClusterNetworkPolicy, ClusterRule, RuleAction, Tier,
};
pub use denied_reply::DeniedReply;
pub use labels::Labels;
pub use object::{Kind, Object, ObjectRef};
pub use policy::{DirectionRules, Namespaces, NetworkPolicy, Peer, PolicyRule, PortSpec, Ports};
pub use report::{Condition, ConditionKind, Report};
pub use selector::{Requirement, Selector, Test};
pub use service::{
    Endpoint, EndpointPort, EndpointSlice, Hints, Service, ServicePort, TargetPort, Topology,
};
pub use staging::{Stage, Staging};
pub use uid::Uid;

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// The transport protocols that policies and services know.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
pub enum Protocol {
    /// Transmission Control Protocol; the default wherever Kubernetes lets it out.
    #[default]
    Tcp,
    /// User Datagram Protocol.
    Udp,
    /// Stream Control Transmission Protocol.
    Sctp,
}

impl Protocol {
    /// The IP protocol number (IANA).
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }

    /// From the name Kubernetes uses; `None` for any other text.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "TCP" => Some(Self::Tcp),
            "UDP" => Some(Self::Udp),
            "SCTP" => Some(Self::Sctp),
            _ => None,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        })
    }
}

impl Protocol {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];
}

/// Namespace and name of a pod; printed as `ns/pod`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PodKey {
    /// The pod's namespace.
    pub namespace: Arc<str>,
    /// The pod's name.
    pub name: Arc<str>,
}

impl fmt::Display for PodKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Namespace and name of a namespaced object other than a pod; orders by namespace, then
/// name, which is also the order policies are taken in.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    /// The object's namespace.
    pub namespace: Arc<str>,
    /// The object's name.
    pub name: Arc<str>,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
