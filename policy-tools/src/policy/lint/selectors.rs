//! Checks selectors against existing pods.

use std::collections::BTreeSet;
use std::sync::Arc;

use control::model::{
    ClusterHostFirewall, Direction, Labels, Namespace, Namespaces, NetworkPolicy, Node, Peer, Pod,
    PolicyRule, Selector,
};
use control::{Object, PodKey};

use super::{Findings, NOT_SELECTED, Source};
use crate::input::Manifests;
use crate::policy::labels::Cluster;
use crate::policy::matrix;

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

    /// Notes pods that no policy selects in either direction: anything may connect to them.
    pub(super) fn not_selected(&mut self, manifests: &Manifests) {
        let cluster = Cluster::new(&manifests.objects);
        let mut selected: BTreeSet<&PodKey> = BTreeSet::new();
        matrix::each_policy(&manifests.objects, |policy| {
            if let Some((namespaces, pods)) = &policy.subject {
                selected.extend(cluster.select(namespaces, pods).map(|pod| &pod.key));
            }
        });
        let everywhere = Namespaces::Selected(Selector::default());
        let mut noted: BTreeSet<String> = BTreeSet::new();
        for pod in cluster.select(&everywhere, &Selector::default()) {
            let workload = manifests.workload(&pod.key);
            if selected.contains(&pod.key) || !noted.insert(workload.clone()) {
                continue;
            }
            let of = |source: &&Source| {
                source.object.split_once(' ').is_some_and(|(kind, name)| {
                    name == workload && !kind.contains("Policy") && kind != "Service"
                })
            };
            if let Some(source) = self.sources.iter().find(of) {
                let message =
                    "no policy selects its pods: every connection to and from them is allowed";
                self.add(source, "metadata.name", NOT_SELECTED, message.into());
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
        let hint = self.hint(cluster, namespaces, pods, |other| {
            format!("such pods are in namespace {other}: correct metadata.namespace")
        });
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
                let may_be_elsewhere = |peer: &Peer| match peer {
                    Peer::Pods { namespaces, .. } => could_be_elsewhere(cluster, namespaces),
                    _ => false,
                };
                let meant: Vec<&Pod> = match direction {
                    Direction::Ingress => selected.clone(),
                    // Pods of namespaces that no file has may have any ports.
                    Direction::Egress if rule.peers.iter().flatten().any(may_be_elsewhere) => {
                        Vec::new()
                    }
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
            let hint = self.hint(cluster, namespaces, pods, |other| {
                let label = Namespace::NAME_LABEL;
                format!(
                    "such pods are in namespace {other}: add namespaceSelector: {{matchLabels: \
                     {{{label}: {other}}}}} to the same item"
                )
            });
            let message =
                format!("the peer selects no pod{place}, so it stands for nothing; {hint}");
            self.add_to(name, &path(n), "peer-selects-no-pod", message);
        }
    }

    /// Suggests a label, or another remedy for a selector without pods.
    /// `elsewhere` has the words for pods of another namespace than the policy's.
    fn hint(
        &self,
        cluster: &Cluster<'_>,
        namespaces: &Namespaces,
        pods: &Selector,
        elsewhere: impl FnOnce(&str) -> String,
    ) -> String {
        let near = cluster.suggestion(namespaces, pods);
        let other = || cluster.other_namespace(namespaces, pods).map(|other| elsewhere(other));
        let workload = || {
            let (object, labels) = self.sources.iter().find_map(|source| {
                let labels = source.labels_beside_template()?;
                pods.matches(&labels).then_some((&source.object, labels))
            })?;
            let own = labels.iter().map(|(key, value)| format!("{key}={value}"));
            let own: Vec<String> = own.collect();
            Some(format!(
                "{} is on {object} itself, and its pods have the labels of spec.template.metadata",
                own.join(",")
            ))
        };
        let workload = || workload().filter(|_| !pods.is_everything());
        near.or_else(other).or_else(workload).unwrap_or_else(|| {
            "correct its labels, or say --workloads-elsewhere if such pods are in no file"
                .to_owned()
        })
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
            || could_be_elsewhere(cluster, namespaces)
                && cluster.suggestion(namespaces, pods).is_none()
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

/// Returns whether a selector may mean namespaces that no file has: every namespace, or none of the files'.
fn could_be_elsewhere(cluster: &Cluster<'_>, namespaces: &Namespaces) -> bool {
    match namespaces {
        Namespaces::Own(_) => false,
        Namespaces::Selected(selector) => {
            selector.is_everything() || !cluster.has_namespace(selector)
        }
    }
}
