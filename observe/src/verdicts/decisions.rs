//! Connections that rules of policies allowed and denied.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use acl::{Direction, Origin, PolicyRef};
use dataplane::Outcome;
use local_api::Verdict;

use super::Event;

/// Maximum number of rules that are counted.
const MOST: usize = 20_000;

/// A rule of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DecidingRule {
    /// The rule at this place of a direction's list.
    Rule(Direction, u32),
    /// The denial of connections that no rule allows.
    DefaultDeny,
}

impl fmt::Display for DecidingRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(direction, index) => write!(f, "{}[{index}]", direction.field()),
            Self::DefaultDeny => f.write_str("default-deny"),
        }
    }
}

/// Connections that a rule decided about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Decided {
    /// Connections that it allowed.
    pub allowed: u64,
    /// Packets of connections that it denied.
    pub denied: u64,
}

/// Counts of a policy, by rule.
pub type OfPolicy = BTreeMap<DecidingRule, Decided>;

/// Counts by policy.
#[derive(Debug, Default)]
pub(super) struct Decisions {
    counts: HashMap<PolicyRef, OfPolicy>,
    rules: usize,
}

impl Decisions {
    /// Counts an event, if policies in force decided about it.
    pub(super) fn count(&mut self, event: &Event) {
        let is_denied = event.reason == Outcome::PolicyDenied;
        if event.verdict != Verdict::Forwarded && !is_denied {
            return;
        }
        for origin in &event.by {
            let rule = match origin {
                Origin::Rule(_, direction, index) => DecidingRule::Rule(*direction, *index),
                _ => DecidingRule::DefaultDeny,
            };
            for policy in origin.policies() {
                if let Some(decided) = self.of(policy, rule) {
                    match is_denied {
                        true => decided.denied += 1,
                        false => decided.allowed += 1,
                    }
                }
            }
        }
    }

    fn of(&mut self, policy: &PolicyRef, rule: DecidingRule) -> Option<&mut Decided> {
        let is_known = self.counts.get(policy).is_some_and(|it| it.contains_key(&rule));
        if !is_known {
            if self.rules >= MOST {
                return None;
            }
            self.rules += 1;
            self.counts.entry(policy.clone()).or_default().insert(rule, Decided::default());
        }
        self.counts.get_mut(policy)?.get_mut(&rule)
    }

    /// Resets the counts of changed policies, by `KIND NAME` or `KIND NAMESPACE/NAME`.
    pub(super) fn forget(&mut self, policies: &[String]) {
        let is_other = |policy: &PolicyRef| !policies.contains(&policy.to_string());
        self.counts.retain(|policy, _| is_other(policy));
        self.rules = self.counts.values().map(BTreeMap::len).sum();
    }

    /// The counts so far, by policy in words.
    pub(super) fn counts(&self) -> BTreeMap<String, OfPolicy> {
        self.counts.iter().map(|(policy, rules)| (policy.to_string(), rules.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdicts::denied;

    fn allowed(by: &[&str]) -> Event {
        let by = by.iter().map(|rule| (*rule).into()).collect();
        Event { verdict: Verdict::Forwarded, reason: "policy-allowed".into(), by, ..denied() }
    }

    #[test]
    fn each_rule_has_its_own_count_until_its_policy_changes() {
        let mut decisions = Decisions::default();
        let (egress, ingress) =
            ("NetworkPolicy shop/web egress[0]", "NetworkPolicy shop/db ingress[2]");
        decisions.count(&allowed(&[egress, ingress]));
        decisions.count(&allowed(&[ingress]));
        decisions.count(&allowed(&["default-allow"]));
        let by = vec!["default-deny of NetworkPolicy shop/db, NetworkPolicy shop/all".into()];
        decisions.count(&Event { by, ..denied() });
        decisions.count(&Event { reason: "malformed-ip".into(), ..denied() });
        let counts = decisions.counts();
        let in_words = |policy: &str| {
            let rules = counts[policy].iter();
            let rules = rules.map(|(rule, it)| format!("{rule} {} {}", it.allowed, it.denied));
            rules.collect::<Vec<_>>()
        };
        assert_eq!(in_words("NetworkPolicy shop/db"), ["ingress[2] 2 0", "default-deny 0 1"]);
        assert_eq!(in_words("NetworkPolicy shop/web"), ["egress[0] 1 0"]);
        assert_eq!(in_words("NetworkPolicy shop/all"), ["default-deny 0 1"]);
        decisions.forget(&["NetworkPolicy shop/db".to_owned()]);
        let left: Vec<String> = decisions.counts().into_keys().collect();
        assert_eq!(left, ["NetworkPolicy shop/all", "NetworkPolicy shop/web"]);
        assert_eq!(decisions.rules, 2);
    }

    #[test]
    fn rules_are_bounded() {
        let mut decisions = Decisions::default();
        for n in 0..MOST + 10 {
            decisions.count(&allowed(&[&format!("NetworkPolicy a/p ingress[{n}]")]));
        }
        decisions.count(&allowed(&["NetworkPolicy a/p ingress[0]"]));
        let counts = &decisions.counts()["NetworkPolicy a/p"];
        assert_eq!(counts.len(), MOST);
        assert_eq!(counts[&DecidingRule::Rule(Direction::Ingress, 0)].allowed, 2);
    }
}
