//! Finds pods that may open connections but cannot resolve names.

use std::collections::BTreeMap;
use std::sync::Arc;

use control::Object;
use control::model::{
    ClusterRule, ContainerPort, Labels, Namespace, Namespaces, NetworkPolicy, Peer, Pod,
    PolicyRule, PortSpec, Protocol, RuleAction, Selector,
};

use super::Findings;
use crate::policy::labels::Cluster;

/// Ports that DNS servers listen on; OpenShift's pods on the second.
const PORTS: [u16; 2] = [53, 5353];
/// Namespaces that DNS servers are in.
const NAMESPACES: [&str; 2] = ["kube-system", "openshift-dns"];

impl Findings<'_> {
    /// Reports policies whose pods may open connections by name but cannot query DNS.
    pub(super) fn dns(&mut self, objects: &[Object]) {
        let cluster = Cluster::new(objects);
        let mut policies: BTreeMap<&str, Vec<&NetworkPolicy>> = BTreeMap::new();
        for object in objects {
            if let Object::NetworkPolicy(policy) = object {
                policies.entry(&policy.key.namespace).or_default().push(policy);
            }
        }
        let everything = (Namespaces::Selected(Selector::default()), Selector::default());
        for pod in cluster.select(&everything.0, &everything.1) {
            let selecting = policies.get(&*pod.key.namespace).into_iter().flatten();
            let selecting = selecting.filter(|it| it.selector.matches(&pod.labels));
            let of_policies: Vec<(&NetworkPolicy, &PolicyRule)> = selecting
                .flat_map(|it| it.egress.iter().flatten().map(move |r| (*it, r)))
                .collect();
            if !of_policies.is_empty() && !is_server(pod) {
                let of_cluster = cluster_rules(objects, &cluster, pod);
                self.dns_of(pod, &of_policies, &of_cluster);
            }
        }
    }

    fn dns_of(
        &mut self,
        pod: &Pod,
        of_policies: &[(&NetworkPolicy, &PolicyRule)],
        of_cluster: &[&PolicyRule],
    ) {
        let all = || of_policies.iter().map(|(_, rule)| *rule).chain(of_cluster.iter().copied());
        if all().any(|rule| covers(rule, Protocol::Udp)) {
            return;
        }
        let by_tcp = of_policies.iter().find(|(_, rule)| names_port(rule, Protocol::Tcp));
        if let Some((policy, rule)) = by_tcp {
            let message = "opens DNS over TCP only, and resolvers ask over UDP first: add \
                           {protocol: UDP, port: 53}";
            let path = format!("spec.egress[{}].ports", rule.index);
            self.add_to_policy(policy, &path, "dns-over-tcp-only", message.into());
        } else if let Some((policy, _)) = of_policies.iter().find(|(_, rule)| needs_names(rule)) {
            if !self.reported.insert((Arc::clone(&policy.key.namespace), "egress-without-dns")) {
                return;
            }
            let message = format!(
                "lets pods such as {} open connections, but no policy lets them ask DNS: allow UDP and TCP \
                 53 to kube-system",
                pod.key
            );
            self.add_to_policy(policy, "spec.egress", "egress-without-dns", message);
        }
    }

    fn add_to_policy(
        &mut self,
        policy: &NetworkPolicy,
        path: &str,
        code: &'static str,
        message: String,
    ) {
        self.add_to(&format!("NetworkPolicy {}", policy.key), path, code, message);
    }
}

/// Egress rules of cluster-wide policies that let a pod open connections.
fn cluster_rules<'a>(
    objects: &'a [Object],
    cluster: &Cluster<'_>,
    pod: &Pod,
) -> Vec<&'a PolicyRule> {
    let namespace = cluster.namespace(&pod.key.namespace);
    let is_about = |namespaces: &Selector, pods: &Selector| {
        namespace.is_some_and(|labels| namespaces.matches(labels)) && pods.matches(&pod.labels)
    };
    let accepting = |rules: &'a [ClusterRule]| {
        rules.iter().filter(|it| it.verdict == RuleAction::Accept).map(|it| &it.rule)
    };
    let policies = objects.iter().filter_map(|object| match object {
        Object::ClusterNetworkPolicy(it) if is_about(&it.namespaces, &it.pods) => Some(it),
        _ => None,
    });
    policies.flat_map(|it| accepting(&it.egress)).collect()
}

/// Returns whether a pod is a DNS server.
fn is_server(pod: &Pod) -> bool {
    let is_of_dns = |it: &ContainerPort| it.protocol == Protocol::Udp && PORTS.contains(&it.number);
    let asked = ["k8s-app", "app.kubernetes.io/name", "app"].map(|key| pod.labels.value(key));
    asked.into_iter().flatten().any(|it| it.ends_with("dns"))
        || pod.ports.named.iter().any(is_of_dns)
}

/// Returns whether peers of a rule are reached by name: pods and the internet, unlike other networks.
fn needs_names(rule: &PolicyRule) -> bool {
    rule.peers.as_ref().is_none_or(|peers| {
        peers.iter().any(|peer| match peer {
            Peer::Pods { .. } | Peer::Name(_) => true,
            Peer::Block(net, _) => net.prefix_len() == 0,
            Peer::Nodes(_) | Peer::ApiServer => false,
        })
    })
}

/// Returns whether a rule names a port of DNS.
fn names_port(rule: &PolicyRule, protocol: Protocol) -> bool {
    rule.ports.iter().flatten().filter(|it| it.protocol == protocol).any(|it| match &it.port {
        PortSpec::Range(range) => PORTS.iter().any(|port| range.contains(*port)),
        PortSpec::Name(name) => name.starts_with("dns"),
        PortSpec::All => false,
    })
}

/// Returns whether a rule may permit queries to a DNS server.
fn covers(rule: &PolicyRule, protocol: Protocol) -> bool {
    if names_port(rule, protocol) {
        return true;
    }
    let all = rule.ports.as_ref().is_none_or(|ports| {
        ports.iter().any(|it| it.protocol == protocol && it.port == PortSpec::All)
    });
    all && rule.peers.as_ref().is_none_or(|peers| peers.iter().any(may_be_server))
}

fn may_be_server(peer: &Peer) -> bool {
    match peer {
        Peer::Pods { namespaces: Namespaces::Own(own), .. } => NAMESPACES.contains(&&**own),
        Peer::Pods { namespaces: Namespaces::Selected(selector), .. } => {
            let names = selector.requirements().iter().any(|it| &*it.key == Namespace::NAME_LABEL);
            let named = |name: &&str| {
                let labels: Labels = [(Namespace::NAME_LABEL, *name)].into_iter().collect();
                let only = selector.requirements().iter();
                let only: Selector =
                    only.filter(|it| &*it.key == Namespace::NAME_LABEL).cloned().collect();
                only.matches(&labels)
            };
            !names || NAMESPACES.iter().any(named)
        }
        Peer::Block(..) | Peer::Nodes(_) => true,
        Peer::ApiServer | Peer::Name(_) => false,
    }
}
