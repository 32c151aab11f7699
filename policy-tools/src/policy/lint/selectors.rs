//! Selectors and port names, against the pods that there are.

use std::collections::BTreeSet;
use std::sync::Arc;

use control::Object;
use control::model::{
    ClusterHostFirewall, Direction, Namespaces, NetworkPolicy, Node, Peer, Pod, PolicyRule,
    PortSpec, Selector,
};

use super::Findings;
use crate::policy::labels::{Cluster, nearest};

impl Findings<'_> {
    /// Selectors and port names, against the pods that there are.
    pub(super) fn selectors(&mut self, objects: &[Object]) {
        let cluster = Cluster::new(objects);
        let nodes = objects.iter().filter_map(|object| match object {
            Object::Node(node) => Some(node),
            _ => None,
        });
        let nodes: Vec<&Node> = nodes.collect();
        for object in objects {
            match object {
                Object::NetworkPolicy(policy) => self.network_policy(&cluster, policy),
                Object::ClusterNetworkPolicy(policy) => {
                    let name = object.reference().to_string();
                    self.subject(&cluster, &name, &policy.namespaces, &policy.pods);
                    for (field, rules) in [("ingress", &policy.ingress), ("egress", &policy.egress)]
                    {
                        for rule in rules {
                            let path = format!("spec.{field}[{}]", rule.rule.index);
                            self.rule_peers(&cluster, &name, &rule.rule, |_| path.clone());
                        }
                    }
                }
                Object::ClusterEgressFirewall(policy) => {
                    let name = format!("ClusterEgressFirewall {}", policy.name);
                    self.subject(&cluster, &name, &policy.namespaces, &policy.pods);
                    for rule in &policy.egress {
                        let path = format!("spec.egress[{}]", rule.rule.index);
                        self.rule_peers(&cluster, &name, &rule.rule, |_| path.clone());
                    }
                }
                Object::ClusterHostFirewall(firewall) => {
                    self.host_firewall(&cluster, &nodes, firewall);
                }
                _ => {}
            }
        }
    }

    fn subject(
        &mut self,
        cluster: &Cluster<'_>,
        name: &str,
        namespaces: &Selector,
        pods: &Selector,
    ) {
        let selected = Namespaces::Selected(namespaces.clone());
        self.selects_something(cluster, (name, "spec.subject"), &selected, pods);
    }

    /// A policy that no pod on the pod network is selected by.
    fn selects_something(
        &mut self,
        cluster: &Cluster<'_>,
        (name, field): (&str, &str),
        namespaces: &Namespaces,
        pods: &Selector,
    ) {
        if cluster.select(namespaces, pods).next().is_some() {
            return;
        }
        if let Some(pod) = cluster.matching(namespaces, pods).next() {
            let message = format!(
                "selects only pods on the host network, such as {}, for which it does not hold",
                pod.key
            );
            self.add_to(name, field, "selects-only-host-network", message);
            return;
        }
        let place = match namespaces {
            Namespaces::Own(own) => format!(" of namespace {own}"),
            Namespaces::Selected(_) => String::new(),
        };
        let message = format!("selects no pod{place}{}", cluster.suggestion(namespaces, pods));
        self.add_to(name, field, "selects-no-pod", message);
    }

    /// The nodes that a host firewall selects, and the peers of its rules.
    fn host_firewall(
        &mut self,
        cluster: &Cluster<'_>,
        nodes: &[&Node],
        firewall: &ClusterHostFirewall,
    ) {
        let name = format!("ClusterHostFirewall {}", firewall.name);
        // Repositories have no nodes as a rule.
        if !nodes.is_empty() && !nodes.iter().any(|node| firewall.selects(node)) {
            let message = "selects no node".to_owned();
            self.add_to(&name, "spec.nodes", "selects-no-node", message);
        }
        for direction in Direction::BOTH {
            for rule in firewall.direction(direction) {
                let path = format!("spec.{}[{}]", direction.field(), rule.rule.index);
                self.rule_peers(cluster, &name, &rule.rule, |_| path.clone());
            }
        }
    }

    fn network_policy(&mut self, cluster: &Cluster<'_>, policy: &NetworkPolicy) {
        let name = format!("NetworkPolicy {}", policy.key);
        let own = Namespaces::Own(Arc::clone(&policy.key.namespace));
        let selected: Vec<&Pod> = cluster.select(&own, &policy.selector).collect();
        self.selects_something(cluster, (&name, "spec.podSelector"), &own, &policy.selector);
        for direction in Direction::BOTH {
            let (field, ends) = match direction {
                Direction::Ingress => ("ingress", "from"),
                Direction::Egress => ("egress", "to"),
            };
            for rule in policy.direction(direction).iter().flatten() {
                let path = format!("spec.{field}[{}]", rule.index);
                self.rule_peers(cluster, &name, rule, |n| format!("{path}.{ends}[{n}]"));
                let meant: Vec<&Pod> = match direction {
                    Direction::Ingress => selected.clone(),
                    Direction::Egress => cluster.peers(rule),
                };
                self.port_names(&name, &path, rule, &meant);
            }
        }
    }

    fn port_names(&mut self, name: &str, path: &str, rule: &PolicyRule, meant: &[&Pod]) {
        for (n, ports) in rule.ports.iter().flatten().enumerate() {
            let PortSpec::Name(port) = &ports.port else { continue };
            let has = |pod: &&&Pod| pod.named_port(port, ports.protocol).is_some();
            if meant.is_empty() || meant.iter().any(|pod| has(&pod)) {
                continue;
            }
            let names: BTreeSet<&str> =
                meant.iter().flat_map(|pod| pod.ports.iter()).map(|it| &*it.name).collect();
            let near = nearest(port, names.iter().copied());
            let suggestion =
                near.map_or_else(String::new, |near| format!("; did you mean {near}?"));
            let message = format!(
                "no container of the {} selected pods has a {} port {port}{suggestion}",
                meant.len(),
                ports.protocol
            );
            self.add_to(name, &format!("{path}.ports[{n}].port"), "unknown-port-name", message);
        }
    }

    fn rule_peers(
        &mut self,
        cluster: &Cluster<'_>,
        name: &str,
        rule: &PolicyRule,
        path: impl Fn(usize) -> String,
    ) {
        let peers = rule.peers.as_deref().unwrap_or_default();
        for (n, peer) in peers.iter().enumerate() {
            let Peer::Pods { namespaces, pods } = peer else { continue };
            if cluster.select(namespaces, pods).next().is_some() {
                continue;
            }
            if let Some(pod) = cluster.matching(namespaces, pods).next() {
                let message = format!(
                    "the peer selects only pods on the host network, such as {}, which policies see as \
                     their nodes",
                    pod.key
                );
                self.add_to(name, &path(n), "peer-selects-only-host-network", message);
                continue;
            }
            // The mistake behind it, most often: two items where one was meant.
            let is_split = matches!(namespaces, Namespaces::Own(_))
                && peers[..n].iter().any(|it| {
                    matches!(it, Peer::Pods { namespaces: Namespaces::Selected(_), pods }
                        if pods.is_everything())
                });
            let hint = match is_split {
                true => {
                    "; to mean it together with the namespaceSelector above, make both one item"
                        .to_owned()
                }
                false => cluster.suggestion(namespaces, pods),
            };
            let place = match namespaces {
                Namespaces::Own(own) => format!(" of namespace {own}"),
                Namespaces::Selected(_) => String::new(),
            };
            let message = format!("the peer selects no pod{place}{hint}");
            self.add_to(name, &path(n), "peer-selects-no-pod", message);
        }
    }
}
