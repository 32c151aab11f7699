//! Denied connections by the policy that decided.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Policies that are counted; further ones count as [`OTHER`].
const MOST: usize = 1_000;
/// Stands for all policies beyond [`MOST`].
const OTHER: &str = "other";

/// Counts packets denied by each policy.
#[derive(Debug, Default)]
pub(super) struct Denials(BTreeMap<Box<str>, u64>);

impl Denials {
    /// Counts a denied packet; `by` names the rules that decided, such as
    /// `NetworkPolicy shop/db ingress[0]`.
    pub(super) fn count(&mut self, by: &[Arc<str>]) {
        let mut last = "";
        for rule in by {
            let policy = policy_of(rule);
            // Several rules of one policy stand side by side.
            if policy != last {
                self.add(policy);
            }
            last = policy;
        }
    }

    fn add(&mut self, policy: &str) {
        if let Some(count) = self.0.get_mut(policy) {
            *count += 1;
            return;
        }
        let name = if self.0.len() < MOST { policy } else { OTHER };
        *self.0.entry(name.into()).or_default() += 1;
    }

    /// Packets denied by each policy so far.
    pub(super) fn counts(&self) -> Vec<(String, u64)> {
        self.0.iter().map(|(policy, count)| (policy.to_string(), *count)).collect()
    }
}

/// The policy of a rule: `KIND NAME` without `ingress[0]`; of a default, the policies that isolate.
pub fn policy_of(rule: &str) -> &str {
    match rule.rsplit_once(' ') {
        Some((policy, place)) if place.ends_with(']') && policy.contains(' ') => policy,
        _ => rule.strip_prefix("default-deny of ").unwrap_or(rule),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rules: &[&str]) -> Vec<Arc<str>> {
        rules.iter().map(|rule| Arc::from(*rule)).collect()
    }

    #[test]
    fn rules_of_one_policy_count_together() {
        let mut denials = Denials::default();
        denials.count(&of(&["ClusterNetworkPolicy no-db egress[3]"]));
        denials.count(&of(&["ClusterNetworkPolicy no-db egress[0]"]));
        denials.count(&of(&["default-deny of NetworkPolicy shop/db"]));
        let wanted =
            [("ClusterNetworkPolicy no-db".to_owned(), 2), ("NetworkPolicy shop/db".to_owned(), 1)];
        assert_eq!(denials.counts(), wanted);
    }

    #[test]
    fn policies_are_bounded() {
        let mut denials = Denials::default();
        for n in 0..MOST + 10 {
            denials.count(&of(&[&format!("NetworkPolicy a/p{n} ingress[0]")]));
        }
        assert_eq!(denials.counts().len(), MOST + 1);
        assert!(denials.counts().contains(&(OTHER.to_owned(), 10)));
    }
}
