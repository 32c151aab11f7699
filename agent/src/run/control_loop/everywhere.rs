//! Statuses that speak of all nodes: where a cluster-wide policy is in force, and what a staged one
//! would change.
//!
//! The holder of the Lease lists what nodes publish. The others ask at long intervals whether they have become the
//! holder. A condition whose numbers alone change is written again rarely, since every switch watches the policies.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use cli_runtime::counted;
use control::api_server::{Event, NodePolicies, Severity, Warning, Warnings};
use control::model::{Condition, ConditionKind, Report};
use control::{Kind, ObjectRef};
use observe::time::{moment, utc_seconds};

use super::node_policies::{renewal, spread};
use super::reconciler::{Effects, Reconciler, Signal};
use super::reports::{random_part, renewed};

/// Time a node between two lists, and the least.
const LIST: Duration = Duration::from_millis(12);
const LEAST_LIST: Duration = Duration::from_secs(5);
/// Wait for the first one.
const FIRST: Duration = Duration::from_secs(2);
/// Further time for what nodes publish.
const GRACE: Duration = Duration::from_secs(30);
/// Least time between two writes that differ in numbers alone.
const REST: Duration = Duration::from_secs(600);
/// Upper bound on writes behind one list.
const MOST: usize = 20;
/// Names of nodes in a message, for each state.
const NAMES: usize = 3;

/// The nodes' objects as last seen, and the conditions written.
pub(super) struct Everywhere {
    due: Instant,
    /// The time in each node's object, and since when it is known.
    seen: BTreeMap<String, (String, Instant)>,
    /// Nodes without an object, and since when they are known.
    silent: BTreeMap<Arc<str>, Instant>,
    written: BTreeMap<(ObjectRef, ConditionKind), Instant>,
}

impl Everywhere {
    pub(super) fn new(now: Instant) -> Self {
        let (seen, silent, written) = Default::default();
        Self { due: now + FIRST, seen, silent, written }
    }

    /// The nodes that count, with their state, by what they have in force: `None` if that is not known. One that has just
    /// joined does not count yet.
    fn nodes<'a>(
        &mut self,
        nodes: impl Iterator<Item = &'a Arc<str>>,
        count: u32,
        all: &'a BTreeMap<String, NodePolicies>,
        now: Instant,
    ) -> Nodes<'a> {
        let mut seen = std::mem::take(&mut self.seen);
        let mut silent = std::mem::take(&mut self.silent);
        let mut found = Nodes::default();
        for node in nodes {
            let Some(policies) = all.get(&**node) else {
                let since = silent.remove(node).unwrap_or(now);
                self.silent.insert(Arc::clone(node), since);
                if now - since >= 2 * list_interval(count) + spread(count) + GRACE {
                    found.entry(None).or_default().push((node, "silent"));
                }
                continue;
            };
            let known = seen.remove(&**node).filter(|(time, _)| *time == policies.renew_time);
            let known = known.unwrap_or_else(|| (policies.renew_time.clone(), now));
            let is_stale = now - known.1 >= 5 * renewal(count) / 2 + GRACE;
            self.seen.insert(node.to_string(), known);
            match is_stale {
                true => found.entry(None).or_default().push((node, "not ready")),
                false => found.entry(Some(&policies.in_force)).or_default().push((node, "")),
            }
        }
        found
    }

    /// Whether a write is due: the status or its reason is another one, or the numbers alone and the last write is long
    /// ago.
    fn is_news(&self, object: &ObjectRef, report: &Report, new: &Condition, now: Instant) -> bool {
        let is_same = |known: &Condition| {
            let meaning = |it: &Condition| (it.holds, it.reason.clone(), it.observed_generation);
            meaning(known) == meaning(new)
        };
        // How a policy comes into force is followed.
        let is_followed = new.kind == ConditionKind::InForce && !new.holds;
        let last = self.written.get(&(object.clone(), new.kind));
        is_followed
            || !report.condition(new.kind).is_some_and(is_same)
            || last.is_none_or(|last| now - *last >= REST)
    }
}

/// Nodes by what they have in force.
type Nodes<'a> = HashMap<Option<&'a BTreeMap<String, i64>>, Vec<(&'a str, &'static str)>>;

fn list_interval(nodes: u32) -> Duration {
    (LIST * nodes).max(LEAST_LIST)
}

