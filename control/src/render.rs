//! The ACL renderer: basic rules to the rules of tables.
//!
//! Peers become peer sets by number, and each interval of ports a rule. Of two rules that match the
//! same the first counts, so the second is left out.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use acl::{Action, End, Rule};
use ahash::RandomState;

use crate::cache::Cache;
use crate::configurator::{BasicRule, PortNames};
use crate::membership::Membership;
use crate::model::{Direction, Protocol, RuleAction};
use crate::peers::{NameId, NameOf, PeerSet};

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
        let action = match rule.verdict {
            RuleAction::Accept => Action::Permit,
            RuleAction::Deny => Action::Deny,
            RuleAction::Pass => Action::Pass,
        };
        for (protocol, ports) in rule.ports.iter() {
            if !seen.insert((end, protocol, ports)) {
                continue;
            }
            let mut made = Rule::new(action, rule.origin.clone()).destination_ports(ports);
            made.protocol = protocol;
            made.is_default = rule.is_default;
            rules.push(match direction {
                Direction::Ingress => made.source(end),
                Direction::Egress => made.destination(end),
            });
        }
    }
    rules
}

/// Resolves port names and records which were used.
pub(crate) struct TrackedNames<'a> {
    cache: &'a Cache,
    membership: &'a mut Membership,
    names: BTreeSet<NameId>,
    is_own: bool,
}

impl<'a> TrackedNames<'a> {
    pub(crate) fn new(cache: &'a Cache, membership: &'a mut Membership) -> Self {
        Self { cache, membership, names: BTreeSet::new(), is_own: false }
    }

    /// The names used, each once, and whether the rules are this pod's and not those of every pod
    /// with the same policies.
    pub(crate) fn into_used(self) -> (Vec<NameId>, bool) {
        (self.names.into_iter().collect(), self.is_own)
    }
}

impl PortNames for TrackedNames<'_> {
    fn numbers(&mut self, peers: &PeerSet, name: &Arc<str>, protocol: Protocol) -> Vec<u16> {
        let name = NameOf { peers: peers.clone(), name: Arc::clone(name), protocol };
        let (id, numbers) = self.membership.name(self.cache, name);
        self.names.insert(id);
        numbers
    }

    fn note_own(&mut self) {
        self.is_own = true;
    }
}
