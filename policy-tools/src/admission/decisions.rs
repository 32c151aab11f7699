//! Changes that were allowed and that the watches have not shown yet.
//!
//! A decision counts from the answer on: of two policies of which each makes the other superfluous,
//! only one may go, however late the watch is. Whether the API server stores an allowed change is
//! not known, for another webhook may refuse it. So a change is judged both with these and without,
//! and they are forgotten after a while.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use control::{Object, ObjectRef};

use super::{Change, Cluster};

/// Time after which a change that was allowed and never shown counts no more.
const LASTING: Duration = Duration::from_secs(30);

/// Allowed changes, the last one of each object.
#[derive(Clone, Debug, Default)]
pub(super) struct Decisions {
    changes: BTreeMap<ObjectRef, (Option<Object>, Instant)>,
    /// Counts the decisions.
    pub(super) number: u64,
}

impl Decisions {
    /// Notes a change that was allowed at this time.
    pub(super) fn add(&mut self, change: Change, now: Instant) {
        self.number += 1;
        self.changes.retain(|_, (_, at)| now.saturating_duration_since(*at) < LASTING);
        self.changes.insert(change.object, (change.after, now));
    }

    /// Forgets what a watch has shown: the object as it is now, `None` if it is gone.
    pub(super) fn shown(&mut self, object: &ObjectRef, now: Option<&Object>) {
        if self.changes.get(object).is_some_and(|(after, _)| after.as_ref() == now) {
            self.changes.remove(object);
        }
    }

    /// The cluster after the decisions that count at this time; `None` without any.
    pub(super) fn applied(&self, cluster: &Cluster, now: Instant) -> Option<Cluster> {
        let counts = |at: &Instant| now.saturating_duration_since(*at) < LASTING;
        let changes = self.changes.iter().filter(|(_, (_, at))| counts(at));
        let mut after = None;
        for (object, (changed, _)) in changes {
            let after: &mut Cluster = after.get_or_insert_with(|| cluster.clone());
            match changed {
                Some(changed) => after.set(changed.clone()),
                None => after.delete(object),
            }
        }
        after
    }
}

#[cfg(test)]
mod tests {
    use control::objects::{Read, read};
    use serde_json::json;

    use super::*;

    fn policy(name: &str, selector: &str) -> Object {
        let value = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"namespace": "shop", "name": name},
            "spec": {"podSelector": {"matchLabels": {"app": selector}}}});
        let Read::Object(object, _) = read(value) else { panic!() };
        object
    }

    #[test]
    fn a_decision_counts_until_it_is_shown_or_old() {
        let (now, mut decisions, mut cluster) =
            (Instant::now(), Decisions::default(), Cluster::default());
        let (a, b) = (policy("a", "x"), policy("b", "x"));
        cluster.set(a.clone());
        assert!(decisions.applied(&cluster, now).is_none());
        decisions.add(Change { object: a.reference(), after: None }, now);
        decisions.add(Change { object: b.reference(), after: Some(b.clone()) }, now);
        let count =
            |decisions: &Decisions, at| decisions.applied(&cluster, at).map(|it| it.count());
        assert_eq!(count(&decisions, now), Some(1));
        // What a watch shows of before is not the decision.
        decisions.shown(&a.reference(), Some(&a));
        decisions.shown(&b.reference(), Some(&policy("b", "y")));
        assert_eq!(count(&decisions, now), Some(1));
        decisions.shown(&b.reference(), Some(&b));
        assert_eq!(count(&decisions, now), Some(0), "a is to go");
        decisions.shown(&a.reference(), None);
        assert_eq!(count(&decisions, now), None);
        decisions.add(Change { object: a.reference(), after: None }, now);
        assert_eq!(count(&decisions, now + LASTING), None);
        assert_eq!(decisions.number, 3);
    }
}