impl Reconciler for Everywhere {
    fn is_due(&self, now: Instant) -> bool {
        self.due <= now
    }

    fn on(&mut self, signal: &Signal<'_>, effects: &mut Effects) {
        match signal {
            Signal::Due(now) => self.request(*now, effects),
            Signal::Source(Event::Published(all)) => self.write(all, effects),
            _ => {}
        }
    }
}

impl Everywhere {
    /// Requests what nodes publish, if there is something to say about it.
    fn request(&mut self, now: Instant, effects: &Effects) {
        let Some(api_server) = effects.input.listed_api_server() else { return };
        // The writer, which gets an answer, asks more often.
        let wait = renewal(effects.control.view().nodes.len() as u32);
        self.due = now + wait - random_part(wait / 4);
        if !effects.input.statuses.is_empty() || !effects.shared.policies.staged().is_empty() {
            api_server.list_policies();
        }
    }

    /// Writes what follows from what all nodes publish.
    fn write(&mut self, all: &BTreeMap<String, NodePolicies>, effects: &Effects) {
        let Some(api_server) = effects.input.listed_api_server() else { return };
        let (now, time, view) = (Instant::now(), SystemTime::now(), effects.control.view());
        let count = view.nodes.len() as u32;
        self.due = now + list_interval(count);
        let nodes = self.nodes(view.nodes.keys(), count, all, now);
        let (staged, sums) = (effects.shared.policies.staged(), sums(all));
        let mut written = 0;
        for (object, report) in &effects.input.statuses {
            let sum = staged.get(object).map(|_| sums.get(object.to_string().as_str()));
            let conditions = [
                in_force(object, report, sum.is_some(), &nodes, time),
                staged_condition(object, report, sum, time),
            ];
            for condition in conditions.into_iter().flatten() {
                if written < MOST && self.is_news(object, report, &condition, now) {
                    let kind = condition.kind;
                    if !api_server.report(object.clone(), condition) {
                        return;
                    }
                    self.written.insert((object.clone(), kind), now);
                    written += 1;
                }
            }
        }
        for object in staged.keys().filter(|object| !object.kind.is_cluster_policy()) {
            let key = (object.clone(), ConditionKind::Staged);
            let last = self.written.get(&key);
            let is_due = last.is_none_or(|last| now - *last >= Warnings::REST);
            if let Some(sum) = sums.get(object.to_string().as_str())
                && written < MOST
                && is_due
            {
                let (severity, object) = (Severity::Normal, object.clone());
                let message = would(sum);
                if !api_server.warn(Warning { severity, object, reason: "Staged", message }) {
                    return;
                }
                self.written.insert(key, now);
                written += 1;
            }
        }
        self.written.retain(|(object, _), _| {
            staged.contains_key(object) || effects.input.statuses.contains_key(object)
        });
    }
}

/// Connections about which a staged policy decides otherwise, of all nodes.
#[derive(Default)]
struct Sum {
    deny: u64,
    allow: u64,
    since: Option<SystemTime>,
}

/// The sums of all nodes, by policy.
fn sums(all: &BTreeMap<String, NodePolicies>) -> BTreeMap<&str, Sum> {
    let mut sums: BTreeMap<&str, Sum> = BTreeMap::new();
    for (policy, of_node) in all.values().flat_map(|it| &it.staged) {
        let sum = sums.entry(policy).or_default();
        sum.deny = sum.deny.saturating_add(of_node.deny);
        sum.allow = sum.allow.saturating_add(of_node.allow);
        let since = moment(&of_node.since);
        sum.since = [sum.since, since].into_iter().flatten().min();
    }
    sums
}

fn would(sum: &Sum) -> String {
    let since = sum.since.map(|it| format!(" since {}", utc_seconds(it))).unwrap_or_default();
    match (sum.deny, sum.allow) {
        (deny, 0) => format!("would deny {}{since}", counted(deny, "connection")),
        (0, open) => format!("would open {}{since}", counted(open, "connection")),
        (deny, open) => {
            format!("would deny {deny} and open {}{since}", counted(open, "connection"))
        }
    }
}

