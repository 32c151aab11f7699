//! Policies that are in no namespace.
//!
//! Written from <https://network-policy-api.sigs.k8s.io/> and `docs/policies.md`.

use super::*;

impl Cluster {
    /// The first rule of the first policy that matches: by priority, then name, of one name the
    /// ClusterNetworkPolicy first. The BaselineAdminNetworkPolicy, which has no priority, is the last.
    pub(super) fn tier(
        &self,
        tier: &str,
        pod: &Pod,
        is_ingress: bool,
        connection: Connection,
    ) -> Said {
        let mut policies: Vec<_> = self
            .cluster_policies
            .iter()
            .filter_map(|((kind, name), policy)| {
                let (own, is_older) = match kind.as_str() {
                    "AdminNetworkPolicy" => ("Admin", true),
                    "BaselineAdminNetworkPolicy" => ("Baseline", true),
                    _ => (policy["spec"]["tier"].as_str().unwrap(), false),
                };
                let priority = policy["spec"]["priority"].as_i64().unwrap_or(i64::MAX);
                (own == tier).then_some((priority, name, is_older, policy))
            })
            .collect();
        policies.sort_by_key(|(priority, name, is_older, _)| (*priority, *name, *is_older));
        for (.., policy) in policies {
            match self.first_match(&policy["spec"], pod, is_ingress, connection).as_deref() {
                None => {}
                Some("Accept" | "Allow") => return Said::Accept,
                Some("Deny") => return Said::Deny,
                Some(_) => return Said::Nothing,
            }
        }
        Said::Nothing
    }

    /// Whether this egress firewall, by itself, refuses the connection.
    pub(super) fn blocks(&self, firewall: &Value, pod: &Pod, connection: Connection) -> bool {
        let action = self.first_match(&firewall["spec"], pod, false, connection);
        action.as_deref() == Some("Deny")
    }

    /// The action of the first rule that matches, if the pod is the subject.
    fn first_match(
        &self,
        spec: &Value,
        pod: &Pod,
        is_ingress: bool,
        connection: Connection,
    ) -> Option<String> {
        let (field, from_or_to) = if is_ingress { ("ingress", "from") } else { ("egress", "to") };
        let everything = serde_json::json!({});
        let subject = &spec["subject"];
        let is_subject = match (subject.get("namespaces"), subject.get("pods")) {
            (Some(namespaces), _) => self.is_in(namespaces, &everything, pod),
            (None, Some(pods)) => self.is_in(&pods["namespaceSelector"], &pods["podSelector"], pod),
            (None, None) => true,
        };
        // A node that is not known may have any labels.
        let is_on = |nodes: &Value| {
            let nodes: LabelSelector = serde_json::from_value(nodes.clone()).unwrap();
            let node = pod.spec.as_ref().and_then(|spec| self.nodes.get(spec.node_name.as_ref()?));
            let labels = node.map(|node| node.metadata.labels.clone().unwrap_or_default());
            labels.is_none_or(|labels| selects(&nodes, &labels))
        };
        if !is_subject || !subject.get("nodes").is_none_or(is_on) {
            return None;
        }
        for rule in spec[field].as_array().into_iter().flatten() {
            let mut peers = rule[from_or_to].as_array().unwrap().iter();
            let other = self.pod_at(connection.peer);
            let target = if is_ingress { Some(pod) } else { other };
            let denies = rule["action"] == "Deny";
            let is_peer = |peer| self.is_cluster_peer(peer, connection.peer, other, denies);
            let fits = peers.any(is_peer)
                && rule.get("protocols").is_none_or(|protocols| {
                    let mut protocols = protocols.as_array().unwrap().iter();
                    protocols.any(|it| is_protocol(it, target, connection))
                })
                && rule.get("ports").is_none_or(|ports| {
                    let mut ports = ports.as_array().unwrap().iter();
                    ports.any(|it| is_admin_port(it, target, connection))
                });
            if fits {
                return Some(rule["action"].as_str().unwrap().to_owned());
            }
        }
        None
    }

