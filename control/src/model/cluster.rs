//! Pods, namespaces and nodes.

use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::{Addresses, DeniedReply, Labels, Protocol, Stage, Uid};
use crate::PodKey;

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Namespace {
    /// Its name.
    pub name: Arc<str>,
    /// Its labels; `kubernetes.io/metadata.name` is always among them.
    pub labels: Arc<Labels>,
    /// Whether all of the object could be read. If not, its pods are closed.
    #[serde(default = "yes")]
    pub complete: bool,
    /// Its annotation [`DeniedReply::ANNOTATION`].
    #[serde(default)]
    pub denied_reply: Option<DeniedReply>,
    /// Its annotation [`Stage::ANNOTATION`].
    #[serde(default)]
    pub stage: Option<Stage>,
}

/// The value of the field in a saved state without it.
fn yes() -> bool {
    true
}

impl Namespace {
    /// The label every namespace carries, with its name as value.
    pub const NAME_LABEL: &'static str = "kubernetes.io/metadata.name";

    /// A namespace with these labels and [`Self::NAME_LABEL`].
    pub fn new(name: Arc<str>, labels: &Labels) -> Self {
        let labels = Arc::new(labels.with(Self::NAME_LABEL, &name));
        Self { name, labels, complete: true, denied_reply: None, stage: None }
    }
}

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pod {
    /// Namespace and name.
    pub key: PodKey,
    /// Distinguishes it from other pods of the same name: `metadata.uid`, or for the mirror of a
    /// static pod the annotation `kubernetes.io/config.hash`. `None` where absent.
    pub uid: Option<Uid>,
    /// Whether `uid` comes from the annotation. The author of an object writes that, so another pod
    /// whose `metadata.uid` it is has it.
    #[serde(default)]
    pub is_static: bool,
    /// `metadata.deletionTimestamp` is there: its address may be another pod's by now.
    #[serde(default)]
    pub is_terminating: bool,
    /// Labels; shared between pods with the same ones.
    pub labels: Arc<Labels>,
    /// `spec.nodeName`; `None` while not scheduled.
    pub node: Option<Arc<str>>,
    /// `status.podIPs`, or `status.podIP` where the list is absent.
    pub addresses: Addresses,
    /// `spec.hostNetwork`: the pod has its node's addresses. Policies hold for it only where
    /// they are asked to, at [`PodPorts::declared`].
    pub host_network: bool,
    /// Phase `Succeeded` or `Failed`: the pod will not run again and its address may be reused.
    pub finished: bool,
    /// Seconds since the epoch of `metadata.creationTimestamp`, 0 where absent; orders pods that
    /// claim the same address.
    pub created: u32,
    /// Ports of the containers; shared between pods with the same ones.
    #[serde(flatten)]
    pub ports: Arc<PodPorts>,
    /// Whether all of the object could be read. If not, the pod is closed.
    pub complete: bool,
}

/// Ports of a pod's containers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PodPorts {
    /// Those with names.
    #[serde(rename = "ports")]
    pub named: Arc<[ContainerPort]>,
    /// Ports of the node that lead to the pod.
    #[serde(default, rename = "host_ports")]
    pub host: Arc<[HostPort]>,
    /// The ports that containers of a pod on the host network declare, sorted: they are the
    /// node's, and no two pods have the same one. Empty for other pods.
    #[serde(default, rename = "declared_ports")]
    pub declared: Arc<[(Protocol, u16)]>,
}

/// A named container port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ContainerPort {
    /// `name`.
    pub name: Arc<str>,
    /// `protocol`, TCP where absent.
    pub protocol: Protocol,
    /// `containerPort`.
    pub number: u16,
}

/// A container port that is reached at the node as well.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HostPort {
    /// `hostPort`.
    pub number: u16,
    /// `hostIP`; `None` where absent: every address of the node.
    pub address: Option<IpAddr>,
    /// `protocol`, TCP where absent.
    pub protocol: Protocol,
    /// `containerPort`.
    pub target: u16,
}

impl Pod {
    /// The label that a pod of a service account has, other than `default`: its name. A label of the object with this
    /// key does not count, so selectors select pods by what the API server has let them run as.
    pub const SERVICE_ACCOUNT: &'static str = "podgate.io/service-account";

    /// The numbers that `name` stands for on this pod in policies: those of every container port with this
    /// name and protocol, each once, in the order of the containers. Several containers may use one name.
    pub fn named_ports(&self, name: &str, protocol: Protocol) -> impl Iterator<Item = u16> {
        let named = &self.ports.named;
        let is_it = move |port: &ContainerPort| &*port.name == name && port.protocol == protocol;
        let all = named.iter().enumerate().filter(move |(_, port)| is_it(port));
        let is_first = move |(at, port): &(usize, &ContainerPort)| {
            !named[..*at].iter().any(|before| is_it(before) && before.number == port.number)
        };
        all.filter(is_first).map(|(_, port)| port.number)
    }

    /// The number that `name` stands for as the target of a service: the first of [`named_ports`](Self::named_ports).
    pub fn named_port(&self, name: &str, protocol: Protocol) -> Option<u16> {
        self.named_ports(name, protocol).next()
    }

    /// Whether policies can select this pod and selectors match it: it has its own
    /// network and has not finished.
    pub fn is_on_pod_network(&self) -> bool {
        !self.host_network && !self.finished
    }
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its name.
    pub name: Arc<str>,
    /// Its labels.
    pub labels: Arc<Labels>,
    /// All of `status.addresses` that are IP addresses.
    pub addresses: Vec<IpAddr>,
    /// `spec.podCIDRs`, or `spec.podCIDR` where the list is absent.
    pub pod_cidrs: Vec<IpNet>,
    /// Its condition `Ready` is true.
    #[serde(default)]
    pub ready: bool,
    /// Seconds since the epoch of `metadata.creationTimestamp`, 0 where absent.
    #[serde(default)]
    pub created: u32,
    /// Whether all of the object could be read. If not, its labels, addresses and networks are
    /// those that could be read; every denial of `nodes` covers it and no permission does.
    pub complete: bool,
}

/// The addresses that a node's switch found on the node's interfaces. They add to what denials of the
/// node cover and to what no name opens, and open nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAddresses {
    /// The node's name, which is the object's.
    pub node: Arc<str>,
    /// `spec.addresses`, [`MOST`](Self::MOST) at most.
    pub addresses: Vec<IpAddr>,
    /// `spec.wireguard`: by what the other nodes encrypt what they send it.
    #[serde(default)]
    pub wireguard: Option<WireGuard>,
}

/// Where a node receives encrypted packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireGuard {
    /// `publicKey`: of Curve25519, in the order of RFC 7748.
    pub public_key: [u8; 32],
    /// `port`: UDP, at the node's addresses.
    pub port: u16,
    /// `nextPublicKey`: while the node changes its key, the one that it changes to; it receives by both.
    #[serde(default)]
    pub next: Option<[u8; 32]>,
    /// `hostNetwork`: whether its processes and those of other such nodes speak to each other encrypted as well.
    #[serde(default)]
    pub host_network: bool,
}

impl NodeAddresses {
    /// Maximum of addresses that a node publishes.
    pub const MOST: usize = 64;
}
