//! Kubernetes' rules as its documents state them, object by object.
//!
//! Written from <https://kubernetes.io/docs/concepts/services-networking/network-policies/>
//! and the field documentation of the API types, without rules, tables or sets. It answers
//! for one pod, one direction and one connection.

mod cluster_wide;
pub(crate) mod written;

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use serde_json::Value;

use super::generate::Edit;
use super::{SCTP, TCP, UDP};

type Labels = BTreeMap<String, String>;

/// The cluster as the API server has it, by namespace and name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cluster {
    pub(crate) namespaces: BTreeMap<String, Namespace>,
    pub(crate) pods: BTreeMap<(String, String), Pod>,
    pub(crate) policies: BTreeMap<(String, String), NetworkPolicy>,
    pub(crate) nodes: BTreeMap<String, Node>,
    /// ClusterNetworkPolicies, AdminNetworkPolicies and BaselineAdminNetworkPolicies by kind and name.
    pub(crate) cluster_policies: BTreeMap<(String, String), Value>,
    /// ClusterEgressFirewalls by name.
    pub(crate) firewalls: BTreeMap<String, Value>,
    /// Services and endpoint slices by namespace and name.
    pub(crate) services: BTreeMap<(String, String), Value>,
    pub(crate) slices: BTreeMap<(String, String), Value>,
}

/// Verdict of a tier on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Accept,
    Deny,
    Nothing,
}

/// The far end and the kind of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connection {
    /// The address of the other end.
    pub(crate) peer: IpAddr,
    /// IP protocol number.
    pub(crate) protocol: u8,
    /// Destination port.
    pub(crate) port: u16,
}

impl Cluster {
    /// Applies an edit.
    pub(crate) fn apply(&mut self, edit: &Edit) {
        match edit {
            Edit::Apply(value) => {
                let text = |field: &str| value["metadata"][field].as_str().unwrap_or("").to_owned();
                let (namespace, name) = (text("namespace"), text("name"));
                let kind = value["kind"].as_str().unwrap();
                match kind {
                    "Namespace" => {
                        let object = serde_json::from_value(value.clone()).unwrap();
                        self.namespaces.insert(name, object);
                    }
                    "Pod" => {
                        let object = serde_json::from_value(value.clone()).unwrap();
                        self.pods.insert((namespace, name), object);
                    }
                    "Node" => {
                        let object = serde_json::from_value(value.clone()).unwrap();
                        self.nodes.insert(name, object);
                    }
                    "ClusterNetworkPolicy"
                    | "AdminNetworkPolicy"
                    | "BaselineAdminNetworkPolicy" => {
                        self.cluster_policies.insert((kind.to_owned(), name), value.clone());
                    }
                    "ClusterEgressFirewall" => {
                        self.firewalls.insert(name, value.clone());
                    }
                    "Service" => drop(self.services.insert((namespace, name), value.clone())),
                    "EndpointSlice" => drop(self.slices.insert((namespace, name), value.clone())),
                    _ => {
                        let object = serde_json::from_value(value.clone()).unwrap();
                        self.policies.insert((namespace, name), object);
                    }
                }
            }
            Edit::Delete(kind, namespace, name) => {
                let key = ((*namespace).to_owned(), (*name).to_owned());
                match *kind {
                    "Namespace" => drop(self.namespaces.remove(*name)),
                    "Pod" => drop(self.pods.remove(&key)),
                    "Node" => drop(self.nodes.remove(*name)),
                    "ClusterNetworkPolicy"
                    | "AdminNetworkPolicy"
                    | "BaselineAdminNetworkPolicy" => {
                        drop(self.cluster_policies.remove(&((*kind).to_owned(), key.1)));
                    }
                    "ClusterEgressFirewall" => drop(self.firewalls.remove(*name)),
                    "Service" => drop(self.services.remove(&key)),
                    "EndpointSlice" => drop(self.slices.remove(&key)),
                    _ => drop(self.policies.remove(&key)),
                }
            }
        }
    }

    /// Whether all policies together let `pod` receive the connection (its ingress) or open it:
    /// every egress firewall, then Admin tier, NetworkPolicies, Baseline tier, then yes.
    pub(crate) fn permits(&self, pod: &Pod, is_ingress: bool, connection: Connection) -> bool {
        if !is_ingress && self.firewalls.values().any(|it| self.blocks(it, pod, connection)) {
            return false;
        }
        match self.tier("Admin", pod, is_ingress, connection) {
            Said::Accept => return true,
            Said::Deny => return false,
            Said::Nothing => {}
        }
        match self.namespaced(pod, is_ingress, connection) {
            Said::Accept => return true,
            Said::Deny => return false,
            Said::Nothing => {}
        }
        self.tier("Baseline", pod, is_ingress, connection) != Said::Deny
    }

    fn namespace_labels(&self, pod: &Pod) -> Labels {
        let namespace = pod.metadata.namespace.clone().unwrap();
        let object = self.namespaces.get(&namespace);
        let mut labels: Labels =
            object.and_then(|it| it.metadata.labels.clone()).unwrap_or_default();
        labels.insert("kubernetes.io/metadata.name".into(), namespace);
        labels
    }

