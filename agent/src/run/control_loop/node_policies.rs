//! Publishes which versions of cluster-wide policies this node has in force, and what staged policies would change here,
//! for the writer of statuses.
//!
//! The API server gets a bounded number of writes a second of all nodes together: each waits for a random part of a time
//! that grows with their number.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime};

use acl::PolicyRef;
use control::api_server::{NodePolicies, StagedSum};
use local_api::Verdict;
use observe::time::utc_seconds;
use observe::verdicts::{StagedRow, StagedSeen};

use super::reconciler::{Effects, Reconciler, Signal};
use super::reports::random_part;

/// Time a node over which all nodes spread a change: a hundred writes a second.
const CHANGE: Duration = Duration::from_millis(10);
/// Time a node between two renewals: eight writes a second.
const RENEWAL: Duration = Duration::from_millis(120);
/// Least time between two renewals.
const LEAST_RENEWAL: Duration = Duration::from_secs(60);

/// Interval of looking whether there is something to publish.
const LOOK: Duration = Duration::from_secs(1);

/// The published object, and the time of the next write.
pub(super) struct Publication {
    look: Instant,
    last: Option<NodePolicies>,
    news: Option<News>,
    /// When a change is published.
    change: Option<Instant>,
    renewal: Instant,
}

/// The part that is published soon after a change: generations in force, and the policies that would change something.
type News = (BTreeMap<String, i64>, BTreeSet<String>);

impl Publication {
    pub(super) fn new(now: Instant) -> Self {
        Self { look: now, last: None, news: None, change: None, renewal: now }
    }

    /// Whether something is to be published now, where this is the news.
    fn has_news(&mut self, news: &News, nodes: u32, now: Instant) -> bool {
        if self.news.as_ref() == Some(news) {
            self.change = None;
        } else if self.change.is_none() {
            self.change = Some(now + random_part(spread(nodes)));
        }
        let is_due = now >= self.change.unwrap_or(self.renewal);
        if is_due {
            self.news = Some(news.clone());
        }
        is_due
    }

    /// Returns whether this is to be written: an empty object is not renewed.
    fn publish(&mut self, policies: &NodePolicies, nodes: u32, now: Instant) -> bool {
        let is_empty = |it: &NodePolicies| it.in_force.is_empty() && it.staged.is_empty();
        let is_news = !is_empty(policies) || !self.last.as_ref().is_some_and(is_empty);
        self.last = Some(policies.clone());
        (self.change, self.renewal) = (None, now + renewal(nodes));
        is_news
    }
}

/// Time within which every node has published a change.
pub(super) fn spread(nodes: u32) -> Duration {
    CHANGE * nodes
}

/// Time after which a node publishes again what has not changed.
pub(super) fn renewal(nodes: u32) -> Duration {
    (RENEWAL * nodes).max(LEAST_RENEWAL)
}

impl Reconciler for Publication {
    fn is_due(&self, now: Instant) -> bool {
        self.look <= now
    }

    fn on(&mut self, signal: &Signal<'_>, effects: &mut Effects) {
        let &Signal::Due(now) = signal else { return };
        self.look = now + LOOK;
        let (shared, view) = (&effects.shared, effects.control.view());
        let Some(api_server) = effects.input.listed_api_server() else { return };
        if !view.nodes.contains_key(effects.node()) {
            return;
        }
        let nodes = view.nodes.len() as u32;
        let in_force = shared.policies.generations();
        let staged = shared.policies.staged();
        let staged: BTreeSet<String> = staged.keys().map(ToString::to_string).collect();
        let counts = shared.broker.staged_counts();
        let would_change = counts.iter().map(|count| count.policy.to_string());
        let news = (in_force, would_change.filter(|policy| staged.contains(policy)).collect());
        if !self.has_news(&news, nodes, now) {
            return;
        }
        let (in_force, mut sums) = (news.0, staged_sums(shared.broker.staged().0));
        sums.retain(|policy, _| staged.contains(policy));
        let renew_time = utc_seconds(SystemTime::now());
        let policies = NodePolicies { renew_time, in_force, staged: sums };
        if self.publish(&policies, nodes, now) {
            api_server.publish_policies(policies);
        }
    }
}

