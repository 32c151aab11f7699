//! The addresses that peers of cluster policies stand for at the moment.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::Control;
use crate::model::{ClusterRule, Peer, Verdict};
use crate::{Kind, ObjectRef};

/// A rule whose peers are nodes or the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedRule {
    /// Field of the rule, such as `egress[0]`.
    pub field: String,
    /// Addresses of its `nodes` and `apiServer`, sorted.
    pub addresses: Vec<IpAddr>,
}

impl Control {
    /// Resolves the rules of a ClusterEgressFirewall, ClusterNetworkPolicy or ClusterHostFirewall that name nodes or the
    /// API server; the others have their addresses written down.
    pub fn resolved(&self, policy: &ObjectRef) -> Vec<ResolvedRule> {
        let cache = &self.cache;
        let lists: Vec<(&str, &[ClusterRule])> = match policy.kind {
            Kind::ClusterEgressFirewall => {
                let firewall = cache.firewalls().get(&policy.name);
                firewall.iter().map(|it| ("egress", &it.egress[..])).collect()
            }
            Kind::ClusterHostFirewall => {
                let firewall = cache.host_firewalls().get(&policy.name);
                let both = firewall.iter();
                both.flat_map(|it| [("ingress", &it.ingress[..]), ("egress", &it.egress[..])])
                    .collect()
            }
            _ => {
                let cluster = cache.cluster_policies();
                let of_kind = cluster
                    .iter()
                    .filter(|((name, kind), _)| *name == policy.name && *kind == policy.kind);
                of_kind
                    .flat_map(|(_, it)| [("ingress", &it.ingress[..]), ("egress", &it.egress[..])])
                    .collect()
            }
        };
        let rules =
            lists.into_iter().flat_map(|(list, rules)| rules.iter().map(move |it| (list, it)));
        rules.filter_map(|(list, rule)| self.resolve(list, rule)).collect()
    }

    fn resolve(&self, list: &str, rule: &ClusterRule) -> Option<ResolvedRule> {
        let denies = rule.verdict == Verdict::Deny;
        let mut is_concrete = true;
        let mut addresses = BTreeSet::new();
        for peer in rule.rule.peers.iter().flatten() {
            match peer {
                Peer::ApiServer => {
                    let known = self.cache.api_server();
                    let them = if denies { &known.hosts } else { &known.endpoints };
                    addresses.extend(them.iter().copied());
                }
                Peer::Nodes(selector) => {
                    for node in self.cache.nodes().values() {
                        // As in peer sets: a node with faults is denied and not permitted, and a denial covers
                        // what switches publish.
                        let is_meant = match node.complete {
                            true => selector.matches(&node.labels),
                            false => denies,
                        };
                        let published = self.cache.published(&node.name);
                        let published = published.iter().filter(|_| denies);
                        let all = node.addresses.iter().chain(published).filter(|_| is_meant);
                        addresses.extend(all.copied());
                    }
                }
                _ => continue,
            }
            is_concrete = false;
        }
        let field = format!("{list}[{}]", rule.rule.index);
        (!is_concrete).then(|| ResolvedRule { field, addresses: addresses.into_iter().collect() })
    }
}
