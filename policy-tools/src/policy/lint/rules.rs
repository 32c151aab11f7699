//! Finds rules that never decide because others come first.

use std::collections::BTreeMap;
use std::sync::Arc;

use acl::Origin;
use control::Object;
use control::model::{Namespaces, Peer, PolicyRule, PortSpec, RuleAction};

use super::Findings;
use crate::input::Manifests;
use crate::policy::labels::Cluster;
use crate::policy::matrix;

impl Findings<'_> {
    /// Reports rules that earlier ones cover in every table.
    pub(super) fn rules(&mut self, manifests: &Manifests) {
        let expected = deciding_rules(&manifests.objects);
        let view = manifests.control().view();
        let tables = matrix::tables_of_pods(&view);
        // By origin: the rule that decides instead, as long as one does everywhere.
        let mut before: BTreeMap<Origin, Option<(Origin, bool)>> = BTreeMap::new();
        for table in tables.iter().filter(|table| table.rules().len() <= MOST_RULES) {
            for (n, rule) in table.rules().iter().enumerate() {
                let earlier = table.rules()[..n].iter();
                let mut earlier = earlier.filter(|it| it.origin != rule.origin);
                let cover = earlier.find(|it| it.covers(rule));
                let cover = cover.map(|it| (it.origin.clone(), it.action == rule.action));
                let known = before.entry(rule.origin.clone()).or_insert_with(|| cover.clone());
                if cover.is_none() {
                    *known = None;
                }
            }
        }
        // A rule that matches what an earlier one does is in no table at all.
        for (origin, code) in expected.into_iter().filter(|(it, _)| !before.contains_key(it)) {
            let Some(field) = origin.field() else { continue };
            let mend = if code == "redundant-rule" { "" } else { "move it before that, or " };
            let message = format!(
                "never decides: an earlier rule matches the same connections; {mend}remove it"
            );
            self.add_to(&origin.policies_in_words(), &format!("spec.{field}"), code, message);
        }
        for (origin, cover) in before {
            let (Some((other, same)), Some(field)) = (cover, origin.field()) else { continue };
            let (code, what) = match same {
                true => ("redundant-rule", "says the same; remove it"),
                false => ("shadowed-rule", "says otherwise; move it before, or remove it"),
            };
            let message = format!("never decides: {other} comes first and {what}");
            self.add_to(&origin.policies_in_words(), &format!("spec.{field}"), code, message);
        }
    }
}

/// Tables of more rules are not compared rule by rule.
const MOST_RULES: usize = 2_000;

/// Origins of the rules that tables should hold: those of policies that select a pod and whose
/// ports are numbers; each with the code of its absence.
fn deciding_rules(objects: &[Object]) -> Vec<(Origin, &'static str)> {
    let cluster = Cluster::new(objects);
    let is_plain = |rule: &PolicyRule| {
        let by_name = rule.ports.iter().flatten().any(|it| matches!(it.port, PortSpec::Name(_)));
        let by_server = rule.peers.iter().flatten().any(|it| matches!(it, Peer::ApiServer));
        !by_name && !by_server
    };
    let mut found = Vec::new();
    for object in objects {
        match object {
            Object::NetworkPolicy(policy) => {
                let own = Namespaces::Own(Arc::clone(&policy.key.namespace));
                if cluster.select(&own, &policy.selector).next().is_some() {
                    let rules = policy.ingress.iter().chain(&policy.egress).flatten();
                    let plain = rules.filter(|rule| is_plain(rule));
                    found.extend(plain.map(|rule| (rule.origin.clone(), "redundant-rule")));
                }
            }
            Object::ClusterNetworkPolicy(policy) => {
                let selected = Namespaces::Selected(policy.namespaces.clone());
                if cluster.select(&selected, &policy.pods).next().is_some() {
                    let rules = policy.ingress.iter().chain(&policy.egress);
                    // Where a rule passes, others decide.
                    let plain =
                        rules.filter(|it| it.verdict != RuleAction::Pass && is_plain(&it.rule));
                    found.extend(plain.map(|it| (it.rule.origin.clone(), "shadowed-rule")));
                }
            }
            _ => {}
        }
    }
    found
}
