//! Denied connections by the policy that decided.

use std::collections::{BTreeMap, BTreeSet};

use acl::Origin;

/// Maximum number of policies that are counted; further ones count as [`OTHER`].
const MOST: usize = 1_000;
/// Stands for all policies beyond [`MOST`].
const OTHER: &str = "other";

/// Counts packets denied by each policy.
#[derive(Debug, Default)]
pub(super) struct Denials(BTreeMap<Box<str>, u64>);

impl Denials {
    /// Counts a denied packet by the policies of the rules that decided.
    pub(super) fn count(&mut self, by: &[Origin]) {
        for policy in by.iter().map(Origin::policies_in_words).collect::<BTreeSet<_>>() {
            let is_known = self.0.len() < MOST || self.0.contains_key(&*policy);
            let name = if is_known { policy.as_str() } else { OTHER };
            *self.0.entry(name.into()).or_default() += 1;
        }
    }

    /// Packets denied by each policy so far.
    pub(super) fn counts(&self) -> Vec<(String, u64)> {
        self.0.iter().map(|(policy, count)| (policy.to_string(), *count)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rules: &[&str]) -> Vec<Origin> {
        rules.iter().map(|rule| (*rule).into()).collect()
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
