//! The event broker: collects the verdicts of all workers, keeps a history and serves observers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use dataplane::session::Tuples;
use dataplane::worker::Inspect;
use dataplane::{AclBinding, Outcome, PortState, Snapshot, StagedDecision};
use parking_lot::{Mutex, MutexGuard};

use super::decisions::{Decisions, OfPolicy};
use super::denials::Denials;
use super::directory::Directory;
use super::filter::rules_of;
use super::history::{HISTORY, History};
use super::inspector::{Inspector, Queue, Seen};
use super::naming::Refused;
use super::rate::Rate;
use super::staged::{StagedConnections, StagedCount, StagedRow};
use super::{Event, Filter, Past, StagedSeen, Wanted};

/// Events that wait for one observer.
const WAITING: usize = 4096;
/// Interval of fetching from the workers' queues.
const PERIOD: Duration = Duration::from_millis(20);

/// Collects verdicts and serves observers.
pub struct EventBroker {
    node: Arc<str>,
    queues: Vec<Arc<Queue>>,
    directory: Directory,
    inner: Mutex<Inner>,
    stopped: AtomicBool,
    started: Instant,
}

/// Events that the broker has seen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Counts {
    /// Past events kept.
    pub kept: usize,
    /// Past events that can be kept.
    pub capacity: usize,
    /// All events since the start.
    pub seen: u64,
    /// Events a second, over the last minute.
    pub rate: f64,
}

#[derive(Default)]
struct Inner {
    history: History,
    denials: Denials,
    decisions: Decisions,
    staged: StagedConnections,
    rate: Rate,
    observers: Vec<Handle>,
}

struct Handle {
    wanted: Wanted,
    events: SyncSender<Arc<Event>>,
    lost: Arc<AtomicU64>,
}

/// One observer's end.
pub struct Observer {
    /// Events that match its filter: past ones first, then new ones.
    pub events: Receiver<Arc<Event>>,
    lost: Arc<AtomicU64>,
}

impl Observer {
    /// Events that it missed since its last call, because it was too slow.
    pub fn take_lost(&self) -> u64 {
        self.lost.swap(0, Ordering::Relaxed)
    }
}

impl EventBroker {
    /// Makes the broker of node `node`, whose switch has this many workers.
    pub fn new(node: &str, workers: usize) -> Arc<Self> {
        Arc::new(Self {
            node: node.into(),
            queues: (0..workers).map(|_| Queue::new()).collect(),
            directory: Directory::default(),
            inner: Mutex::default(),
            stopped: AtomicBool::new(false),
            started: Instant::now(),
        })
    }

    /// The sink of one worker's verdicts.
    pub fn inspector(&self, worker: usize) -> Option<Box<dyn Inspect>> {
        let queue = self.queues.get(worker)?;
        Some(Box::new(Inspector::new(Arc::clone(queue))))
    }

    /// The names and labels that events get.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Numbers of events.
    pub fn counts(&self) -> Counts {
        let inner = self.fetch();
        Counts {
            kept: inner.history.len(),
            capacity: HISTORY,
            seen: inner.history.pushed(),
            rate: inner.rate.per_second(self.started.elapsed()),
        }
    }

