//! Checks selectors against existing pods.

use std::sync::Arc;

use control::Object;
use control::model::{
    ClusterHostFirewall, Direction, Labels, Namespace, Namespaces, NetworkPolicy, Node, Peer, Pod,
    PolicyRule, Selector,
};

use super::Findings;
use crate::input::Manifests;
use crate::policy::labels::Cluster;

impl Findings<'_> {
    /// Checks selectors, networks and ports against existing objects.
    pub(super) fn selectors(&mut self, manifests: &Manifests) {
        let objects = &manifests.objects;
        let cluster = Cluster::new(objects);
        let nodes = objects.iter().filter_map(|object| match object {
            Object::Node(node) => Some(&**node),
            _ => None,
        });
        let nodes: Vec<&Node> = nodes.collect();
        for object in objects {
            match object {
                Object::NetworkPolicy(policy) => self.network_policy(manifests, &cluster, policy),
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
                    let selects = |node: &Node| policy.selects_node(Some(node));
                    self.selected_nodes(&nodes, &name, "spec.subject.nodes", selects);
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

    /// Reports a policy that selects no pod on the pod network.
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
                "selects only pods on the host network, such as {}, for which it does not hold: they are their \
                 nodes, for which ClusterHostFirewalls are",
                pod.key
            );
            self.add_to(name, field, "selects-only-host-network", message);
            return;
        }
        if self.are_elsewhere(cluster, namespaces, pods) {
            return;
        }
        let place = match namespaces {
            Namespaces::Own(own) => format!(" of namespace {own}"),
            Namespaces::Selected(_) => String::new(),
        };
        let hint = hint(cluster, namespaces, pods);
        let message = format!("selects no pod{place}, so it does nothing; {hint}");
        self.add_to(name, field, "selects-no-pod", message);
    }

    /// Checks the node selector of a host firewall and the peers of its rules.
    fn host_firewall(
        &mut self,
        cluster: &Cluster<'_>,
        nodes: &[&Node],
        firewall: &ClusterHostFirewall,
    ) {
        let name = format!("ClusterHostFirewall {}", firewall.name);
        self.selected_nodes(nodes, &name, "spec.nodes", |node| firewall.selects(node));
        for direction in Direction::BOTH {
            for rule in firewall.direction(direction) {
                let path = format!("spec.{}[{}]", direction.field(), rule.rule.index);
                self.rule_peers(cluster, &name, &rule.rule, |_| path.clone());
            }
        }
    }

    /// Checks that a node selector selects a node. Repositories usually have no nodes.
    fn selected_nodes(
        &mut self,
        nodes: &[&Node],
        name: &str,
        field: &str,
        selects: impl Fn(&Node) -> bool,
    ) {
        if !nodes.is_empty() && !nodes.iter().any(|node| selects(node)) {
            let message = "selects no node, so it does nothing; correct its labels";
            self.add_to(name, field, "selects-no-node", message.to_owned());
        }
    }

    fn network_policy(
        &mut self,
        manifests: &Manifests,
        cluster: &Cluster<'_>,
        policy: &NetworkPolicy,
    ) {
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
                self.ports(manifests, (&name, &path), rule, (&meant, direction));
            }
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
            let (namespaces, pods) = match peer {
                Peer::Pods { namespaces, pods } => (namespaces, pods),
                Peer::Block(net, _) => {
                    self.block(cluster.objects, name, &path(n), net);
                    continue;
                }
                Peer::Nodes(_) | Peer::ApiServer | Peer::Name(_) => continue,
            };
            if cluster.select(namespaces, pods).next().is_some() {
                continue;
            }
            if let Some(pod) = cluster.matching(namespaces, pods).next() {
                let message = format!(
                    "the peer selects only pods on the host network, such as {}, which policies see as \
                     their nodes: name the addresses of these in an ipBlock or in networks",
                    pod.key
                );
                self.add_to(name, &path(n), "peer-selects-only-host-network", message);
                continue;
            }
            if self.are_two_items(cluster, peers, n) {
                let message = "the peer selects no pod of the policy's namespace, and the item with the \
                               namespaceSelector beside it selects every pod there: to mean both together, \
                               make them one item";
                self.add_to(name, &path(n), "or-for-and", message.into());
                continue;
            }
            if self.are_elsewhere(cluster, namespaces, pods) {
                continue;
            }
            let place = match namespaces {
                Namespaces::Own(own) => format!(" of namespace {own}"),
                Namespaces::Selected(_) => String::new(),
            };
            let hint = hint(cluster, namespaces, pods);
            let message =
                format!("the peer selects no pod{place}, so it stands for nothing; {hint}");
            self.add_to(name, &path(n), "peer-selects-no-pod", message);
        }
    }

    /// Returns whether such pods are expected outside of the files: any pods, or those of an operator's object with
    /// such labels.
    fn are_elsewhere(
        &self,
        cluster: &Cluster<'_>,
        namespaces: &Namespaces,
        pods: &Selector,
    ) -> bool {
        let is_in = |namespace: &Arc<str>| match namespaces {
            Namespaces::Own(own) => own == namespace,
            Namespaces::Selected(selector) => {
                let made = || Namespace::new(Arc::clone(namespace), &Labels::default()).labels;
                match cluster.namespace(namespace) {
                    Some(labels) => selector.matches(labels),
                    None => selector.matches(&made()),
                }
            }
        };
        self.workloads_elsewhere
            || !pods.is_everything()
                && self
                    .of_operators
                    .iter()
                    .any(|(namespace, labels)| is_in(namespace) && pods.matches(labels))
    }

    /// Returns whether a peer with a podSelector alone stands beside one with a namespaceSelector alone, and
    /// pods with its labels, if there are any, are in those namespaces.
    fn are_two_items(&self, cluster: &Cluster<'_>, peers: &[Peer], n: usize) -> bool {
        let Peer::Pods { namespaces: Namespaces::Own(_), pods } = &peers[n] else { return false };
        let beside = [n.checked_sub(1), Some(n + 1)].into_iter().flatten();
        !pods.is_everything()
            && beside.filter_map(|n| peers.get(n)).any(|it| match it {
                Peer::Pods {
                    namespaces: namespaces @ Namespaces::Selected(selector),
                    pods: all,
                } => {
                    all.is_everything()
                        && !selector.is_everything()
                        && (!self.workloads_elsewhere
                            || cluster.select(namespaces, pods).next().is_some())
                }
                _ => false,
            })
    }
}

/// Suggests a label, or another remedy for a selector without pods.
fn hint(cluster: &Cluster<'_>, namespaces: &Namespaces, pods: &Selector) -> String {
    let near = cluster.suggestion(namespaces, pods);
    near.unwrap_or_else(|| {
        "correct its labels, or say --workloads-elsewhere if such pods are in no file".to_owned()
    })
}