    /// Whether NetworkPolicies let `pod` receive the connection (its ingress) or open it.
    fn namespaced(&self, pod: &Pod, is_ingress: bool, connection: Connection) -> Said {
        let namespace = pod.metadata.namespace.as_deref().unwrap();
        let isolating: Vec<&NetworkPolicy> = self
            .policies
            .values()
            .filter(|policy| policy.metadata.namespace.as_deref() == Some(namespace))
            .filter(|policy| {
                let selector = policy.spec.as_ref().unwrap().pod_selector.clone();
                selects(&selector.unwrap_or_default(), &labels(pod))
            })
            .filter(|policy| is_about(policy, is_ingress))
            .collect();
        if isolating.is_empty() {
            return Said::Nothing;
        }
        let mut each = isolating.iter();
        match each.any(|policy| self.one_permits(policy, pod, is_ingress, connection)) {
            true => Said::Accept,
            false => Said::Deny,
        }
    }

    fn one_permits(
        &self,
        policy: &NetworkPolicy,
        pod: &Pod,
        is_ingress: bool,
        connection: Connection,
    ) -> bool {
        let spec = policy.spec.clone().unwrap();
        let rules: Vec<(Vec<NetworkPolicyPeer>, Vec<NetworkPolicyPort>)> = match is_ingress {
            true => spec
                .ingress
                .unwrap_or_default()
                .into_iter()
                .map(|rule| (rule.from.unwrap_or_default(), rule.ports.unwrap_or_default()))
                .collect(),
            false => spec
                .egress
                .unwrap_or_default()
                .into_iter()
                .map(|rule| (rule.to.unwrap_or_default(), rule.ports.unwrap_or_default()))
                .collect(),
        };
        let other = self.pod_at(connection.peer);
        // Port names are those of the pod that is connected to.
        let target = if is_ingress { Some(pod) } else { other };
        let own = policy.metadata.namespace.as_deref().unwrap();
        rules.iter().any(|(peers, ports)| {
            (peers.is_empty()
                || peers.iter().any(|peer| self.is_peer(peer, own, connection.peer, other)))
                && (ports.is_empty() || ports.iter().any(|port| is_port(port, target, connection)))
        })
    }

    /// The pod that has this address: one on its own network that has not finished.
    fn pod_at(&self, address: IpAddr) -> Option<&Pod> {
        self.pods.values().find(|pod| is_peer_at_all(pod) && addresses(pod).contains(&address))
    }

    fn is_peer(
        &self,
        peer: &NetworkPolicyPeer,
        own: &str,
        address: IpAddr,
        pod: Option<&Pod>,
    ) -> bool {
        if let Some(block) = &peer.ip_block {
            let inside = |net: &String| net.parse::<IpNet>().unwrap().contains(&address);
            return inside(&block.cidr) && !block.except.iter().flatten().any(inside);
        }
        let Some(pod) = pod else { return false };
        let namespace = pod.metadata.namespace.clone().unwrap();
        let namespace_fits = match &peer.namespace_selector {
            None => namespace == own,
            Some(selector) => selects(selector, &self.namespace_labels(pod)),
        };
        let pod_fits =
            peer.pod_selector.as_ref().is_none_or(|selector| selects(selector, &labels(pod)));
        namespace_fits && pod_fits
    }
}

/// Pods that policies select and that selectors match.
pub(crate) fn is_peer_at_all(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    !pod.spec.as_ref().unwrap().host_network.unwrap_or(false)
        && !matches!(phase, Some("Succeeded" | "Failed"))
}

/// All addresses in the pod's status.
pub(crate) fn addresses(pod: &Pod) -> Vec<IpAddr> {
    let ips = pod.status.as_ref().and_then(|status| status.pod_ips.clone()).unwrap_or_default();
    ips.iter().map(|ip| ip.ip.parse().unwrap()).collect()
}

fn labels(pod: &Pod) -> Labels {
    pod.metadata.labels.clone().unwrap_or_default()
}

fn is_about(policy: &NetworkPolicy, is_ingress: bool) -> bool {
    let spec = policy.spec.as_ref().unwrap();
    let types = spec.policy_types.clone().unwrap_or_default();
    match (types.is_empty(), is_ingress) {
        (true, true) => true,
        (true, false) => spec.egress.as_ref().is_some_and(|rules| !rules.is_empty()),
        (false, true) => types.iter().any(|it| it == "Ingress"),
        (false, false) => types.iter().any(|it| it == "Egress"),
    }
}

fn selects(selector: &LabelSelector, labels: &Labels) -> bool {
    let exact = selector.match_labels.iter().flatten();
    let mut expressions = selector.match_expressions.iter().flatten();
    exact.into_iter().all(|(key, value)| labels.get(key) == Some(value))
        && expressions.all(|expression| {
            let values = expression.values.clone().unwrap_or_default();
            let value = labels.get(&expression.key);
            match expression.operator.as_str() {
                "In" => value.is_some_and(|value| values.contains(value)),
                "NotIn" => value.is_none_or(|value| !values.contains(value)),
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                other => panic!("{other}"),
            }
        })
}

fn is_port(port: &NetworkPolicyPort, target: Option<&Pod>, connection: Connection) -> bool {
    let protocol = port.protocol.as_deref().unwrap_or("TCP");
    let number = match protocol {
        "TCP" => TCP,
        "UDP" => UDP,
        _ => SCTP,
    };
    if number != connection.protocol {
        return false;
    }
    match &port.port {
        None => true,
        Some(IntOrString::Int(first)) => {
            let last = port.end_port.unwrap_or(*first);
            (*first..=last).contains(&i32::from(connection.port))
        }
        Some(IntOrString::String(name)) => target.is_some_and(|pod| {
            let ports = pod.spec.as_ref().unwrap().containers.iter().flat_map(|it| &it.ports);
            // Several containers may use one name.
            ports.flatten().any(|port| {
                port.name.as_ref() == Some(name)
                    && port.protocol.as_deref().unwrap_or("TCP") == protocol
                    && port.container_port == i32::from(connection.port)
            })
        }),
    }
}