    /// Names the object of a filter that neither exists nor is in the history: a pod, a namespace of pods, or a policy,
    /// which is looked up in the `rules` in force.
    pub fn unknown(&self, filter: &Filter, rules: &Snapshot) -> Option<String> {
        let inner = self.fetch();
        let has_pod = |is_it: &dyn Fn(&str) -> bool| {
            let pods = |event: &Arc<Event>| [event.from.pod.clone(), event.to.pod.clone()];
            self.directory.has_pod(is_it)
                || inner.history.newest_first().flat_map(pods).flatten().any(|pod| is_it(&pod))
        };
        let pod = filter.pods().find(|wanted| !has_pod(&|pod| wanted.is(pod)));
        if let Some(pod) = pod {
            return Some(format!("pod {pod}"));
        }
        let is_in = |namespace: &str, pod: &str| {
            pod.split_once('/').is_some_and(|(own, _)| own == namespace)
        };
        let is_empty = |namespace: &&String| !has_pod(&|pod| is_in(namespace, pod));
        if let Some(namespace) = filter.namespaces().iter().find(is_empty) {
            return Some(format!("pod of namespace {namespace}"));
        }
        let of_port = |port: &PortState, policy: &str| {
            let staged = port.staged.iter().flat_map(|staged| [&staged.from_pod, &staged.to_pod]);
            let bindings = [&port.from_pod, &port.to_pod].into_iter().chain(staged);
            let tables = bindings.filter_map(AclBinding::table);
            tables.flat_map(|table| table.rules()).any(|rule| rule.origin.is_of(policy))
        };
        let is_known = |policy: &str| {
            rules.ports().any(|(_, port)| of_port(port, policy))
                || inner.history.newest_first().any(|it| rules_of(it).any(|by| by.is_of(policy)))
        };
        let unknown = filter.policies().iter().find(|policy| !is_known(policy));
        unknown.map(|policy| format!("policy {policy}"))
    }

    /// Returns the number of verdicts lost because they came faster than they were fetched.
    pub fn lost(&self) -> u64 {
        self.queues.iter().map(|queue| queue.lost.value()).sum()
    }

    /// Packets denied by each policy, of the verdicts that were not lost.
    pub fn denials(&self) -> Vec<(String, u64)> {
        self.inner.lock().denials.counts()
    }

    /// Connections that each policy's rules decided about since it changed last, of the verdicts that were not lost.
    pub fn decisions(&self) -> BTreeMap<String, OfPolicy> {
        self.fetch().decisions.counts()
    }

    /// Begins to count anew for policies that changed, by `KIND NAME` or `KIND NAMESPACE/NAME`.
    pub fn forget_decisions(&self, policies: &[String]) {
        self.fetch().decisions.forget(policies);
    }

    /// Returns connections that staged policies decide differently, since the policies of their ends last changed, and
    /// the number of further ones, for which there was no room.
    pub fn staged(&self) -> (Vec<(StagedRow, StagedSeen)>, u64) {
        self.fetch().staged.rows()
    }

    /// Counts connections by the staged policy that decides differently, and its verdict.
    pub fn staged_counts(&self) -> Vec<StagedCount> {
        self.fetch().staged.counts()
    }

    /// Forgets the staged decisions about these pods, whose policies have changed.
    pub fn forget_staged(&self, pods: &[Arc<str>]) {
        self.fetch().staged.forget(pods);
    }

    /// Records an open connection that staged policies would deny.
    pub fn record_open(&self, tuples: &Tuples, staged: StagedDecision, snapshot: &Snapshot) {
        let seen = Seen::open(tuples, staged, snapshot);
        let mut inner = self.inner.lock();
        self.record(&mut inner, seen);
    }

    /// Fetches verdicts periodically, until [`stop`](Self::stop).
    pub fn run(&self) {
        while !self.stopped.load(Ordering::Acquire) {
            drop(self.fetch());
            std::thread::sleep(PERIOD);
        }
    }

