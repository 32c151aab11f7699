//! The host firewalls of every node, compiled, for commands that ask about all nodes at once.
//!
//! A running switch renders the firewalls of its own node for nftables instead (`host.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::host_services::Selected;
use super::{Acl, Control, Scope};
use crate::configurator;
use crate::model::{ClusterHostFirewall, Direction};
use crate::render;
use crate::view::HostAcl;

/// Every firewall with its rules for ingress and egress.
#[derive(Debug, Default)]
pub(super) struct HostAcls {
    pub(super) is_stale: bool,
    firewalls: Vec<(Arc<ClusterHostFirewall>, [Acl; 2])>,
}

/// The host firewalls of each node, by name.
type ByNode = BTreeMap<Arc<str>, Vec<HostAcl>>;

impl Control {
    /// Makes the rules again if firewalls, nodes or the API server's addresses changed; returns whether
    /// they did.
    pub(super) fn configure_host_acls(&mut self) -> bool {
        if !std::mem::take(&mut self.host_acls.is_stale) || self.scope != Scope::All {
            return false;
        }
        let all = self.cache.host_firewalls().values();
        let all: Vec<_> = all.filter(|it| self.is_enforced(&it.staging)).cloned().collect();
        let api_server = self.cache.api_server().clone();
        // Nodes that the same firewalls select share their tables.
        let mut selected: BTreeMap<Vec<Arc<str>>, Selected> = BTreeMap::new();
        for node in self.cache.nodes().values() {
            let firewalls: Vec<_> = all.iter().filter(|it| it.selects(node)).cloned().collect();
            let names = firewalls.iter().map(|it| Arc::clone(&it.name)).collect();
            let group = selected.entry(names).or_insert_with(|| (firewalls, Vec::new()));
            group.1.push(Arc::clone(&node.name));
        }
        self.configure_host_services(selected.into_values().collect());
        let mut fresh = Vec::with_capacity(all.len());
        for firewall in all {
            let acls = Direction::BOTH.map(|direction| {
                let rules =
                    configurator::host_rules(firewall.direction(direction), direction, &api_server);
                let (cache, membership) = (&self.cache, &mut self.membership);
                let rules = render::rules(rules, direction, cache, membership);
                self.acquire(rules, Vec::new())
            });
            fresh.push((firewall, acls));
        }
        let before = std::mem::replace(&mut self.host_acls.firewalls, fresh);
        before.into_iter().flat_map(|(_, acls)| acls).for_each(|acl| self.release(acl));
        true
    }

    /// The firewalls in their compiled form.
    pub(super) fn compiled_host_acls(&self) -> Arc<ByNode> {
        let mut by_node = ByNode::new();
        for (firewall, acls) in &self.host_acls.firewalls {
            let [Some(ingress), Some(egress)] =
                acls.each_ref().map(|acl| self.tables.table(&acl.rules))
            else {
                continue;
            };
            let acl = HostAcl {
                name: Arc::clone(&firewall.name),
                failsafe: firewall.failsafe,
                ingress: Arc::clone(ingress),
                egress: Arc::clone(egress),
            };
            let nodes = self.cache.nodes().values();
            for node in nodes.filter(|node| firewall.selects(node)) {
                by_node.entry(Arc::clone(&node.name)).or_default().push(acl.clone());
            }
        }
        Arc::new(by_node)
    }
}
