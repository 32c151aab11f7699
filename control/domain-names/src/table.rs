//! The addresses of each pod's names, from their answers to their end.
//!
//! ```text
//!   answer ─▶ open ──── TTL is over, or room is needed ───▶ lingering ── no connection left ─▶ gone
//!              ▲                                                │
//!              └──────────────────── answer ────────────────────┘
//! ```
//!
//! An open address may be connected to. A lingering one keeps the connections that it has.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::limits::{Limits, Pace};

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Addresses that made room for others.
    pub evicted: u64,
    /// Answers that opened nothing, because the pod exceeded its rate.
    pub paced: u64,
}

/// The addresses of names, by pod.
#[derive(Debug)]
pub struct NameTable<P> {
    pub(crate) pods: BTreeMap<P, Pod>,
    limits: Limits,
    counters: Counters,
    /// The number of the last change.
    sequence: u64,
    /// The number of the last answer.
    answers: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Pod {
    pub(crate) names: BTreeMap<Arc<str>, BTreeMap<IpAddr, Entry>>,
    pace: Pace,
    /// The last change that is known to be in force.
    in_force: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// Time at which it ends or ended.
    pub(crate) until: Duration,
    /// The number of the last answer with it.
    pub(crate) answer: u64,
    pub(crate) state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Open; not in force before this change is.
    Pending(u64),
    /// Open and in force.
    InForce,
    /// Closed for new connections.
    Lingering,
}

impl State {
    pub(crate) fn is_open(self) -> bool {
        self != Self::Lingering
    }
}

/// All addresses of one name of one pod, after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change<P> {
    /// The pod.
    pub pod: P,
    /// The name in lower case.
    pub name: Arc<str>,
    /// Addresses that may be connected to, sorted.
    pub open: Vec<IpAddr>,
    /// Addresses that keep their connections only, sorted.
    pub lingering: Vec<IpAddr>,
}

/// Effect of an answer on the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered<P> {
    /// Changes of pods' addresses.
    pub changes: Vec<Change<P>>,
    /// The number of the change that must be in force before the pod gets the answer; `None` if all
    /// is in force.
    pub waits_for: Option<u64>,
}

/// An address in the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row<P> {
    /// The pod.
    pub pod: P,
    /// The name.
    pub name: Arc<str>,
    /// The address.
    pub address: IpAddr,
    /// Time that it stays open; `None` if it is lingering.
    pub left: Option<Duration>,
}

