//! Connections that staged policies decide differently than the enforced ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use acl::Origin;
use local_api::Verdict;
use serde::{Deserialize, Serialize};

use super::{End, Event, Protocol};
use crate::shares::Shares;

/// Maximum number of rows; connections that need further ones are only counted.
const MOST: u64 = 10_000;

/// The decision of staged policies about a connection, if it differs from that of the enforced ones.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StagedVerdict {
    /// Verdict if staged policies were enforced.
    pub verdict: Verdict,
    /// The policies that would decide, in the form of [`Event::by`].
    pub by: Vec<Origin>,
}

impl fmt::Display for StagedVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "staged: {}", self.verdict.shown())?;
        if !self.by.is_empty() {
            write!(f, " by {}", Origin::list(&self.by))?;
        }
        Ok(())
    }
}

/// Connections of the same ends, destination port and decisions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct StagedRow {
    /// The pod that opens them, or its address.
    pub from: Arc<str>,
    /// The pod that they are for, or its address.
    pub to: Arc<str>,
    /// See [`Event::protocol`].
    pub protocol: Option<Protocol>,
    /// Destination port.
    pub port: Option<u16>,
    /// The verdict of the enforced policies.
    pub enforced: Verdict,
    /// That of the staged ones.
    pub staged: StagedVerdict,
}

/// Number and time of the connections of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Connections.
    pub connections: u64,
    /// The first of them.
    pub first: SystemTime,
    /// The last of them.
    pub last: SystemTime,
}

/// Connections that a staged policy decides differently, since the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagedCount {
    /// The policy, `KIND NS/NAME`.
    pub policy: Arc<str>,
    /// Its verdict.
    pub verdict: Verdict,
    /// Connections.
    pub connections: u64,
    /// The last of them.
    pub last: SystemTime,
}

/// The rows since the policies about their ends last changed.
#[derive(Debug, Default)]
pub(super) struct StagedConnections {
    rows: BTreeMap<StagedRow, Seen>,
    shares: Shares,
    beyond: u64,
    /// Connections by staged policy and staged verdict, and the last of them.
    counts: BTreeMap<(Arc<str>, Verdict), (u64, SystemTime)>,
}

impl StagedConnections {
    /// Counts the connection of an event, if staged policies decide differently.
    pub(super) fn count(&mut self, event: &Event) {
        let (Some(staged), time) = (&event.staged, event.time) else { return };
        let policies: BTreeSet<String> = staged.by.iter().flat_map(policies).collect();
        for policy in policies {
            let key = (policy.into(), staged.verdict);
            let (connections, last) = self.counts.entry(key).or_insert((0, time));
            *connections += 1;
            *last = time.max(*last);
        }
        let row = StagedRow {
            from: name(&event.from),
            to: name(&event.to),
            protocol: event.protocol,
            port: event.to.port,
            enforced: event.verdict,
            staged: staged.clone(),
        };
        let is_new = !self.rows.contains_key(&row);
        if is_new && !self.shares.take(event.from.pod.as_ref(), 1, MOST) {
            self.beyond += 1;
            return;
        }
        let seen = self.rows.entry(row).or_insert(Seen { connections: 0, first: time, last: time });
        seen.connections += 1;
        seen.last = seen.last.max(time);
    }

    /// Forgets the connections of these pods.
    pub(super) fn forget(&mut self, pods: &[Arc<str>]) {
        self.rows.retain(|row, _| !pods.contains(&row.from) && !pods.contains(&row.to));
        self.shares = Shares::default();
        for row in self.rows.keys() {
            // An address has no slash.
            let pod = Some(&row.from).filter(|from| from.contains('/'));
            self.shares.take(pod, 1, u64::MAX);
        }
    }

    /// All rows, in their order, and the number of connections that belong to none.
    pub(super) fn rows(&self) -> (Vec<(StagedRow, Seen)>, u64) {
        (self.rows.iter().map(|(row, seen)| (row.clone(), *seen)).collect(), self.beyond)
    }

    /// Connections by staged policy and verdict.
    pub(super) fn counts(&self) -> Vec<StagedCount> {
        let counts = self.counts.iter();
        counts
            .map(|((policy, verdict), (connections, last))| StagedCount {
                policy: Arc::clone(policy),
                verdict: *verdict,
                connections: *connections,
                last: *last,
            })
            .collect()
    }
}