    /// Ends [`run`](Self::run) and all observers, which get the verdicts until now.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.fetch().observers.clear();
    }

    /// Returns whether [`stop`](Self::stop) was called.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Records a packet that the kernel denied by a policy; `packet` are its first bytes, from the IP
    /// header on.
    pub fn record_denied(&self, by: &str, packet: &[u8]) {
        let mut inner = self.fetch();
        self.record(&mut inner, Seen::denied_by_kernel(by.into(), packet));
    }

    /// Records a denial at a pod's socket.
    pub fn record_refused(&self, refused: Refused) {
        let event = refused.named(&self.node, &self.directory);
        let mut inner = self.fetch();
        self.keep(&mut inner, event);
    }

    /// Begins to observe. Verdicts taken before this call count as past.
    pub fn observe(&self, wanted: impl Into<Wanted>) -> Observer {
        let wanted = wanted.into();
        let mut inner = self.fetch();
        let (sender, events) = sync_channel(WAITING + HISTORY);
        let lost = Arc::new(AtomicU64::new(0));
        let is_wanted = |event: &&Arc<Event>| (wanted.matches)(&self.directory.labelled(event));
        let matching = inner.history.newest_first().filter(is_wanted);
        let past: Vec<_> = match wanted.past {
            Past::Newest(last) => matching.take(last).collect(),
            Past::Oldest(first) => {
                let all: Vec<_> = matching.collect();
                let begin = all.len().saturating_sub(first);
                all[begin..].to_vec()
            }
        };
        for event in past.into_iter().rev() {
            // The channel has room for the whole history.
            let _ = sender.try_send(Arc::clone(event));
        }
        if wanted.follow && !self.stopped.load(Ordering::Acquire) {
            inner.observers.push(Handle { wanted, events: sender, lost: Arc::clone(&lost) });
        }
        Observer { events, lost }
    }

    /// Takes the events that wait in the workers' queues.
    fn fetch(&self) -> MutexGuard<'_, Inner> {
        let mut inner = self.inner.lock();
        let mut seen: Vec<Seen> = Vec::new();
        for queue in &self.queues {
            queue.fetches.fetch_add(1, Ordering::Relaxed);
            let most = queue.waiting.len();
            seen.extend(std::iter::from_fn(|| queue.waiting.pop()).take(most));
        }
        seen.sort_by_key(|seen| seen.time);
        for seen in seen {
            self.record(&mut inner, seen);
        }
        inner
    }

    /// Names a verdict, counts and stores it, and sends it to observers.
    fn record(&self, inner: &mut Inner, seen: Seen) {
        self.keep(inner, seen.named(&self.node, &self.directory));
    }

    fn keep(&self, inner: &mut Inner, event: Event) {
        let event = Arc::new(event);
        if event.staged.is_some() {
            inner.staged.count(&event);
        } else {
            if event.reason == Outcome::PolicyDenied {
                inner.denials.count(&event.by);
            }
            inner.decisions.count(&event);
            inner.rate.count(self.started.elapsed());
        }
        inner.hand_out(&event);
        inner.history.push(event);
    }
}