    fn is_in(&self, namespaces: &Value, pods: &Value, pod: &Pod) -> bool {
        let selector = |value: &Value| serde_json::from_value::<LabelSelector>(value.clone());
        selects(&selector(namespaces).unwrap(), &self.namespace_labels(pod))
            && selects(&selector(pods).unwrap(), &labels(pod))
    }

    fn is_cluster_peer(
        &self,
        peer: &Value,
        address: IpAddr,
        pod: Option<&Pod>,
        denies: bool,
    ) -> bool {
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
                selects(&selector, &node.metadata.labels.clone().unwrap_or_default())
                    && node_addresses(node).contains(&address)
            }),
            // A denial covers the other addresses of its nodes too.
            "apiServer" => {
                let is_host = |node: &Node| {
                    let addresses = node_addresses(node);
                    let is_its_host = addresses.iter().any(|it| self.is_api_server(*it));
                    is_its_host && addresses.contains(&address)
                };
                self.is_api_server(address) || denies && self.nodes.values().any(is_host)
            }
            other => panic!("{other}"),
        }
    }

    /// The service `default/kubernetes` and its endpoints.
    fn is_api_server(&self, address: IpAddr) -> bool {
        let is_it = |value: &Value| value.as_str().unwrap().parse() == Ok(address);
        let service = self.services.get(&("default".into(), "kubernetes".into()));
        let mut own = service.into_iter().flat_map(|it| it["spec"]["clusterIPs"].as_array());
        let slices = self.slices.iter().filter(|((namespace, _), slice)| {
            namespace == "default"
                && slice["metadata"]["labels"]["kubernetes.io/service-name"] == "kubernetes"
        });
        let endpoints = slices.flat_map(|(_, slice)| slice["endpoints"].as_array());
        let mut endpoints = endpoints.flatten().flat_map(|it| it["addresses"].as_array());
        own.any(|ips| ips.iter().any(is_it)) || endpoints.any(|ips| ips.iter().any(is_it))
    }
}

fn node_addresses(node: &Node) -> Vec<IpAddr> {
    let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    addresses.filter_map(|it| it.address.parse().ok()).collect()
}

fn is_protocol(protocol: &Value, target: Option<&Pod>, connection: Connection) -> bool {
    let (kind, value) = protocol.as_object().unwrap().iter().next().unwrap();
    let number = match kind.as_str() {
        "tcp" => TCP,
        "udp" => UDP,
        "sctp" => SCTP,
        _ => return is_named_port(value, target, connection),
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

/// A port of AdminNetworkPolicy and BaselineAdminNetworkPolicy.
fn is_admin_port(port: &Value, target: Option<&Pod>, connection: Connection) -> bool {
    let (kind, value) = port.as_object().unwrap().iter().next().unwrap();
    let (first, last) = match kind.as_str() {
        "portNumber" => ("port", "port"),
        "portRange" => ("start", "end"),
        _ => return is_named_port(value, target, connection),
    };
    let bound = |field: &str| value[field].as_u64().unwrap() as u16;
    let number = match value["protocol"].as_str() {
        Some("UDP") => UDP,
        Some("SCTP") => SCTP,
        _ => TCP,
    };
    number == connection.protocol && (bound(first)..=bound(last)).contains(&connection.port)
}

/// A name of a port, which may be one of each protocol.
fn is_named_port(name: &Value, target: Option<&Pod>, connection: Connection) -> bool {
    ["TCP", "UDP", "SCTP"].iter().any(|protocol| {
        let port = NetworkPolicyPort {
            port: Some(IntOrString::String(name.as_str().unwrap().to_owned())),
            protocol: Some((*protocol).to_owned()),
            end_port: None,
        };
        is_port(&port, target, connection)
    })
}
