//! The policies of this node, and what is in force of them.

use std::collections::BTreeMap;
use std::time::SystemTime;

use control::model::Stage;
use control::{ObjectRef, PolicyChange, PolicyEvent};
use observe::time::utc;
use observe::verdicts::{Decided, OfPolicy};
use parking_lot::Mutex;
use serde_json::Value;

use super::table::Table;

/// The known policies.
#[derive(Debug, Default)]
pub(crate) struct Policies(Mutex<BTreeMap<ObjectRef, PolicyState>>);

/// The state of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PolicyState {
    stage: Stage,
    /// Its stage if it had no annotation.
    default_stage: Stage,
    /// `metadata.generation` of the version in force.
    generation: Option<i64>,
    /// When its meaning changed last on this node; `None` before it is in force.
    since: Option<SystemTime>,
    /// A newer version is received, and not in force yet.
    is_pending: bool,
}

/// Columns of the table `policies`.
pub const POLICY_COLUMNS: [&str; 11] = [
    "kind",
    "policy",
    "stage",
    "default_stage",
    "generation",
    "state",
    "since",
    "last_difference",
    "allowed",
    "denied",
    "rules",
];

impl Policies {
    /// Notes changes that are not in force yet.
    pub(super) fn received(&self, changes: &[PolicyChange]) {
        let mut policies = self.0.lock();
        for PolicyChange { object, event, stage, default_stage } in changes {
            let default_stage = *default_stage;
            match policies.get_mut(object) {
                Some(known) => known.is_pending = true,
                None if *event == PolicyEvent::Removed => {}
                None => {
                    let (generation, since) = (None, None);
                    let fresh = PolicyState {
                        stage: *stage,
                        default_stage,
                        generation,
                        since,
                        is_pending: true,
                    };
                    policies.insert(object.clone(), fresh);
                }
            }
        }
    }

    /// Notes that changes, and versions of these generations, are in force.
    pub(super) fn in_force(
        &self,
        changes: &[PolicyChange],
        generations: Vec<(ObjectRef, i64)>,
        now: SystemTime,
    ) {
        let mut policies = self.0.lock();
        for PolicyChange { object, event, stage, default_stage } in changes {
            if *event == PolicyEvent::Removed {
                policies.remove(object);
            } else if let Some(known) = policies.get_mut(object) {
                (known.stage, known.default_stage) = (*stage, *default_stage);
                (known.since, known.is_pending) = (Some(now), false);
            }
        }
        for (object, generation) in generations {
            if let Some(known) = policies.get_mut(&object) {
                known.generation = Some(generation);
            }
        }
    }

    /// The generations in force of cluster-wide policies, by `KIND NAME`.
    pub(super) fn generations(&self) -> BTreeMap<String, i64> {
        let policies = self.0.lock();
        let of_cluster = policies.iter().filter(|(object, _)| object.kind.is_cluster_policy());
        of_cluster.filter_map(|(object, it)| Some((object.to_string(), it.generation?))).collect()
    }

    /// The policies that are staged, and since when.
    pub(super) fn staged(&self) -> BTreeMap<ObjectRef, SystemTime> {
        let policies = self.0.lock();
        let staged = policies.iter().filter(|(_, policy)| policy.stage == Stage::Staged);
        staged.filter_map(|(object, policy)| Some((object.clone(), policy.since?))).collect()
    }

