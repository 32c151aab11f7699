//! What Kubernetes says, object by object.
//!
//! Written from <https://kubernetes.io/docs/concepts/services-networking/network-policies/>
//! and the field documentation of the API types, without rules, tables or sets. It answers
//! for one pod, one direction and one connection.

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
    /// ClusterNetworkPolicies by name.
    pub(crate) cluster_policies: BTreeMap<String, Value>,
}

/// What a tier makes of a connection.
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
    /// What an edit does.
    pub(crate) fn apply(&mut self, edit: &Edit) {
        match edit {
            Edit::Apply(value) => {
                let text = |field: &str| value["metadata"][field].as_str().unwrap_or("").to_owned();
                let (namespace, name) = (text("namespace"), text("name"));
                match value["kind"].as_str().unwrap() {
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
                    "ClusterNetworkPolicy" => {
                        self.cluster_policies.insert(name, value.clone());
                    }
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
                    "ClusterNetworkPolicy" => drop(self.cluster_policies.remove(*name)),
                    _ => drop(self.policies.remove(&key)),
                }
            }
        }
    }

    /// Whether all policies together let `pod` receive the connection (its ingress) or open it:
    /// Admin tier, then NetworkPolicies, then Baseline tier, then yes.
    pub(crate) fn permits(&self, pod: &Pod, is_ingress: bool, connection: Connection) -> bool {
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

    /// The first rule of the first policy, by priority and name, that matches.
    fn tier(&self, tier: &str, pod: &Pod, is_ingress: bool, connection: Connection) -> Said {
        let mut policies: Vec<(&String, &Value)> = self
            .cluster_policies
            .iter()
            .filter(|(_, policy)| policy["spec"]["tier"] == tier)
            .collect();
        policies.sort_by_key(|(name, policy)| (policy["spec"]["priority"].as_i64(), *name));
        let (field, from_or_to) = if is_ingress { ("ingress", "from") } else { ("egress", "to") };
        for (_, policy) in policies {
            let spec = &policy["spec"];
            let is_subject = match spec["subject"].get("namespaces") {
                Some(namespaces) => self.is_in(namespaces, &serde_json::json!({}), pod),
                None => {
                    let pods = &spec["subject"]["pods"];
                    self.is_in(&pods["namespaceSelector"], &pods["podSelector"], pod)
                }
            };
            if !is_subject {
                continue;
            }
            for rule in spec[field].as_array().into_iter().flatten() {
                let mut peers = rule[from_or_to].as_array().unwrap().iter();
                let other = self.pod_at(connection.peer);
                let target = if is_ingress { Some(pod) } else { other };
                let fits = peers.any(|peer| self.is_cluster_peer(peer, connection.peer, other))
                    && rule.get("protocols").is_none_or(|protocols| {
                        let mut protocols = protocols.as_array().unwrap().iter();
                        protocols.any(|it| is_protocol(it, target, connection))
                    });
                if fits {
                    match rule["action"].as_str().unwrap() {
                        "Accept" => return Said::Accept,
                        "Deny" => return Said::Deny,
                        _ => return Said::Nothing,
                    }
                }
            }
        }
        Said::Nothing
    }

    fn is_in(&self, namespaces: &Value, pods: &Value, pod: &Pod) -> bool {
        let selector = |value: &Value| serde_json::from_value::<LabelSelector>(value.clone());
        selects(&selector(namespaces).unwrap(), &self.namespace_labels(pod))
            && selects(&selector(pods).unwrap(), &labels(pod))
    }

    fn is_cluster_peer(&self, peer: &Value, address: IpAddr, pod: Option<&Pod>) -> bool {
        let everything = serde_json::json!({});
        let (kind, value) = peer.as_object().unwrap().iter().next().unwrap();
        match kind.as_str() {
            "namespaces" => pod.is_some_and(|pod| self.is_in(value, &everything, pod)),
            "pods" => pod.is_some_and(|pod| {
                self.is_in(&value["namespaceSelector"], &value["podSelector"], pod)
            }),
            "networks" => value
                .as_array()
                .unwrap()
                .iter()
                .any(|net| net.as_str().unwrap().parse::<IpNet>().unwrap().contains(&address)),
            "nodes" => self.nodes.values().any(|node| {
                let selector: LabelSelector = serde_json::from_value(value.clone()).unwrap();
                let status = node.status.clone().unwrap_or_default();
                let mut addresses = status.addresses.into_iter().flatten();
                selects(&selector, &node.metadata.labels.clone().unwrap_or_default())
                    && addresses.any(|it| it.address.parse() == Ok(address))
            }),
            other => panic!("{other}"),
        }
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
            ports
                .flatten()
                .find(|port| {
                    port.name.as_ref() == Some(name)
                        && port.protocol.as_deref().unwrap_or("TCP") == protocol
                })
                .is_some_and(|port| port.container_port == i32::from(connection.port))
        }),
    }
}