/// The policies of a rule or default in words; the origin itself where it names none.
fn policies(origin: &Origin) -> Vec<String> {
    match origin.policies() {
        [] => vec![origin.to_string()],
        policies => policies.iter().map(ToString::to_string).collect(),
    }
}

fn name(end: &End) -> Arc<str> {
    match (&end.pod, end.ip) {
        (Some(pod), _) => Arc::clone(pod),
        (None, Some(ip)) => ip.to_string().into(),
        (None, None) => "?".into(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::verdicts::event::tests::denied;

    fn event(from: &str, staged: Verdict, time: SystemTime) -> Event {
        let by = vec!["NetworkPolicy default/next ingress[0]".into()];
        let from = End { pod: Some(from.into()), ..denied().from };
        Event { time, from, staged: Some(StagedVerdict { verdict: staged, by }), ..denied() }
    }

    #[test]
    fn connections_of_the_same_ends_are_one_row_until_the_policies_of_one_change() {
        let mut staged = StagedConnections::default();
        let at = |s| SystemTime::UNIX_EPOCH + Duration::from_secs(s);
        for (from, s) in [("default/web", 5), ("default/web", 9), ("default/job", 7)] {
            staged.count(&event(from, Verdict::Forwarded, at(s)));
        }
        staged.count(&denied());
        let (rows, beyond) = staged.rows();
        let found: Vec<_> =
            rows.iter().map(|(row, seen)| (&*row.from, row.port, seen.connections)).collect();
        assert_eq!(found, [("default/job", Some(6379), 1), ("default/web", Some(6379), 2)]);
        assert_eq!((rows[1].1.first, rows[1].1.last, beyond), (at(5), at(9), 0));
        let policy: Arc<str> = "NetworkPolicy default/next".into();
        let (verdict, connections, last) = (Verdict::Forwarded, 3, at(9));
        let count = StagedCount { policy, verdict, connections, last };
        assert_eq!(staged.counts(), [count]);
        // A default of several policies is one of each.
        let mut both = event("default/web", Verdict::Dropped, at(4));
        let by = "default-deny of NetworkPolicy default/a, NetworkPolicy default/b";
        both.staged = Some(StagedVerdict { verdict: Verdict::Dropped, by: vec![by.into()] });
        staged.count(&both);
        let dropped = staged.counts().into_iter().filter(|it| it.verdict == Verdict::Dropped);
        let of: Vec<_> = dropped.map(|it| it.policy.to_string()).collect();
        assert_eq!(of, ["NetworkPolicy default/a", "NetworkPolicy default/b"]);
        staged.forget(&["default/web".into()]);
        assert_eq!(staged.rows().0.len(), 1);
        staged.forget(&["default/db".into()]);
        assert_eq!(staged.rows().0, []);
    }

    #[test]
    fn rows_are_bounded_and_a_pod_that_fills_them_leaves_room_for_others() {
        let mut staged = StagedConnections::default();
        let mut scan = |pod: &str, ports: u16| {
            for port in 0..ports {
                let event = event(pod, Verdict::Dropped, SystemTime::UNIX_EPOCH);
                let to = End { port: Some(port), ..event.to };
                staged.count(&Event { to, ..event });
            }
            let (rows, beyond) = staged.rows();
            (rows.iter().filter(|(row, _)| &*row.from == pod).count(), beyond)
        };
        assert_eq!(scan("default/scan", 20_000), (MOST as usize / 2, 15_000));
        assert_eq!(scan("default/web", 100), (100, 15_000));
        staged.forget(&["default/scan".into()]);
        assert_eq!(staged.rows().0.len(), 100);
        // What was forgotten is free again.
        let mut scan = |port| {
            let event = event("default/job", Verdict::Dropped, SystemTime::UNIX_EPOCH);
            let to = End { port: Some(port), ..event.to };
            staged.count(&Event { to, ..event });
        };
        (0..6_000).for_each(&mut scan);
        assert_eq!(staged.rows().0.len(), 100 + 4_950);
    }
}