/// The condition of a policy that is staged, with its sum if there is one, or was staged before.
fn staged_condition(
    object: &ObjectRef,
    report: &Report,
    staged: Option<Option<&Sum>>,
    now: SystemTime,
) -> Option<Condition> {
    let (holds, reason, message) = match staged {
        Some(_) if object.kind == Kind::ClusterHostFirewall => {
            (true, "NotEvaluated", "not enforced, and not evaluated".to_owned())
        }
        Some(Some(sum)) => (true, "WouldChange", would(sum)),
        Some(None) => (true, "WouldChangeNothing", "would change no connection so far".to_owned()),
        None => {
            report.condition(ConditionKind::Staged)?;
            (false, "Enforced", "enforced".to_owned())
        }
    };
    renewed(report, ConditionKind::Staged, holds, reason, message, now)
}

/// The condition that says on which nodes the generation of a policy is in force.
fn in_force(
    object: &ObjectRef,
    report: &Report,
    is_staged: bool,
    nodes: &Nodes<'_>,
    now: SystemTime,
) -> Option<Condition> {
    let (name, mut total, mut late) = (object.to_string(), 0, BTreeMap::new());
    for (in_force, nodes) in nodes {
        total += nodes.len();
        let generation = in_force.and_then(|it| it.get(&name).copied());
        if generation.is_some() && generation >= report.generation {
            continue;
        }
        for (node, state) in nodes {
            let state = match (in_force, generation) {
                (None, _) => (*state).to_owned(),
                (Some(_), None) => "not yet".to_owned(),
                (Some(_), Some(generation)) => format!("generation {generation}"),
            };
            late.entry(state).or_insert_with(Vec::new).push(*node);
        }
    }
    if total == 0 {
        return None;
    }
    let count: usize = late.values().map(Vec::len).sum();
    let verb = if is_staged { "staged, not enforced; evaluated" } else { "in force" };
    let message = match late.is_empty() {
        true => format!("{verb} on {total} of {total} nodes"),
        false => {
            let late: Vec<String> = late.into_iter().map(|(why, of)| listed(of, &why)).collect();
            format!("{verb} on {} of {total} nodes ({})", total - count, late.join("; "))
        }
    };
    let reason = match (is_staged, count) {
        (true, _) => "Staged",
        (false, 0) => "AllNodes",
        (false, _) => "NodesLate",
    };
    let holds = !is_staged && count == 0;
    renewed(report, ConditionKind::InForce, holds, reason, message, now)
}

