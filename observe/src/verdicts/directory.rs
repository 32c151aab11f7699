//! The names and labels that events get, by address.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;

use super::{End, Event, PodLabels};

/// Addresses of nodes, by name.
pub type Peers = BTreeMap<Arc<str>, IpAddr>;

/// Names by address.
pub type AddressNames = HashMap<IpAddr, Arc<str>>;

/// One end of a packet: the pod behind its port if that is one, its address and its transport port.
pub(super) type UnnamedEnd = (Option<Arc<str>>, Option<IpAddr>, Option<u16>);

/// Names of pods, services and domain names, and labels of pods.
#[derive(Debug, Default)]
pub struct Directory {
    known: RwLock<Known>,
    keeps_labels: AtomicBool,
}

#[derive(Debug, Default)]
struct Known {
    /// Pods attached here; these count first.
    local: AddressNames,
    /// All pods known.
    cluster: AddressNames,
    services: AddressNames,
    domains: AddressNames,
    /// By pod; empty unless they are set.
    labels: HashMap<Arc<str>, PodLabels>,
    /// Pods without an address of their own.
    on_host: HashSet<Arc<str>>,
    peers: Peers,
}

impl Directory {
    /// Sets the names of the pods attached here.
    pub fn set_names(&self, names: AddressNames) {
        self.replace(|known| &mut known.local, names);
    }

    /// Sets the names of all pods known.
    pub fn set_cluster_names(&self, names: AddressNames) {
        self.replace(|known| &mut known.cluster, names);
    }

    /// Sets the pod of an address, among all pods known; `None` if it has none any more.
    pub fn set_cluster_name(&self, address: IpAddr, name: Option<Arc<str>>) {
        self.change(|known| match name {
            Some(name) => known.cluster.insert(address, name),
            None => known.cluster.remove(&address),
        });
    }

    /// Sets the domain names by the addresses that DNS gave for them.
    pub fn set_domains(&self, names: AddressNames) {
        self.replace(|known| &mut known.domains, names);
    }

    /// Sets the names of services by their addresses.
    pub fn set_services(&self, names: AddressNames) {
        self.replace(|known| &mut known.services, names);
    }

    /// Keeps labels of pods from now on.
    pub fn keep_labels(&self) {
        self.keeps_labels.store(true, Ordering::Release);
    }

    /// Returns whether labels are kept.
    pub fn keeps_labels(&self) -> bool {
        self.keeps_labels.load(Ordering::Acquire)
    }

    /// Sets the labels of all pods known, for observers within this process.
    pub fn set_labels(&self, labels: HashMap<Arc<str>, PodLabels>) {
        self.replace(|known| &mut known.labels, labels);
    }

    /// Sets the labels of one pod, `ns/pod`; `None` if it is gone.
    pub fn set_labels_of(&self, pod: &str, labels: Option<PodLabels>) {
        self.change(|known| match labels {
            Some(labels) => known.labels.insert(pod.into(), labels),
            None => known.labels.remove(pod),
        });
    }

    /// Sets the pods without an address of their own, on the host network.
    pub fn set_on_host(&self, pods: HashSet<Arc<str>>) {
        self.replace(|known| &mut known.on_host, pods);
    }

    /// Notes whether a pod, `ns/pod`, is there without an address of its own.
    pub fn note_on_host(&self, pod: &str, is_there: bool) {
        self.change(|known| match is_there {
            true => known.on_host.insert(pod.into()),
            false => known.on_host.remove(pod),
        });
    }

    /// Sets the nodes that are known with an address.
    pub fn set_peers(&self, peers: Peers) {
        self.replace(|known| &mut known.peers, peers);
    }

    /// The nodes that are known with an address.
    pub fn peers(&self) -> Peers {
        self.known.read().peers.clone()
    }

    /// Adds the present labels of its pods to an event without labels, which were not kept at its time.
    pub(super) fn labelled<'e>(&self, event: &'e Event) -> Cow<'e, Event> {
        let lacks = |end: &End| end.pod.is_some() && end.labels.is_none();
        if ![&event.from, &event.to].into_iter().any(lacks) {
            return Cow::Borrowed(event);
        }
        let known = self.known.read();
        if known.labels.is_empty() {
            return Cow::Borrowed(event);
        }
        let mut event = event.clone();
        for end in [&mut event.from, &mut event.to] {
            let labels = || end.pod.as_ref().and_then(|pod| known.labels.get(pod).cloned());
            end.labels = end.labels.take().or_else(labels);
        }
        Cow::Owned(event)
    }

    /// The pod that has an address.
    pub fn pod_at(&self, address: IpAddr) -> Option<Arc<str>> {
        self.known.read().pod_at(address).cloned()
    }

    /// Addresses of the pod with this name, `ns/pod`.
    pub fn addresses_of(&self, pod: &str) -> Vec<IpAddr> {
        let known = self.known.read();
        let all = known.local.iter().chain(&known.cluster).filter(|(_, name)| &***name == pod);
        let mut addresses: Vec<IpAddr> = all.map(|(address, _)| *address).collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }

    /// Every address with its name, sorted: a pod, a service or a domain name, in this order of preference.
    pub fn names(&self) -> Vec<(IpAddr, Arc<str>)> {
        let known = self.known.read();
        let all = [&known.domains, &known.services, &known.cluster, &known.local];
        let all: BTreeMap<IpAddr, &Arc<str>> =
            all.into_iter().flatten().map(|(address, name)| (*address, name)).collect();
        all.into_iter().map(|(address, name)| (address, Arc::clone(name))).collect()
    }

    /// Returns whether a pod satisfies `is_it`.
    pub(super) fn has_pod(&self, is_it: impl Fn(&str) -> bool) -> bool {
        let known = self.known.read();
        let all = known.local.values().chain(known.cluster.values()).chain(&known.on_host);
        all.into_iter().any(|name| is_it(name))
    }

    /// Names the ends of a packet.
    pub(super) fn ends(&self, ends: [UnnamedEnd; 2]) -> [End; 2] {
        let known = self.known.read();
        ends.map(|(pod, ip, port)| {
            let pod = pod.or_else(|| ip.and_then(|ip| known.pod_at(ip).cloned()));
            End {
                labels: pod.as_ref().and_then(|pod| known.labels.get(pod).cloned()),
                pod,
                ip,
                port,
                service: ip.and_then(|ip| known.services.get(&ip).cloned()),
                name: ip.and_then(|ip| known.domains.get(&ip).cloned()),
            }
        })
    }

    fn replace<T>(&self, part: impl FnOnce(&mut Known) -> &mut T, new: T) {
        let old = self.change(|known| std::mem::replace(part(known), new));
        // Freed after the lock is released.
        drop(old);
    }

    fn change<T>(&self, change: impl FnOnce(&mut Known) -> T) -> T {
        change(&mut self.known.write())
    }
}

impl Known {
    fn pod_at(&self, address: IpAddr) -> Option<&Arc<str>> {
        self.local.get(&address).or_else(|| self.cluster.get(&address))
    }
}