    /// The policies as a table, with the connections that their rules decided about; `differences` are the times at
    /// which connections were last seen that a staged policy decides otherwise about. Both by policy.
    pub(super) fn table(
        &self,
        differences: &BTreeMap<String, SystemTime>,
        decisions: &BTreeMap<String, OfPolicy>,
    ) -> Table {
        let name = |stage: Stage| match stage {
            Stage::Staged => "staged",
            Stage::Enforced => "enforced",
        };
        let mut table = Table::new(&POLICY_COLUMNS);
        for (object, policy) in &*self.0.lock() {
            let state = match policy {
                PolicyState { is_pending: true, .. } => "pending",
                PolicyState { stage: Stage::Staged, .. } => "staged",
                PolicyState { stage: Stage::Enforced, .. } => "in-force",
            };
            let name_of = object.to_string();
            let last = differences.get(&name_of);
            let rules = decisions.get(&name_of).into_iter().flatten();
            let sum = |of: fn(&Decided) -> u64| rules.clone().map(|(_, it)| of(it)).sum::<u64>();
            let in_words: Vec<String> = rules
                .clone()
                .map(|(rule, it)| format!("{rule} {}", it.allowed + it.denied))
                .collect();
            let time = |time: Option<SystemTime>| time.map_or(Value::Null, |it| utc(it).into());
            table.add(vec![
                object.kind.name().into(),
                object.place().into(),
                name(policy.stage).into(),
                name(policy.default_stage).into(),
                policy.generation.into(),
                state.into(),
                time(policy.since),
                time(last.copied()),
                sum(|it| it.allowed).into(),
                sum(|it| it.denied).into(),
                in_words.join(", ").into(),
            ]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use acl::Direction;
    use control::Kind;
    use observe::verdicts::DecidingRule;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_policy_is_pending_until_its_snapshot_is_in_force() {
        let policies = Policies::default();
        let object = ObjectRef {
            kind: Kind::NetworkPolicy,
            namespace: Some("shop".into()),
            name: "db".into(),
        };
        let change = |event, stage| PolicyChange {
            object: object.clone(),
            event,
            stage,
            default_stage: Stage::Enforced,
        };
        let row = || policies.table(&BTreeMap::new(), &BTreeMap::new()).rows.pop();
        let at = |s| SystemTime::UNIX_EPOCH + Duration::from_secs(s);
        let added = [change(PolicyEvent::Added, Stage::Staged)];
        policies.received(&added);
        assert_eq!(row().unwrap()[5], "pending");
        policies.in_force(&added, vec![(object.clone(), 1)], at(1));
        let found = row().unwrap();
        assert_eq!(found[..2], [json!("NetworkPolicy"), json!("shop/db")]);
        assert_eq!(found[2..6], [json!("staged"), json!("enforced"), json!(1), json!("staged")]);
        assert_eq!(found[6], "1970-01-01T00:00:01.000Z");
        // A new generation with the same meaning is in force without a change.
        policies.in_force(&[], vec![(object.clone(), 2)], at(5));
        assert_eq!(row().unwrap()[4], 2);
        assert_eq!(row().unwrap()[6], "1970-01-01T00:00:01.000Z");
        let changed = [change(PolicyEvent::Changed, Stage::Enforced)];
        policies.received(&changed);
        assert_eq!((&row().unwrap()[5], &row().unwrap()[4]), (&json!("pending"), &json!(2)));
        policies.in_force(&changed, Vec::new(), at(9));
        let found = row().unwrap();
        assert_eq!(
            (&found[5], &found[6]),
            (&json!("in-force"), &json!("1970-01-01T00:00:09.000Z"))
        );
        let connections = BTreeMap::from([("NetworkPolicy shop/db".to_owned(), at(7))]);
        let decided = |allowed, denied| Decided { allowed, denied };
        let rules = [
            (DecidingRule::Rule(Direction::Ingress, 0), decided(5, 0)),
            (DecidingRule::DefaultDeny, decided(0, 2)),
        ];
        let decisions = BTreeMap::from([("NetworkPolicy shop/db".to_owned(), rules.into())]);
        let table = policies.table(&connections, &decisions);
        assert_eq!(table.rows[0][7], "1970-01-01T00:00:07.000Z");
        assert_eq!(table.rows[0][8..], [json!(5), json!(2), json!("ingress[0] 5, default-deny 2")]);
        let removed = [change(PolicyEvent::Removed, Stage::Enforced)];
        policies.received(&removed);
        assert_eq!(row().unwrap()[5], "pending");
        policies.in_force(&removed, Vec::new(), at(10));
        assert_eq!(row(), None);
    }
}
