//! Fair turns between the pods whose answers open addresses.
//!
//! Every change needs a snapshot, whose cost grows with its addresses, so a pod with a constant stream of changes could
//! starve the others. Each pod has one turn for all of its waiting changes, and the pod served longest ago goes first.
//! All pods share one rate, in addresses, in equal parts: a pod that needs less than its part does not wait.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::Change;
use crate::limits::{Limits, Pace};

/// Changes that wait for the turn of their pod, with the answers that wait for them.
#[derive(Debug)]
pub struct Turns<P, A> {
    waiting: BTreeMap<P, Turn<P, A>>,
    /// Pods that were served lately.
    served: HashMap<P, Served>,
    turn: u64,
    limits: Limits,
}

#[derive(Debug, Default)]
struct Served {
    /// The number of its last turn.
    turn: u64,
    /// The addresses of its turns.
    pace: Pace,
}

/// All waiting changes of a pod.
#[derive(Debug)]
pub struct Turn<P, A> {
    /// The newest change of each name.
    pub changes: BTreeMap<Arc<str>, Change<P>>,
    /// The answers that wait for the changes.
    pub answers: Vec<A>,
}

impl<P, A> Turn<P, A> {
    /// Number of the addresses in its changes.
    pub fn addresses(&self) -> usize {
        self.changes.values().map(|it| it.open.len() + it.lingering.len()).sum()
    }
}

impl<P: Ord + Clone + std::hash::Hash, A> Turns<P, A> {
    /// Starts empty.
    pub fn new(limits: Limits) -> Self {
        Self { waiting: BTreeMap::new(), served: HashMap::new(), turn: 0, limits }
    }

    /// Queues the changes of a pod's answer for its turn. Returns the answer if there is nothing to
    /// wait for.
    pub fn add(&mut self, pod: &P, changes: Vec<Change<P>>, answer: A) -> Option<A> {
        if changes.is_empty() && !self.waiting.contains_key(pod) {
            return Some(answer);
        }
        let none = || Turn { changes: BTreeMap::new(), answers: Vec::new() };
        let turn = self.waiting.entry(pod.clone()).or_insert_with(none);
        turn.changes.extend(changes.into_iter().map(|it| (Arc::clone(&it.name), it)));
        turn.answers.push(answer);
        None
    }

    /// Forgets a waiting change: a newer one of the same name is applied out of turn.
    pub fn supersede(&mut self, newer: &Change<P>) {
        if let Some(turn) = self.waiting.get_mut(&newer.pod) {
            turn.changes.remove(&newer.name);
        }
    }

    /// Returns whether a pod waits.
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The next turn, if there may be one `now`.
    pub fn next(&mut self, now: Duration) -> Option<Turn<P, A>> {
        let Limits { burst_of_all, per_second_of_all, .. } = self.limits;
        let share = |of_all: u32, pods: usize| (of_all / pods.max(1) as u32).max(1);
        let per_second = share(per_second_of_all, self.served.len());
        self.served.retain(|_, it| it.pace.left(per_second, now) > 0);
        let burst = share(burst_of_all, self.served.len());
        let served = &mut self.served;
        let mut may =
            |pod: &&P| served.get_mut(*pod).is_none_or(|it| it.pace.left(per_second, now) < burst);
        let pods: Vec<&P> = self.waiting.keys().filter(|pod| may(pod)).collect();
        let last = |pod: &&P| self.served.get(*pod).map(|it| it.turn);
        let pod = pods.into_iter().min_by_key(last)?.clone();
        let turn = self.waiting.remove(&pod)?;
        self.turn += 1;
        let served = self.served.entry(pod).or_default();
        served.turn = self.turn;
        served.pace.left(per_second, now);
        served.pace.count(turn.addresses() as u32);
        Some(turn)
    }
}
