//! The event broker: collects the verdicts of all workers, adds names, keeps a history and serves
//! observers.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use dataplane::Outcome;
use dataplane::wire::protocol;
use dataplane::worker::Inspect;

use super::denials::Denials;
use super::history::{HISTORY, History};
use super::inspector::{Inspector, Queue, Seen, SeenPacket};
use super::rate::Rate;
use super::{End, Event, Filter, Past, PodLabels, Wanted};
use crate::time::utc;
use local_api::Verdict;

/// Pods by address, those of other cluster nodes included.
pub type Names = HashMap<IpAddr, Arc<str>>;

/// Events that wait for one observer.
const WAITING: usize = 4096;
/// How often the workers' queues are looked at.
const PERIOD: Duration = Duration::from_millis(20);

/// Collects verdicts and serves observers.
pub struct EventBroker {
    node: Arc<str>,
    queues: Vec<Arc<Queue>>,
    /// Of the pods attached here; these count first.
    names: Mutex<Arc<Names>>,
    /// Of all pods known.
    cluster: RwLock<Names>,
    /// Services by address.
    services: RwLock<Names>,
    domains: RwLock<Names>,
    /// By pod; empty unless they are set.
    labels: RwLock<HashMap<Arc<str>, PodLabels>>,
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
    /// For the switch of cluster node `node` with this many workers.
    pub fn new(node: &str, workers: usize) -> Arc<Self> {
        Arc::new(Self {
            node: node.into(),
            queues: (0..workers).map(|_| Queue::new()).collect(),
            names: Mutex::default(),
            cluster: RwLock::default(),
            services: RwLock::default(),
            domains: RwLock::default(),
            labels: RwLock::default(),
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

    /// Sets the names of the pods attached here.
    pub fn set_names(&self, names: Names) {
        *lock(&self.names) = Arc::new(names);
    }

    /// Sets the names of all pods known.
    pub fn set_cluster_names(&self, names: Names) {
        let old = std::mem::replace(&mut *write(&self.cluster), names);
        drop(old);
    }

    /// Sets whose an address is, among all pods known.
    pub fn set_cluster_name(&self, address: IpAddr, name: Option<Arc<str>>) {
        let mut names = write(&self.cluster);
        match name {
            Some(name) => names.insert(address, name),
            None => names.remove(&address),
        };
    }

    /// Sets the domain names by the addresses that DNS gave for them.
    pub fn set_domains(&self, names: Names) {
        let old = std::mem::replace(&mut *write(&self.domains), names);
        drop(old);
    }

    /// Sets the names of services by their addresses.
    pub fn set_services(&self, names: Names) {
        let old = std::mem::replace(&mut *write(&self.services), names);
        drop(old);
    }

    /// Sets the labels of all pods known, for observers within this process.
    pub fn set_labels(&self, labels: HashMap<Arc<str>, PodLabels>) {
        let old = std::mem::replace(&mut *write(&self.labels), labels);
        drop(old);
    }

    /// Sets the labels of one pod, `ns/pod`; `None` if it is gone.
    pub fn set_labels_of(&self, pod: &str, labels: Option<PodLabels>) {
        let mut known = write(&self.labels);
        match labels {
            Some(labels) => known.insert(pod.into(), labels),
            None => known.remove(pod),
        };
    }

    /// How many events there were.
    pub fn counts(&self) -> Counts {
        let inner = self.fetch();
        Counts {
            kept: inner.history.len(),
            capacity: HISTORY,
            seen: inner.history.pushed(),
            rate: inner.rate.per_second(self.started.elapsed()),
        }
    }

    /// The pod, of those that a filter names, that neither exists nor is in the history.
    pub fn unknown_pod(&self, filter: &Filter) -> Option<String> {
        let inner = self.fetch();
        filter.pods().find_map(|wanted| {
            let is_it = |name: &str| wanted.is(name);
            let here = Arc::clone(&lock(&self.names));
            let cluster = self.cluster.read().unwrap_or_else(PoisonError::into_inner);
            let is_known = here.values().chain(cluster.values()).any(|name| is_it(name))
                || inner.history.newest_first().any(|event| {
                    [&event.from.pod, &event.to.pod].into_iter().flatten().any(|pod| is_it(pod))
                });
            (!is_known).then(|| wanted.to_string())
        })
    }

    /// The pod that has an address.
    pub fn pod_at(&self, address: IpAddr) -> Option<Arc<str>> {
        let here = lock(&self.names).get(&address).cloned();
        let cluster = || self.cluster.read().unwrap_or_else(PoisonError::into_inner);
        here.or_else(|| cluster().get(&address).cloned())
    }

    /// Addresses of the pod with this name, `ns/pod`.
    pub fn addresses_of(&self, pod: &str) -> Vec<IpAddr> {
        let here = Arc::clone(&lock(&self.names));
        let cluster = self.cluster.read().unwrap_or_else(PoisonError::into_inner);
        let all = here.iter().chain(cluster.iter()).filter(|(_, name)| &***name == pod);
        let mut addresses: Vec<IpAddr> = all.map(|(address, _)| *address).collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }

    /// Verdicts that were lost because they came faster than they could be handed on.
    pub fn lost(&self) -> u64 {
        self.queues.iter().map(|queue| queue.lost.value()).sum()
    }

    /// Packets denied by each policy, of the verdicts that were not lost.
    pub fn denials(&self) -> Vec<(String, u64)> {
        lock(&self.inner).denials.counts()
    }

    /// Fetches verdicts again and again, until [`stop`](Self::stop).
    pub fn run(&self) {
        while !self.stopped.load(Ordering::Acquire) {
            drop(self.fetch());
            std::thread::sleep(PERIOD);
        }
    }

    /// Ends [`run`](Self::run) and all observers.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        lock(&self.inner).observers.clear();
    }

    /// Records a packet that the kernel denied by a policy; `packet` are its first bytes, from the IP
    /// header on.
    pub fn record_denied(&self, by: &str, packet: &[u8]) {
        let mut inner = self.fetch();
        self.record(&mut inner, Seen::denied_by_kernel(vec![by.into()], packet));
    }

    /// Begins to observe. Verdicts taken before this call count as past.
    pub fn observe(&self, wanted: impl Into<Wanted>) -> Observer {
        let wanted = wanted.into();
        let mut inner = self.fetch();
        let (sender, events) = sync_channel(WAITING + HISTORY);
        let lost = Arc::new(AtomicU64::new(0));
        let matching = inner.history.newest_first().filter(|event| (wanted.matches)(event));
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
        let mut inner = lock(&self.inner);
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

    /// Names a verdict, counts and remembers it, and hands it out.
    fn record(&self, inner: &mut Inner, seen: Seen) {
        let event = {
            let names = Arc::clone(&lock(&self.names));
            let cluster = self.cluster.read().unwrap_or_else(PoisonError::into_inner);
            Arc::new(self.event(seen, |ip| names.get(ip).or_else(|| cluster.get(ip)).cloned()))
        };
        if event.reason == Outcome::PolicyDenied.name() {
            inner.denials.count(&event.by);
        }
        inner.rate.count(self.started.elapsed());
        inner.hand_out(&event);
        inner.history.push(event);
    }

    fn event(&self, seen: Seen, name: impl Fn(&IpAddr) -> Option<Arc<str>>) -> Event {
        let services = self.services.read().unwrap_or_else(PoisonError::into_inner);
        let domains = self.domains.read().unwrap_or_else(PoisonError::into_inner);
        let labels = self.labels.read().unwrap_or_else(PoisonError::into_inner);
        let end = |ip: Option<IpAddr>, port, pod_port: Option<Arc<str>>| {
            let pod = pod_port.or_else(|| ip.and_then(|ip| name(&ip)));
            End {
                labels: pod.as_ref().and_then(|pod| labels.get(pod).cloned()),
                pod,
                ip,
                port,
                service: ip.and_then(|ip| services.get(&ip).cloned()),
                name: ip.and_then(|ip| domains.get(&ip).cloned()),
            }
        };
        let packet = seen.packet;
        let ports = packet.and_then(|packet| packet.ports).unzip();
        Event {
            time: utc(seen.time),
            node: Arc::clone(&self.node),
            verdict: match seen.outcome.verdict() {
                dataplane::Verdict::Drop => Verdict::Dropped,
                _ => Verdict::Forwarded,
            },
            reason: seen.outcome.name().to_owned(),
            by: seen.by,
            // The pod behind the port sent it, whatever its source address.
            from: end(
                packet.map(|it| it.source),
                ports.0,
                seen.in_port.clone().filter(|_| seen.in_pod),
            ),
            to: end(
                packet.map(|it| it.destination),
                ports.1,
                seen.out_port.clone().filter(|_| seen.out_pod),
            ),
            protocol: packet.map(|packet| protocol_name(packet.protocol)),
            icmp_type: packet.and_then(|packet| packet.icmp_type),
            tcp_flags: packet.and_then(|packet: SeenPacket| packet.tcp_flags).map(flag_names),
            in_port: seen.in_port,
            out_port: seen.out_port,
            denied: seen.denied,
        }
    }
}

/// Nothing that can fail runs under this lock.
fn write<T>(names: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    names.write().unwrap_or_else(PoisonError::into_inner)
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

/// Name of the protocol with this IP number (IANA).
pub fn protocol_name(number: u8) -> String {
    match number {
        protocol::TCP => "TCP".to_owned(),
        protocol::UDP => "UDP".to_owned(),
        protocol::SCTP => "SCTP".to_owned(),
        protocol::ICMP => "ICMP".to_owned(),
        protocol::ICMPV6 => "ICMPv6".to_owned(),
        other => other.to_string(),
    }
}

/// RFC 9293, section 3.1.
pub fn flag_names(flags: u8) -> String {
    const NAMES: [&str; 8] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];
    let set = NAMES.iter().enumerate().filter(|(bit, _)| flags >> bit & 1 == 1);
    set.map(|(_, name)| *name).collect::<Vec<_>>().join(",")
}

/// Nothing that can fail runs under these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use dataplane::Outcome;

    use super::*;
    use local_api::ObserveFilters;

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
        observer.events.try_iter().map(|event| event.time[17..].to_owned()).collect()
    }

    #[test]
    fn ends_are_named_by_port_and_by_address() {
        let broker = EventBroker::new("node-a", 1);
        broker.set_names(Names::from([("10.9.0.1".parse().unwrap(), "far/away".into())]));
        broker.queues[0].waiting.push(seen(0, Outcome::PolicyAllowed)).unwrap();
        let event = broker.observe(filter(1, false)).events.recv().unwrap();
        assert_eq!(event.from.to_string(), "default/web:1000");
        assert_eq!(event.to.to_string(), "far/away:80");
        assert_eq!(event.tcp_flags.as_deref(), Some("SYN,ACK"));
        assert_eq!(event.verdict, Verdict::Forwarded);
    }

    #[test]
    fn labels_are_those_at_the_time_of_the_event() {
        let broker = EventBroker::new("node-a", 1);
        let labels: PodLabels = Arc::new([("role".into(), "web".into())]);
        broker.set_labels_of("default/web", Some(Arc::clone(&labels)));
        broker.queues[0].waiting.push(seen(0, Outcome::PolicyAllowed)).unwrap();
        drop(broker.fetch());
        broker.set_labels(HashMap::new());
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
        assert!(first.time.ends_with("00:00.010Z"), "{}", first.time);
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
        broker.stop();
        assert_eq!(observer.events.iter().count() as u64, room);
        assert!(lock(&broker.inner).observers.is_empty());
    }
}
