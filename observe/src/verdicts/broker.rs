//! The event broker: collects the verdicts of all workers, keeps a history and serves observers.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant, SystemTime};

use acl::Origin;
use dataplane::session::Tuples;
use dataplane::worker::Inspect;
use dataplane::{AclBinding, Outcome, PortState, Snapshot, StagedDecision};
use parking_lot::{Mutex, MutexGuard};

use super::decisions::{Decisions, OfPolicy};
use super::denials::Denials;
use super::directory::Directory;
use super::filter::rules_of;
use super::history::{HISTORY, History};
use super::inspector::{Inspector, Queue, Seen, SeenPacket};
use super::rate::Rate;
use super::staged::{StagedConnections, StagedCount, StagedRow, StagedVerdict};
use super::{Event, Filter, Past, Process, Protocol, StagedSeen, TcpFlags, Wanted};
use local_api::Verdict;

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

/// A call that was denied before there was a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The pod, `ns/pod`.
    pub pod: Arc<str>,
    /// The pod's address of that family.
    pub address: Option<IpAddr>,
    /// The deciding rule.
    pub by: Origin,
    /// The IP protocol.
    pub protocol: u8,
    /// The operation that was refused.
    pub what: RefusedWhat,
}

/// A call, or what came for a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RefusedWhat {
    /// A call of the pod's.
    Call {
        /// The calling process.
        process: Process,
        /// The address that was asked for.
        to: SocketAddr,
    },
    /// A connection to the pod.
    Arrival {
        /// The initiator; port 0 if that is not known.
        from: SocketAddr,
        /// The port of the pod's socket.
        port: u16,
    },
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
    /// For the switch of node `node` with this many workers.
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

    /// Names the object of a filter that neither exists nor is in the history: a pod, a namespace of pods, or a
    /// policy, of which the `rules` in force are asked.
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

    /// Verdicts that were lost because they came faster than they could be handed on.
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

    /// Connections that staged policies decide otherwise about, since the policies of their ends changed; and
    /// the number of further ones, for which there was no room.
    pub fn staged(&self) -> (Vec<(StagedRow, StagedSeen)>, u64) {
        self.fetch().staged.rows()
    }

    /// Connections by the staged policy that decides otherwise about them, and its verdict.
    pub fn staged_counts(&self) -> Vec<StagedCount> {
        self.fetch().staged.counts()
    }

    /// Forgets what staged policies would change for these pods: their policies are others.
    pub fn forget_staged(&self, pods: &[Arc<str>]) {
        self.fetch().staged.forget(pods);
    }

    /// Records an open connection that staged policies would deny.
    pub fn record_open(&self, tuples: &Tuples, staged: StagedDecision, snapshot: &Snapshot) {
        let seen = Seen::open(tuples, staged, snapshot);
        let mut inner = self.inner.lock();
        self.record(&mut inner, seen);
    }

    /// Fetches verdicts again and again, until [`stop`](Self::stop).
    pub fn run(&self) {
        while !self.stopped.load(Ordering::Acquire) {
            drop(self.fetch());
            std::thread::sleep(PERIOD);
        }
    }

    /// Ends [`run`](Self::run) and all observers, which get what was decided until now.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.fetch().observers.clear();
    }

    /// Whether [`stop`](Self::stop) was called.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Records a packet that the kernel denied by a policy; `packet` are its first bytes, from the IP
    /// header on.
    pub fn record_denied(&self, by: &str, packet: &[u8]) {
        let mut inner = self.fetch();
        self.record(&mut inner, Seen::denied_by_kernel(by.into(), packet));
    }

    /// Records what was denied at a pod's socket.
    pub fn record_refused(&self, refused: Refused) {
        let Refused { pod, address, by, protocol, what } = refused;
        let own = |port| (Some(Arc::clone(&pod)), address, port);
        let other = |at: SocketAddr| (None, Some(at.ip()), Some(at.port()).filter(|it| *it != 0));
        let (ends, process) = match what {
            RefusedWhat::Call { process, to } => ([own(None), other(to)], Some(process)),
            RefusedWhat::Arrival { from, port } => ([other(from), own(Some(port))], None),
        };
        let is_call = process.is_some();
        let [from, to] = self.directory.ends(ends);
        let outcome = Outcome::PolicyDenied;
        let event = Event {
            time: SystemTime::now(),
            node: Arc::clone(&self.node),
            verdict: shown(outcome),
            reason: outcome.into(),
            by: vec![by],
            from,
            to,
            protocol: Some(Protocol(protocol)),
            icmp_type: None,
            tcp_flags: None,
            in_port: is_call.then(|| Arc::clone(&pod)),
            out_port: (!is_call).then_some(pod),
            process,
            staged: None,
            denied: None,
        };
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

    /// Takes what waits in the workers' queues.
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

    fn event(&self, seen: Seen) -> Event {
        let packet = seen.packet;
        let ports = packet.and_then(|packet| packet.ports).unzip();
        // The pod behind the port sent it, whatever its source address.
        let sender = seen.in_port.clone().filter(|_| seen.in_pod);
        let receiver = seen.out_port.clone().filter(|_| seen.out_pod);
        let [from, to] = self.directory.ends([
            (sender, packet.map(|it| it.source), ports.0),
            (receiver, packet.map(|it| it.destination), ports.1),
        ]);
        Event {
            time: seen.time,
            node: Arc::clone(&self.node),
            verdict: shown(seen.outcome),
            reason: seen.outcome.into(),
            by: seen.by,
            from,
            to,
            protocol: packet.map(|packet| Protocol(packet.protocol)),
            icmp_type: packet.and_then(|packet| packet.icmp_type),
            tcp_flags: packet.and_then(|packet: SeenPacket| packet.tcp_flags).map(TcpFlags),
            in_port: seen.in_port,
            out_port: seen.out_port,
            process: None,
            staged: seen
                .staged
                .map(|staged| StagedVerdict { verdict: shown(staged.outcome), by: staged.by }),
            denied: seen.denied,
        }
    }

    /// Names a verdict, counts and remembers it, and hands it out.
    fn record(&self, inner: &mut Inner, seen: Seen) {
        self.keep(inner, self.event(seen));
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

fn shown(outcome: Outcome) -> Verdict {
    match outcome.verdict() {
        dataplane::Verdict::Drop => Verdict::Dropped,
        _ => Verdict::Forwarded,
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
    use local_api::ObserveFilters;

    use super::*;
    use crate::time::utc;
    use crate::verdicts::{AddressNames, PodLabels};

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
        // What nothing has fetched yet is handed out before the end.
        broker.queues[0].waiting.push(seen(9, Outcome::PolicyDenied)).unwrap();
        broker.stop();
        assert_eq!(times(&observer), ["00.009Z"]);
        assert!(broker.inner.lock().observers.is_empty());
    }
}
