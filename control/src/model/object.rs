//! Objects of any kind, their kinds and their names.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    ClusterEgressFirewall, ClusterHostFirewall, ClusterNetworkPolicy, EndpointSlice, Namespace,
    NetworkPolicy, Node, NodeAddresses, Pod, Report, Service,
};

/// A parsed object of any supported kind. Lists, cache, saved state and history share it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Object {
    /// v1 Namespace.
    Namespace(Arc<Namespace>),
    /// v1 Pod.
    Pod(Arc<Pod>),
    /// v1 Node.
    Node(Arc<Node>),
    /// v1 Service.
    Service(Arc<Service>),
    /// discovery.k8s.io/v1 EndpointSlice.
    EndpointSlice(Arc<EndpointSlice>),
    /// networking.k8s.io/v1 NetworkPolicy.
    NetworkPolicy(Arc<NetworkPolicy>),
    /// policy.networking.k8s.io/v1alpha2 ClusterNetworkPolicy, or v1alpha1 AdminNetworkPolicy or
    /// BaselineAdminNetworkPolicy.
    ClusterNetworkPolicy(Arc<ClusterNetworkPolicy>),
    /// podgate.io/v1alpha1 ClusterEgressFirewall.
    ClusterEgressFirewall(Arc<ClusterEgressFirewall>),
    /// podgate.io/v1alpha1 ClusterHostFirewall.
    ClusterHostFirewall(Arc<ClusterHostFirewall>),
    /// podgate.io/v1alpha1 NodeAddresses.
    NodeAddresses(Arc<NodeAddresses>),
}

impl Object {
    /// Kind, namespace and name.
    pub fn reference(&self) -> ObjectRef {
        let (namespace, name) = match self {
            Self::Namespace(it) => (None, &it.name),
            Self::Pod(it) => (Some(&it.key.namespace), &it.key.name),
            Self::Node(it) => (None, &it.name),
            Self::Service(it) => (Some(&it.key.namespace), &it.key.name),
            Self::EndpointSlice(it) => (Some(&it.key.namespace), &it.key.name),
            Self::NetworkPolicy(it) => (Some(&it.key.namespace), &it.key.name),
            Self::ClusterNetworkPolicy(it) => (None, &it.name),
            Self::ClusterEgressFirewall(it) => (None, &it.name),
            Self::ClusterHostFirewall(it) => (None, &it.name),
            Self::NodeAddresses(it) => (None, &it.node),
        };
        ObjectRef { kind: self.kind(), namespace: namespace.cloned(), name: Arc::clone(name) }
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Namespace(_) => Kind::Namespace,
            Self::Pod(_) => Kind::Pod,
            Self::Node(_) => Kind::Node,
            Self::Service(_) => Kind::Service,
            Self::EndpointSlice(_) => Kind::EndpointSlice,
            Self::NetworkPolicy(_) => Kind::NetworkPolicy,
            Self::ClusterNetworkPolicy(it) => it.kind,
            Self::ClusterEgressFirewall(_) => Kind::ClusterEgressFirewall,
            Self::ClusterHostFirewall(_) => Kind::ClusterHostFirewall,
            Self::NodeAddresses(_) => Kind::NodeAddresses,
        }
    }

    /// The generation and the status of a policy.
    pub fn report(&self) -> Option<&Report> {
        Some(match self {
            Self::NetworkPolicy(policy) => &policy.report,
            Self::ClusterNetworkPolicy(policy) => &policy.report,
            Self::ClusterEgressFirewall(firewall) => &firewall.report,
            Self::ClusterHostFirewall(firewall) => &firewall.report,
            _ => return None,
        })
    }
}

