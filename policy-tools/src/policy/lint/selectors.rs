//! Selectors and port names, against the pods that there are.

use std::collections::BTreeSet;
use std::sync::Arc;

use control::Object;
use control::model::{
    Direction, Namespaces, NetworkPolicy, Peer, Pod, PolicyRule, PortSpec, Selector,
};

use super::Findings;
use crate::policy::labels::{Cluster, nearest};

impl Findings<'_> {
    /// Selectors and port names, against the pods that there are.
    pub(super) fn selectors(&mut self, objects: &[Object]) {
        let cluster = Cluster::new(objects);
        for object in objects {
            match object {
                Object::NetworkPolicy(policy) => self.network_policy(&cluster, policy),
                Object::ClusterNetworkPolicy(policy) => {
                    let name = format!("ClusterNetworkPolicy {}", policy.name);
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
        if cluster.select(&selected, pods).next().is_none() {
            let message = format!("selects no pod{}", cluster.suggestion(&selected, pods));
            self.add_to(name, "spec.subject", "selects-no-pod", message);
        }
    }

    fn network_policy(&mut self, cluster: &Cluster<'_>, policy: &NetworkPolicy) {
        let name = format!("NetworkPolicy {}", policy.key);
        let own = Namespaces::Own(Arc::clone(&policy.key.namespace));
        let selected: Vec<&Pod> = cluster.select(&own, &policy.selector).collect();
        if selected.is_empty() {
            let message = format!(
                "selects no pod of namespace {}{}",
                policy.key.namespace,
                cluster.suggestion(&own, &policy.selector)
            );
            self.add_to(&name, "spec.podSelector", "selects-no-pod", message);
        }
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