/// Connections by the policy that would decide about them.
fn staged_sums(rows: Vec<(StagedRow, StagedSeen)>) -> BTreeMap<String, StagedSum> {
    let mut sums: BTreeMap<&PolicyRef, (StagedSum, SystemTime)> = BTreeMap::new();
    for (row, seen) in &rows {
        let mut policies: Vec<_> = row.staged.by.iter().flat_map(|by| by.policies()).collect();
        policies.sort();
        policies.dedup();
        for policy in policies {
            let (sum, first) = sums.entry(policy).or_insert((StagedSum::default(), seen.first));
            *first = seen.first.min(*first);
            match row.staged.verdict {
                Verdict::Dropped => sum.deny += seen.connections,
                Verdict::Forwarded => sum.allow += seen.connections,
            }
        }
    }
    let shown = |(policy, (sum, first)): (&PolicyRef, (StagedSum, SystemTime))| {
        (policy.to_string(), StagedSum { since: utc_seconds(first), ..sum })
    };
    sums.into_iter().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staged_rows_are_summed_by_policy() {
        let at = |s| SystemTime::UNIX_EPOCH + Duration::from_secs(s);
        let row = |from: &str, verdict, by: &str, connections, first| {
            let row = StagedRow {
                from: from.into(),
                to: "shop/db".into(),
                protocol: None,
                port: Some(80),
                enforced: Verdict::Forwarded,
                staged: observe::verdicts::StagedVerdict { verdict, by: vec![by.into()] },
            };
            (row, StagedSeen { connections, first: at(first), last: at(99) })
        };
        let sums = staged_sums(vec![
            row("shop/a", Verdict::Dropped, "default-deny of NetworkPolicy shop/x", 2, 9),
            row("shop/b", Verdict::Dropped, "default-deny of NetworkPolicy shop/x", 3, 7),
            row("shop/c", Verdict::Forwarded, "NetworkPolicy shop/x ingress[0]", 4, 8),
            row("shop/d", Verdict::Forwarded, "default-allow", 5, 1),
        ]);
        let since = "1970-01-01T00:00:07Z".to_owned();
        let sum = StagedSum { deny: 5, allow: 4, since };
        assert_eq!(sums, BTreeMap::from([("NetworkPolicy shop/x".to_owned(), sum)]));
    }

    /// Counts the writes of ten minutes in a cluster of so many nodes, of all of them together.
    fn writes(nodes: u32, of: &BTreeMap<String, i64>) -> u32 {
        let begin = Instant::now();
        let mut publication = Publication::new(begin);
        let mut writes = 0;
        for second in 0..1200 {
            let now = begin + Duration::from_secs(second);
            if publication.has_news(&(of.clone(), BTreeSet::new()), nodes, now) {
                let policies = NodePolicies { in_force: of.clone(), ..NodePolicies::default() };
                writes += u32::from(publication.publish(&policies, nodes, now) && second >= 600);
            }
        }
        writes * nodes
    }

    #[test]
    fn all_nodes_together_renew_eight_times_a_second_at_most_and_empty_ones_never() {
        let some = BTreeMap::from([("ClusterNetworkPolicy all".to_owned(), 1)]);
        assert_eq!(writes(10, &some), 10 * 10, "each once a minute");
        assert_eq!(writes(5_000, &some), 5_000, "each once in ten minutes");
        assert_eq!(writes(10, &BTreeMap::new()), 0);
    }

    #[test]
    fn a_change_is_published_within_its_spread_and_once() {
        let begin = Instant::now();
        let mut publication = Publication::new(begin);
        let mut publish = |generation, second| {
            let now = begin + Duration::from_secs(second);
            let in_force = BTreeMap::from([("ClusterNetworkPolicy all".to_owned(), generation)]);
            let news = (in_force.clone(), BTreeSet::new());
            let is_due = publication.has_news(&news, 5_000, now);
            if is_due {
                let policies = NodePolicies { in_force, ..NodePolicies::default() };
                assert!(publication.publish(&policies, 5_000, now));
            }
            is_due
        };
        for (generation, from) in [(1, 0), (2, 100)] {
            let count = (from..from + 90).filter(|second| publish(generation, *second)).count();
            assert_eq!(count, 1, "generation {generation}");
        }
    }
}