impl<P: Ord + Clone> NameTable<P> {
    /// An empty table.
    pub fn new(limits: Limits) -> Self {
        Self {
            pods: BTreeMap::new(),
            limits,
            counters: Counters::default(),
            sequence: 0,
            answers: 0,
        }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Counts since the start.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Takes the addresses of an answer, with the seconds they may be used.
    pub fn answer(
        &mut self,
        pod: &P,
        name: &Arc<str>,
        addresses: &[(IpAddr, u32)],
        now: Duration,
    ) -> Answered<P> {
        let limits = self.limits;
        self.answers += 1;
        let Pod { names, pace, .. } = self.pods.entry(pod.clone()).or_default();
        let entries = names.entry(Arc::clone(name)).or_default();
        let addresses = &addresses[..addresses.len().min(limits.per_name)];
        let is_open = |address: &IpAddr| entries.get(address).is_some_and(|it| it.state.is_open());
        let opens = addresses.iter().any(|(address, _)| !is_open(address));
        let may_open = opens && pace.left(limits.per_second, now) < limits.burst;
        pace.count(u32::from(may_open));
        self.counters.paced += u64::from(opens && !may_open);
        let next = self.sequence + 1;
        let mut changed = BTreeSet::new();
        let mut waits_for = None;
        for (address, ttl_s) in addresses {
            let is_open = entries.get(address).is_some_and(|it| it.state.is_open());
            if !is_open && !may_open {
                continue;
            }
            let life = Duration::from_secs(u64::from(*ttl_s)) + limits.grace;
            let until = now + life.clamp(limits.least, limits.most);
            let entry = entries.entry(*address).or_insert(Entry {
                until,
                answer: 0,
                state: State::Lingering,
            });
            entry.answer = self.answers;
            // An earlier answer may have allowed longer.
            entry.until = if entry.state.is_open() { entry.until.max(until) } else { until };
            if !entry.state.is_open() {
                entry.state = State::Pending(next);
                changed.insert(Arc::clone(name));
            }
            if let State::Pending(sequence) = entry.state {
                waits_for = waits_for.max(Some(sequence));
            }
        }
        if !changed.is_empty() {
            self.sequence = next;
            changed.extend(self.make_room(pod, Some(name)));
        }
        if let Some(known) = self.pods.get_mut(pod) {
            known.drop_empty();
            if known.names.is_empty() {
                self.pods.remove(pod);
            }
        }
        let changes = changed.iter().map(|name| self.change(pod, name)).collect();
        Answered { changes, waits_for }
    }

    /// Enforces the bounds of a pod after a change, and of `name` if it is given. Returns the names that lost
    /// addresses.
    fn make_room(&mut self, pod: &P, name: Option<&Arc<str>>) -> BTreeSet<Arc<str>> {
        let mut touched = BTreeSet::new();
        let Some(known) = self.pods.get_mut(pod) else { return touched };
        let mut evicted = 0;
        if let Some(entries) = name.and_then(|name| known.names.get_mut(name)) {
            let open = entries.iter_mut().filter(|(_, it)| it.state.is_open());
            let mut open: Vec<_> = open.map(|(_, it)| it).collect();
            open.sort_by_key(|it| std::cmp::Reverse((it.answer, it.until)));
            for entry in open.into_iter().skip(self.limits.per_name) {
                entry.state = State::Lingering;
                evicted += 1;
            }
        }
        for is_open in [true, false] {
            let all = known.names.iter_mut().flat_map(|(name, entries)| {
                entries.iter_mut().map(move |(address, it)| (it, Arc::clone(name), *address))
            });
            let mut all: Vec<_> = all.filter(|(it, ..)| it.state.is_open() == is_open).collect();
            let over = all.len().saturating_sub(self.limits.per_pod);
            all.sort_by_key(|(it, ..)| (it.answer, it.until));
            let oldest = all.into_iter().take(over);
            let mut gone = Vec::new();
            for (entry, name, address) in oldest {
                evicted += 1;
                match is_open {
                    true => entry.state = State::Lingering,
                    false => gone.push((Arc::clone(&name), address)),
                }
                touched.insert(name);
            }
            for (name, address) in gone {
                known.names.get_mut(&name).and_then(|entries| entries.remove(&address));
            }
        }
        self.counters.evicted += evicted;
        touched
    }

    /// Notes that a change of a pod is in force, and all of that pod before it.
    pub fn in_force(&mut self, pod: &P, sequence: u64) {
        let Some(pod) = self.pods.get_mut(pod) else { return };
        pod.in_force = pod.in_force.max(sequence);
        for entry in pod.names.values_mut().flat_map(BTreeMap::values_mut) {
            if matches!(entry.state, State::Pending(pending) if pending <= sequence) {
                entry.state = State::InForce;
            }
        }
    }

    /// Returns whether a change of a pod is not in force yet.
    pub fn is_pending(&self, pod: &P, sequence: u64) -> bool {
        self.pods.get(pod).is_some_and(|pod| pod.in_force < sequence)
    }

    /// Closes addresses whose time is over.
    pub fn expire(&mut self, now: Duration) -> Vec<Change<P>> {
        let mut touched = self.update(|_, _, entry| {
            let is_over = entry.state.is_open() && entry.until <= now;
            is_over.then_some(Fate::Lingers)
        });
        let pods: BTreeSet<P> = touched.iter().map(|(pod, _)| pod.clone()).collect();
        for pod in pods {
            let others = self.make_room(&pod, None);
            touched.extend(others.into_iter().map(|name| (pod.clone(), name)));
        }
        self.changes_of(touched)
    }

    /// Removes lingering addresses that closed before `now` less a second and have no connection.
    pub fn end_lingering(
        &mut self,
        now: Duration,
        is_connected: impl Fn(&P, IpAddr) -> bool,
    ) -> Vec<Change<P>> {
        let touched = self.update(|pod, address, entry| {
            let is_over = entry.state == State::Lingering
                && entry.until + Duration::from_secs(1) <= now
                && !is_connected(pod, address);
            is_over.then_some(Fate::Goes)
        });
        self.changes_of(touched)
    }

    /// Removes all names of a pod.
    pub fn forget(&mut self, pod: &P) -> Vec<Change<P>> {
        let gone = self.pods.remove(pod).into_iter().flat_map(|pod| pod.names.into_keys());
        let closed =
            |name| Change { pod: pod.clone(), name, open: Vec::new(), lingering: Vec::new() };
        gone.map(closed).collect()
    }

    /// Removes all names of all pods.
    pub fn clear(&mut self) -> Vec<Change<P>> {
        let pods: Vec<P> = self.pods.keys().cloned().collect();
        pods.iter().flat_map(|pod| self.forget(pod)).collect()
    }

    /// Decides about every address; returns the names with a change.
    fn update(
        &mut self,
        fate: impl Fn(&P, IpAddr, &Entry) -> Option<Fate>,
    ) -> BTreeSet<(P, Arc<str>)> {
        let mut touched = BTreeSet::new();
        for (pod, known) in &mut self.pods {
            for (name, entries) in &mut known.names {
                entries.retain(|address, entry| match fate(pod, *address, entry) {
                    None => true,
                    Some(fate) => {
                        touched.insert((pod.clone(), Arc::clone(name)));
                        entry.state = State::Lingering;
                        matches!(fate, Fate::Lingers)
                    }
                });
            }
        }
        touched
    }

    /// The changes of these names; forgets those without addresses.
    fn changes_of(&mut self, touched: BTreeSet<(P, Arc<str>)>) -> Vec<Change<P>> {
        let changes = touched.iter().map(|(pod, name)| self.change(pod, name)).collect();
        self.pods.retain(|_, pod| {
            pod.drop_empty();
            !pod.names.is_empty()
        });
        changes
    }

    fn change(&self, pod: &P, name: &Arc<str>) -> Change<P> {
        let entries = self.pods.get(pod).and_then(|pod| pod.names.get(name));
        let of = |is_open| -> Vec<IpAddr> {
            let entries = entries.into_iter().flatten();
            entries.filter(|(_, it)| it.state.is_open() == is_open).map(|(it, _)| *it).collect()
        };
        Change { pod: pod.clone(), name: Arc::clone(name), open: of(true), lingering: of(false) }
    }

    /// The addresses of every name.
    pub fn changes(&self) -> Vec<Change<P>> {
        let names = self.pods.iter().flat_map(|(pod, it)| it.names.keys().map(move |it| (pod, it)));
        names.map(|(pod, name)| self.change(pod, name)).collect()
    }

    /// Returns whether any address is lingering.
    pub fn has_lingering(&self) -> bool {
        let entries = self.pods.values().flat_map(|pod| pod.names.values());
        entries.flat_map(BTreeMap::values).any(|entry| !entry.state.is_open())
    }

    /// Every address, in the order of pods and names.
    pub fn rows(&self, now: Duration) -> impl Iterator<Item = Row<P>> {
        let names = self.pods.iter().flat_map(|(pod, it)| it.names.iter().map(move |it| (pod, it)));
        names.flat_map(move |(pod, (name, entries))| {
            entries.iter().map(move |(address, entry)| Row {
                pod: pod.clone(),
                name: Arc::clone(name),
                address: *address,
                left: entry.state.is_open().then(|| entry.until.saturating_sub(now)),
            })
        })
    }
}

enum Fate {
    Lingers,
    Goes,
}

impl Pod {
    fn drop_empty(&mut self) {
        self.names.retain(|_, entries| !entries.is_empty());
    }
}