fn is_protocol(protocol: &Value, target: Option<&Pod>, connection: Connection) -> bool {
    let (kind, value) = protocol.as_object().unwrap().iter().next().unwrap();
    let number = match kind.as_str() {
        "tcp" => TCP,
        "udp" => UDP,
        "sctp" => SCTP,
        _ => {
            return ["TCP", "UDP", "SCTP"].iter().any(|protocol| {
                let port = NetworkPolicyPort {
                    port: Some(IntOrString::String(value.as_str().unwrap().to_owned())),
                    protocol: Some((*protocol).to_owned()),
                    end_port: None,
                };
                is_port(&port, target, connection)
            });
        }
    };
    let port = &value["destinationPort"];
    let bound = |value: &Value| value.as_u64().unwrap() as u16;
    number == connection.protocol
        && match (port.get("number"), port.get("range")) {
            (Some(number), _) => bound(number) == connection.port,
            (None, Some(range)) => {
                (bound(&range["start"])..=bound(&range["end"])).contains(&connection.port)
            }
            (None, None) => true,
        }
}

/// A rule with its peers as networks.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    /// `None` is anybody.
    pub(crate) net: Option<IpNet>,
    pub(crate) except: Vec<IpNet>,
    pub(crate) protocol: Option<u8>,
    pub(crate) ports: Option<(u16, u16)>,
}

impl Cluster {
    /// What NetworkPolicies permit a pod, with every selector written out as the addresses it
    /// stands for; `None` if no policy isolates the pod in this direction.
    pub(crate) fn written_out(&self, pod: &Pod, is_ingress: bool) -> Option<Vec<Written>> {
        let mut isolated = false;
        let mut all = Vec::new();
        for policy in self.policies.values() {
            let spec = policy.spec.clone().unwrap();
            let same = policy.metadata.namespace == pod.metadata.namespace;
            let selector = spec.pod_selector.clone().unwrap_or_default();
            if !same || !selects(&selector, &labels(pod)) || !is_about(policy, is_ingress) {
                continue;
            }
            isolated = true;
            let own = policy.metadata.namespace.as_deref().unwrap();
            let rules: Vec<(Vec<NetworkPolicyPeer>, Vec<NetworkPolicyPort>)> = match is_ingress {
                true => spec
                    .ingress
                    .into_iter()
                    .flatten()
                    .map(|it| (it.from.unwrap_or_default(), it.ports.unwrap_or_default()))
                    .collect(),
                false => spec
                    .egress
                    .into_iter()
                    .flatten()
                    .map(|it| (it.to.unwrap_or_default(), it.ports.unwrap_or_default()))
                    .collect(),
            };
            for (peers, ports) in rules {
                self.write_out(pod, is_ingress, own, &peers, &ports, &mut all);
            }
        }
        isolated.then_some(all)
    }

    fn write_out(
        &self,
        pod: &Pod,
        is_ingress: bool,
        own: &str,
        peers: &[NetworkPolicyPeer],
        ports: &[NetworkPolicyPort],
        all: &mut Vec<Written>,
    ) {
        let others = || self.pods.values().filter(|it| is_peer_at_all(it));
        // Each network with the pod behind it, if it is one pod's.
        let mut nets: Vec<(Option<IpNet>, Vec<IpNet>)> = Vec::new();
        for peer in peers {
            match &peer.ip_block {
                Some(block) => {
                    let parse = |net: &String| net.parse::<IpNet>().unwrap();
                    let except = block.except.iter().flatten().map(parse).collect();
                    nets.push((Some(parse(&block.cidr)), except));
                }
                None => nets.extend(others().flat_map(addresses).filter_map(|address| {
                    let other = self.pod_at(address);
                    self.is_peer(peer, own, address, other)
                        .then(|| (Some(IpNet::from(address)), Vec::new()))
                })),
            }
        }
        if peers.is_empty() {
            nets.push((None, Vec::new()));
        }
        for (net, except) in nets {
            let written =
                |net, protocol, ports| Written { net, except: except.clone(), protocol, ports };
            if ports.is_empty() {
                all.push(written(net, None, None));
            }
            for port in ports {
                let number = match port.protocol.as_deref() {
                    None | Some("TCP") => TCP,
                    Some("UDP") => UDP,
                    _ => SCTP,
                };
                let name = match &port.port {
                    None => {
                        all.push(written(net, Some(number), None));
                        continue;
                    }
                    Some(IntOrString::Int(first)) => {
                        let last = port.end_port.unwrap_or(*first) as u16;
                        all.push(written(net, Some(number), Some((*first as u16, last))));
                        continue;
                    }
                    Some(IntOrString::String(name)) => name,
                };
                // A name is looked up at the pod that is connected to, one by one.
                let found = |target: &Pod| {
                    (1..=u16::MAX).find(|candidate| {
                        let peer =
                            addresses(target).first().copied().unwrap_or(IpAddr::from([0; 4]));
                        let connection = Connection { peer, protocol: number, port: *candidate };
                        is_port(port, Some(target), connection)
                    })
                };
                debug_assert!(!name.is_empty());
                if is_ingress {
                    let at = found(pod).map(|it| (it, it));
                    all.extend(at.map(|at| written(net, Some(number), Some(at))));
                    continue;
                }
                for other in others() {
                    let Some(at) = found(other) else { continue };
                    for address in addresses(other) {
                        let inside = |it: &IpNet| it.contains(&address);
                        if net.as_ref().is_none_or(inside) && !except.iter().any(inside) {
                            let host = Some(IpNet::from(address));
                            all.push(written(host, Some(number), Some((at, at))));
                        }
                    }
                }
            }
        }
    }
}