/// The kinds that Podgate reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    /// v1 Namespace.
    Namespace,
    /// v1 Pod.
    Pod,
    /// v1 Node.
    Node,
    /// v1 Service.
    Service,
    /// discovery.k8s.io/v1 EndpointSlice.
    EndpointSlice,
    /// networking.k8s.io/v1 NetworkPolicy.
    NetworkPolicy,
    /// policy.networking.k8s.io/v1alpha2 ClusterNetworkPolicy.
    ClusterNetworkPolicy,
    /// policy.networking.k8s.io/v1alpha1 AdminNetworkPolicy.
    AdminNetworkPolicy,
    /// policy.networking.k8s.io/v1alpha1 BaselineAdminNetworkPolicy.
    BaselineAdminNetworkPolicy,
    /// podgate.io/v1alpha1 ClusterEgressFirewall.
    ClusterEgressFirewall,
    /// podgate.io/v1alpha1 ClusterHostFirewall.
    ClusterHostFirewall,
    /// podgate.io/v1alpha1 NodeAddresses.
    NodeAddresses,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Namespace,
        Self::Pod,
        Self::Node,
        Self::Service,
        Self::EndpointSlice,
        Self::NetworkPolicy,
        Self::ClusterNetworkPolicy,
        Self::AdminNetworkPolicy,
        Self::BaselineAdminNetworkPolicy,
        Self::ClusterEgressFirewall,
        Self::ClusterHostFirewall,
        Self::NodeAddresses,
    ];

    /// `kind`, as objects spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Namespace => "Namespace",
            Self::Pod => "Pod",
            Self::Node => "Node",
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::NetworkPolicy => "NetworkPolicy",
            Self::ClusterNetworkPolicy => "ClusterNetworkPolicy",
            Self::AdminNetworkPolicy => "AdminNetworkPolicy",
            Self::BaselineAdminNetworkPolicy => "BaselineAdminNetworkPolicy",
            Self::ClusterEgressFirewall => "ClusterEgressFirewall",
            Self::ClusterHostFirewall => "ClusterHostFirewall",
            Self::NodeAddresses => "NodeAddresses",
        }
    }

    /// `apiVersion`, as objects spell it.
    pub const fn api_version(self) -> &'static str {
        match self {
            Self::Namespace | Self::Pod | Self::Node | Self::Service => "v1",
            Self::EndpointSlice => "discovery.k8s.io/v1",
            Self::NetworkPolicy => "networking.k8s.io/v1",
            Self::ClusterNetworkPolicy => "policy.networking.k8s.io/v1alpha2",
            Self::AdminNetworkPolicy | Self::BaselineAdminNetworkPolicy => {
                "policy.networking.k8s.io/v1alpha1"
            }
            Self::ClusterEgressFirewall | Self::ClusterHostFirewall | Self::NodeAddresses => {
                "podgate.io/v1alpha1"
            }
        }
    }

    /// The name in paths of the API.
    pub const fn plural(self) -> &'static str {
        match self {
            Self::Namespace => "namespaces",
            Self::Pod => "pods",
            Self::Node => "nodes",
            Self::Service => "services",
            Self::EndpointSlice => "endpointslices",
            Self::NetworkPolicy => "networkpolicies",
            Self::ClusterNetworkPolicy => "clusternetworkpolicies",
            Self::AdminNetworkPolicy => "adminnetworkpolicies",
            Self::BaselineAdminNetworkPolicy => "baselineadminnetworkpolicies",
            Self::ClusterEgressFirewall => "clusteregressfirewalls",
            Self::ClusterHostFirewall => "clusterhostfirewalls",
            Self::NodeAddresses => "nodeaddresses",
        }
    }

    /// Whether objects of this kind deny connections.
    pub const fn closes(self) -> bool {
        matches!(self, Self::NetworkPolicy) || self.is_cluster_policy()
    }

    /// Whether objects of this kind are cluster-wide policies.
    pub const fn is_cluster_policy(self) -> bool {
        matches!(
            self,
            Self::ClusterNetworkPolicy
                | Self::AdminNetworkPolicy
                | Self::BaselineAdminNetworkPolicy
                | Self::ClusterEgressFirewall
                | Self::ClusterHostFirewall
        )
    }

    /// Whether an API server may not know the kind: it comes with a CustomResourceDefinition.
    pub const fn may_be_absent(self) -> bool {
        matches!(self, Self::NodeAddresses) || self.is_cluster_policy()
    }

    /// Whether objects of this kind live in namespaces.
    pub const fn is_namespaced(self) -> bool {
        !matches!(self, Self::Namespace | Self::Node) && !self.may_be_absent()
    }
}

/// Kind, namespace and name of an object; printed as `KIND NS/NAME` or `KIND NAME`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ObjectRef {
    /// The kind.
    pub kind: Kind,
    /// The namespace; `None` for kinds that are in none.
    pub namespace: Option<Arc<str>>,
    /// The name.
    pub name: Arc<str>,
}

impl ObjectRef {
    /// The name, behind its namespace if it has one: `NAME` or `NS/NAME`.
    pub fn place(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{namespace}/{}", self.name),
            None => self.name.to_string(),
        }
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.name(), self.place())
    }
}
