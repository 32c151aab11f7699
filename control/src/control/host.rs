//! Host firewalls: those that select this cluster node, as rule lists.

use std::sync::Arc;

use acl::{End, PeerSetId, Rule};

use super::{Control, Scope};
use crate::configurator;
use crate::model::{ClusterHostFirewall, Direction};
use crate::render;
use crate::view::HostFirewall;

/// The lists in force, and the peer sets that they keep.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    firewalls: Arc<[HostFirewall]>,
    sets: Vec<PeerSetId>,
}

impl Control {
    /// Configures the host firewalls anew; the same list if nothing differs.
    pub(super) fn configure_host(&mut self) -> Arc<[HostFirewall]> {
        let selected = self.selected_host_firewalls();
        if !selected.is_empty() && self.membership.content().is_empty() {
            self.membership.list_content();
        }
        let api_server = Arc::clone(self.cache.api_server());
        let mut fresh = Vec::new();
        for firewall in selected {
            let [ingress, egress] = Direction::BOTH.map(|direction| {
                let rules = match direction {
                    Direction::Ingress => &firewall.ingress,
                    Direction::Egress => &firewall.egress,
                };
                let basic = configurator::host_rules(rules, direction, &api_server);
                let (cache, membership) = (&self.cache, &mut self.membership);
                render::rules(basic, direction, cache, membership).into()
            });
            let (name, failsafe) = (Arc::clone(&firewall.name), firewall.failsafe);
            fresh.push(HostFirewall { name, failsafe, ingress, egress });
        }
        let sets: Vec<PeerSetId> = fresh.iter().flat_map(sets).collect();
        sets.iter().for_each(|set| self.membership.retain(*set));
        let before = std::mem::replace(&mut self.host.sets, sets);
        before.into_iter().for_each(|set| self.membership.release(set));
        if *self.host.firewalls != *fresh {
            self.host.firewalls = fresh.into();
        }
        Arc::clone(&self.host.firewalls)
    }

    /// The firewalls about this cluster node. One whose node has faults is about it as well: which
    /// labels are missing is not known.
    fn selected_host_firewalls(&self) -> Vec<Arc<ClusterHostFirewall>> {
        let Scope::Node(name) = &self.scope else { return Vec::new() };
        let node = self.cache.nodes().get(name);
        let selects = |firewall: &&Arc<ClusterHostFirewall>| match node {
            None => firewall.nodes.is_everything(),
            Some(node) => !node.complete || firewall.nodes.matches(&node.labels),
        };
        self.cache.host_firewalls().values().filter(selects).cloned().collect()
    }
}

fn sets(firewall: &HostFirewall) -> impl Iterator<Item = PeerSetId> {
    let rules = firewall.ingress.iter().chain(firewall.egress.iter());
    let ends = |rule: &Rule| [rule.source, rule.destination];
    rules.flat_map(ends).filter_map(|end| match end {
        End::Set(set) => Some(set),
        End::Any | End::Net(_) => None,
    })
}
