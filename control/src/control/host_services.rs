//! Decisions of a node's host firewalls about connections that services lead to its own processes, and that these
//! open by services: the node's switch decides about them, since the kernel does not see both ends.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Acl, Control};
use crate::configurator;
use crate::model::{ClusterHostFirewall, Direction};
use crate::render;
use crate::view::PodAcl;

/// For ingress and egress, the rules of all firewalls together, with the nodes that these firewalls select.
#[derive(Debug, Default)]
pub(super) struct HostServices(Vec<([Acl; 2], Vec<Arc<str>>)>);

/// Firewalls, and the nodes that exactly these select.
pub(super) type Selected = (Vec<Arc<ClusterHostFirewall>>, Vec<Arc<str>>);

impl Control {
    /// Makes the rules of these firewalls, of which each list selects these nodes.
    pub(super) fn configure_host_services(&mut self, selected: Vec<Selected>) {
        let api_server = self.cache.api_server().clone();
        let mut fresh = Vec::new();
        for (firewalls, nodes) in selected {
            let [Some(ingress), Some(egress)] = Direction::BOTH.map(|direction| {
                let rules = configurator::all_host_rules(&firewalls, direction, &api_server)?;
                let (cache, membership) = (&self.cache, &mut self.membership);
                let rules = render::rules(rules, direction, cache, membership);
                Some(self.acquire(rules, Vec::new()))
            }) else {
                continue;
            };
            fresh.push(([ingress, egress], nodes));
        }
        let before = std::mem::replace(&mut self.host_services.0, fresh);
        before.into_iter().flat_map(|(acls, _)| acls).for_each(|acl| self.release(acl));
    }

    /// The rules in their compiled form by node; the map in force if nothing differs.
    pub(super) fn compiled_host_services(&self) -> Arc<BTreeMap<Arc<str>, [PodAcl; 2]>> {
        let mut fresh = BTreeMap::new();
        for (acls, nodes) in &self.host_services.0 {
            let compiled = acls.each_ref().map(|acl| {
                let table = self.tables.table(&acl.rules);
                table.cloned().map_or(PodAcl::Open, PodAcl::Table)
            });
            fresh.extend(nodes.iter().map(|node| (Arc::clone(node), compiled.clone())));
        }
        let before = &self.view.host_services;
        let is_known = |(node, acls)| PodAcl::are_same(before.get(node), Some(acls));
        match fresh.len() == before.len() && fresh.iter().all(is_known) {
            true => Arc::clone(before),
            false => Arc::new(fresh),
        }
    }
}
