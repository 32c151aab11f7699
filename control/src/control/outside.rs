//! Rules about clients outside of the cluster that services lead to addresses which are no pods'.
//!
//! An egress firewall for the whole cluster also holds for what a service sends on for a client
//! outside: such a client must not reach by a hand-made endpoint slice what no pod may reach.

use super::{Acl, Control, Scope};
use crate::configurator;
use crate::model::{ClusterEgressFirewall, Direction};
use crate::render;
use crate::view::PodAcl;

/// The rules, and whether they may have to be made again.
#[derive(Debug, Default)]
pub(super) struct Outside {
    pub(super) is_stale: bool,
    acl: Option<Acl>,
}

impl Control {
    /// Makes the rules again if firewalls or the API server's addresses changed.
    pub(super) fn configure_outside(&mut self) {
        if !std::mem::take(&mut self.outside.is_stale) {
            return;
        }
        let own = match &self.scope {
            Scope::Node(name) => self.cache.nodes().get(name).map(|node| &**node),
            Scope::All => None,
        };
        let is_for_all = |firewall: &&ClusterEgressFirewall| {
            firewall.namespaces.is_everything()
                && firewall.pods.is_everything()
                && firewall.selects_node(own)
        };
        let firewalls = self.cache.firewalls().values().map(|firewall| &**firewall);
        let firewalls = firewalls.filter(|it| self.is_enforced(&it.staging));
        let rules =
            configurator::outside_rules(firewalls.filter(is_for_all), self.cache.api_server());
        let fresh = rules.map(|rules| {
            let (cache, membership) = (&self.cache, &mut self.membership);
            let rules = render::rules(rules, Direction::Egress, cache, membership);
            self.acquire(rules, Vec::new())
        });
        let before = std::mem::replace(&mut self.outside.acl, fresh);
        before.into_iter().for_each(|acl| self.release(acl));
    }

    /// The ACL in its compiled form.
    pub(super) fn outside_acl(&self) -> PodAcl {
        let table = self.outside.acl.as_ref().and_then(|acl| self.tables.table(&acl.rules));
        table.cloned().map_or(PodAcl::Open, PodAcl::Table)
    }
}