impl Inner {
    fn hand_out(&mut self, event: &Arc<Event>) {
        self.observers.retain(|observer| {
            if !(observer.wanted.matches)(event) {
                return true;
            }
            match observer.events.try_send(Arc::clone(event)) {
                Ok(()) => true,
                Err(TrySendError::Full(_)) => {
                    observer.lost.fetch_add(1, Ordering::Relaxed);
                    true
                }
                Err(TrySendError::Disconnected(_)) => false,
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use dataplane::Outcome;
    use dataplane::wire::protocol;
    use local_api::{ObserveFilters, Verdict};

    use super::*;
    use crate::time::utc;
    use crate::verdicts::inspector::SeenPacket;
    use crate::verdicts::{AddressNames, PodLabels, TcpFlags};

    fn seen(n: u64, outcome: Outcome) -> Seen {
        Seen {
            time: SystemTime::UNIX_EPOCH + Duration::from_millis(n),
            outcome,
            by: vec!["a policy".into()],
            in_port: Some("default/web".into()),
            in_pod: true,
            out_port: Some("host".into()),
            out_pod: false,
            denied: None,
            staged: None,
            packet: Some(SeenPacket {
                source: "10.1.0.3".parse().unwrap(),
                destination: "10.9.0.1".parse().unwrap(),
                ports: Some((1000, 80)),
                protocol: protocol::TCP,
                icmp_type: None,
                tcp_flags: Some(0x12),
            }),
        }
    }

    fn filter(last: u32, follow: bool) -> Filter {
        Filter::new(ObserveFilters { last, follow, ..Default::default() }).unwrap()
    }

    fn times(observer: &Observer) -> Vec<String> {
        observer.events.try_iter().map(|event| utc(event.time)[17..].to_owned()).collect()
    }

    #[test]
    fn ends_are_named_by_port_and_by_address() {
        let broker = EventBroker::new("node-a", 1);
        broker
            .directory()
            .set_names(AddressNames::from([("10.9.0.1".parse().unwrap(), "far/away".into())]));
        broker.queues[0].waiting.push(seen(0, Outcome::PolicyAllowed)).unwrap();
        let event = broker.observe(filter(1, false)).events.recv().unwrap();
        assert_eq!(event.from.to_string(), "default/web:1000");
        assert_eq!(event.to.to_string(), "far/away:80");
        assert_eq!(event.tcp_flags, Some(TcpFlags(0x12)));
        assert_eq!(event.verdict, Verdict::Forwarded);
    }

    #[test]
    fn labels_are_those_at_the_time_of_the_event() {
        let broker = EventBroker::new("node-a", 1);
        let labels: PodLabels = Arc::new([("role".into(), "web".into())]);
        broker.directory().set_labels_of("default/web", Some(Arc::clone(&labels)));
        broker.queues[0].waiting.push(seen(0, Outcome::PolicyAllowed)).unwrap();
        drop(broker.fetch());
        broker.directory().set_labels(Default::default());
        broker.queues[0].waiting.push(seen(1, Outcome::PolicyAllowed)).unwrap();
        let events: Vec<_> = broker.observe(filter(2, false)).events.iter().collect();
        assert_eq!(events[0].from.labels, Some(labels));
        assert_eq!((&events[0].to.labels, &events[1].from.labels), (&None, &None));
        let counts = broker.counts();
        assert_eq!((counts.kept, counts.capacity, counts.seen), (2, HISTORY, 2));
        assert_eq!(counts.rate, 2.0);
    }

    #[test]
    fn workers_are_merged_by_time_and_the_last_are_remembered() {
        let broker = EventBroker::new("node-a", 2);
        for (worker, n) in [(0, 3), (1, 1), (1, 4), (0, 2)] {
            broker.queues[worker].waiting.push(seen(n, Outcome::PolicyDenied)).unwrap();
        }
        assert_eq!(times(&broker.observe(filter(3, false))), ["00.002Z", "00.003Z", "00.004Z"]);
        for n in 0..HISTORY as u64 + 10 {
            broker.queues[0].waiting.push(seen(n, Outcome::PolicyDenied)).unwrap();
            if n % 1000 == 0 {
                drop(broker.fetch());
            }
        }
        let all = broker.observe(filter(u32::MAX, false));
        let first = all.events.recv().unwrap();
        assert!(utc(first.time).ends_with("00:00.010Z"), "{first}");
        assert_eq!(all.events.try_iter().count(), HISTORY - 1);
    }

    #[test]
    fn followers_get_what_is_new_and_are_told_of_losses() {
        let broker = EventBroker::new("node-a", 1);
        broker.queues[0].waiting.push(seen(1, Outcome::PolicyDenied)).unwrap();
        let observer = broker.observe(filter(0, true));
        broker.queues[0].waiting.push(seen(2, Outcome::PolicyDenied)).unwrap();
        drop(broker.fetch());
        assert_eq!(times(&observer), ["00.002Z"]);
        let room = (WAITING + HISTORY) as u64;
        for n in 0..room + 5 {
            broker.queues[0].waiting.push(seen(n, Outcome::PolicyDenied)).unwrap();
            drop(broker.fetch());
        }
        assert_eq!((observer.take_lost(), observer.take_lost()), (5, 0));
        assert_eq!(observer.events.try_iter().count() as u64, room);
        // Events that are not fetched yet are sent before the end.
        broker.queues[0].waiting.push(seen(9, Outcome::PolicyDenied)).unwrap();
        broker.stop();
        assert_eq!(times(&observer), ["00.009Z"]);
        assert!(broker.inner.lock().observers.is_empty());
    }
}