/// Nodes of one state, such as `node-7 and node-9: not ready`.
fn listed(mut nodes: Vec<&str>, state: &str) -> String {
    nodes.sort_unstable();
    let more = nodes.len().saturating_sub(NAMES);
    nodes.truncate(NAMES);
    let more = (more > 0).then(|| format!("{more} more"));
    let mut names: Vec<String> = nodes.iter().map(ToString::to_string).chain(more).collect();
    let last = names.pop().unwrap_or_default();
    match names.is_empty() {
        true => format!("{last}: {state}"),
        false => format!("{} and {last}: {state}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use control::api_server::StagedSum;

    use super::*;

    fn object(name: &str) -> ObjectRef {
        ObjectRef { kind: Kind::ClusterNetworkPolicy, namespace: None, name: name.into() }
    }

    /// The object of a node with the policy `all`.
    fn of(generation: Option<i64>, renewed: u64, staged: [u64; 2], since: &str) -> NodePolicies {
        let name = object("all").to_string();
        let [deny, allow] = staged;
        let sum = StagedSum { deny, allow, since: since.to_owned() };
        NodePolicies {
            renew_time: renewed.to_string(),
            in_force: generation.map(|generation| (name.clone(), generation)).into_iter().collect(),
            staged: (staged != [0, 0]).then_some((name, sum)).into_iter().collect(),
        }
    }

    fn said(
        everywhere: &mut Everywhere,
        all: &BTreeMap<String, NodePolicies>,
        now: Instant,
    ) -> String {
        let nodes: Vec<Arc<str>> = (0..6).map(|n| format!("node-{n}").into()).collect();
        let found = everywhere.nodes(nodes.iter(), 6, all, now);
        let report = Report { generation: Some(3), conditions: Vec::new() };
        let condition = in_force(&object("all"), &report, false, &found, SystemTime::UNIX_EPOCH);
        let condition = condition.unwrap();
        format!("{} {} {}", condition.holds, condition.reason, condition.message)
    }

    #[test]
    fn a_condition_names_the_nodes_that_are_late_and_why() {
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        let mut everywhere = Everywhere::new(begin);
        let none = || of(None, 1, [0, 0], "");
        let mut all: BTreeMap<String, NodePolicies> = [Some(3), Some(4), Some(2), Some(2), None]
            .into_iter()
            .enumerate()
            .map(|(n, it)| (format!("node-{n}"), of(it, 1, [0, 0], "")))
            .collect();
        assert_eq!(
            said(&mut everywhere, &all, begin),
            "false NodesLate in force on 2 of 5 nodes (node-2 and node-3: generation 2; node-4: not yet)",
            "a node that has just joined does not count"
        );
        for n in 0..5 {
            all.insert(format!("node-{n}"), of(Some(3), 2, [0, 0], ""));
        }
        assert_eq!(
            said(&mut everywhere, &all, after(10)),
            "true AllNodes in force on 5 of 5 nodes"
        );
        // The sixth has no switch.
        assert_eq!(
            said(&mut everywhere, &all, after(60)),
            "false NodesLate in force on 5 of 6 nodes (node-5: silent)"
        );
        // Of the first, nothing new is heard.
        all.insert("node-5".to_owned(), of(Some(3), 1, [0, 0], ""));
        for n in 1..5 {
            all.insert(format!("node-{n}"), of(Some(3), 3, [0, 0], ""));
        }
        said(&mut everywhere, &all, after(170));
        assert_eq!(
            said(&mut everywhere, &all, after(200)),
            "false NodesLate in force on 5 of 6 nodes (node-0: not ready)"
        );
        all.values_mut().for_each(|it| *it = none());
        assert_eq!(
            said(&mut everywhere, &all, after(201)),
            "false NodesLate in force on 0 of 6 nodes (node-0, node-1, node-2 and 3 more: not yet)"
        );
    }

    #[test]
    fn staged_sums_of_all_nodes_add_up_and_times_that_are_none_are_left_out() {
        let all = BTreeMap::from([
            ("a".to_owned(), of(None, 1, [2, 0], "2026-11-25T09:00:00Z")),
            ("b".to_owned(), of(None, 1, [u64::MAX, 3], "2026-11-24T09:00:00Z")),
            ("c".to_owned(), of(None, 1, [1, 0], "\u{1b}[31m")),
        ]);
        let sums = sums(&all);
        let report = Report { generation: Some(3), conditions: Vec::new() };
        let policy = object("all");
        let sum = sums.get(policy.to_string().as_str());
        let said = staged_condition(&policy, &report, Some(sum), SystemTime::UNIX_EPOCH).unwrap();
        let message =
            format!("would deny {} and open 3 connections since 2026-11-24T09:00:00Z", u64::MAX);
        assert_eq!(
            (said.holds, said.reason.as_str(), said.message),
            (true, "WouldChange", message)
        );
        let enforced =
            |report: &Report| staged_condition(&policy, report, None, SystemTime::UNIX_EPOCH);
        assert_eq!(enforced(&report), None, "it never was staged");
        let known = staged_condition(&policy, &report, Some(None), SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(known.reason, "WouldChangeNothing");
        let report = Report { conditions: vec![known], ..report };
        assert!(!enforced(&report).unwrap().holds);
    }

    #[test]
    fn numbers_alone_are_written_again_after_ten_minutes() {
        let begin = Instant::now();
        let mut everywhere = Everywhere::new(begin);
        let (policy, time) = (object("all"), SystemTime::UNIX_EPOCH);
        let mut report = Report { generation: Some(3), conditions: Vec::new() };
        let mut writes = Vec::new();
        for second in (0..1800).step_by(5) {
            let now = begin + Duration::from_secs(second);
            let sum = Sum { deny: 1 + second, allow: 0, since: None };
            let condition = staged_condition(&policy, &report, Some(Some(&sum)), time).unwrap();
            if everywhere.is_news(&policy, &report, &condition, now) {
                everywhere.written.insert((policy.clone(), ConditionKind::Staged), now);
                report.conditions = vec![condition];
                writes.push(second);
            }
        }
        assert_eq!(writes, [0, 600, 1200]);
        let nothing = staged_condition(&policy, &report, Some(None), time).unwrap();
        assert!(everywhere.is_news(&policy, &report, &nothing, begin), "another reason");
    }
}
