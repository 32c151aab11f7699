//! The addresses that peers of cluster policies stand for at the moment.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use super::Control;
use crate::model::{ClusterRule, Peer, RuleAction};
use crate::peers::PeerSet;
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
                let known = cache.cluster_policies().get(&(Arc::clone(&policy.name), policy.kind));
                let both = known.iter();
                both.flat_map(|it| [("ingress", &it.ingress[..]), ("egress", &it.egress[..])])
                    .collect()
            }
        };
        let rules =
            lists.into_iter().flat_map(|(list, rules)| rules.iter().map(move |it| (list, it)));
        rules.filter_map(|(list, rule)| self.resolve(list, rule)).collect()
    }

    fn resolve(&self, list: &str, rule: &ClusterRule) -> Option<ResolvedRule> {
        let denies = rule.verdict == RuleAction::Deny;
        let mut is_concrete = true;
        let mut addresses = BTreeSet::new();
        for peer in rule.rule.peers.iter().flatten() {
            match peer {
                Peer::ApiServer => {
                    let known = self.cache.api_server();
                    let them = if denies { &known.hosts } else { &known.endpoints };
                    addresses.extend(them.iter().copied());
                }
                Peer::Nodes(_) => {
                    let set = PeerSet::of(peer, rule.verdict, None);
                    for node in self.cache.nodes().values() {
                        let own = node.addresses.iter().map(|it| (*it, false));
                        let published = self.cache.published(&node.name);
                        let all = own.chain(published.iter().map(|it| (*it, true)));
                        // A node with faults is denied and not permitted.
                        let is_meant = |(address, is_published): &(IpAddr, bool)| {
                            let is_in = |it: &PeerSet| it.holds_node(node, *address, *is_published);
                            is_in(&set) || denies && is_in(&PeerSet::FaultyNodes)
                        };
                        addresses.extend(all.filter(is_meant).map(|(address, _)| address));
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
