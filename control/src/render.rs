//! The ACL renderer: basic rules to the rules of tables.
//!
//! Peers become peer sets by number. Of two rules that match the same the first counts, so
//! the second is left out.

use std::collections::HashSet;
use std::sync::Arc;

use acl::{Action, End, Rule};
use ahash::RandomState;

use crate::cache::Cache;
use crate::configurator::{BasicRule, PortNames};
use crate::membership::Membership;
use crate::model::{Direction, Protocol, RuleAction};
use crate::peers::{NameId, NameOf, PodPeers};

/// Renders the table rules of one ACL.
pub(crate) fn rules(
    basic: Vec<BasicRule>,
    direction: Direction,
    cache: &Cache,
    membership: &mut Membership,
) -> Vec<Rule> {
    let mut rules = Vec::with_capacity(basic.len());
    let mut seen: HashSet<_, RandomState> = HashSet::default();
    for rule in basic {
        let end = match rule.peer {
            None => End::Any,
            Some(set) => End::Set(membership.set(cache, set)),
        };
        if !seen.insert((end, rule.protocol, rule.ports)) {
            continue;
        }
        let action = match rule.verdict {
            RuleAction::Accept => Action::Permit,
            RuleAction::Deny => Action::Deny,
            RuleAction::Pass => Action::Pass,
        };
        let mut made = Rule::new(action, rule.origin).destination_ports(rule.ports);
        made.protocol = rule.protocol;
        made.is_default = rule.is_default;
        rules.push(match direction {
            Direction::Ingress => made.source(end),
            Direction::Egress => made.destination(end),
        });
    }
    rules
}

/// Resolves port names and records which were used.
pub(crate) struct TrackedNames<'a> {
    cache: &'a Cache,
    membership: &'a mut Membership,
    names: Vec<NameId>,
}

impl<'a> TrackedNames<'a> {
    pub(crate) fn new(cache: &'a Cache, membership: &'a mut Membership) -> Self {
        Self { cache, membership, names: Vec::new() }
    }

    /// The names used, each once.
    pub(crate) fn into_names(self) -> Vec<NameId> {
        self.names
    }
}

impl PortNames for TrackedNames<'_> {
    fn numbers(&mut self, peers: &PodPeers, name: &Arc<str>, protocol: Protocol) -> Vec<u16> {
        let name = NameOf { peers: peers.clone(), name: Arc::clone(name), protocol };
        let (id, numbers) = self.membership.name(self.cache, name);
        if !self.names.contains(&id) {
            self.names.push(id);
        }
        numbers
    }
}
