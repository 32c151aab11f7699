//! Connections that `podgate observe -o json` saw.
//!
//! A connection to a service is one to the workloads behind it, on their port. Pods are known by
//! their workloads. A pod that the manifests do not have, since they hold its Deployment or another
//! workload, is known by its name: `web-5d4f-x` belongs to `web`.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use control::model::Service;
use control::{Object, PodKey, View};
use dataplane::Outcome;
use observe::journal::Connections;
use observe::verdicts::{End, Event, Reason, Verdict};

use super::hubble;
use crate::input::Manifests;
use crate::probe::Protocol;
use crate::probe::complete::complete;

/// One end of an observed connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Party {
    /// Pods of a workload: its namespace and its name.
    Workload(String, String),
    /// A node.
    Node(String),
    /// Any other address.
    Address(IpAddr),
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workload(namespace, name) => write!(f, "{namespace}/{name}"),
            Self::Node(name) => write!(f, "node/{name}"),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// An observed connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Flow {
    /// The end that opened it.
    pub from: Party,
    /// The end that it was opened to.
    pub to: Party,
    /// The protocol.
    pub protocol: Protocol,
    /// The port; `None` for ICMP.
    pub port: Option<u16>,
    /// True if policies denied it.
    pub denied: bool,
}

/// Reads what `podgate observe -o json` or `hubble observe -o jsonpb` wrote: one verdict a line.
///
/// # Errors
/// Names every line that is not a verdict.
pub fn read(text: &str) -> Result<Vec<Event>, Vec<String>> {
    let (mut events, mut faults) = (Vec::new(), Vec::new());
    for (n, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let of_hubble = hubble::row(line);
        if of_hubble == Some(None) {
            continue;
        }
        let event = match of_hubble.flatten() {
            Some(row) => serde_json::from_value(row),
            None => serde_json::from_str(line),
        };
        match event {
            Ok(event) => events.push(event),
            Err(error) => faults.push(format!("line {}: is not a verdict: {error}", n + 1)),
        }
    }
    if faults.is_empty() { Ok(events) } else { Err(faults) }
}

/// The connections behind verdicts, each once. Verdicts about packets that policies are not about,
/// such as malformed ones, are left out.
pub fn flows(manifests: &Manifests, events: &[Event]) -> BTreeSet<Flow> {
    let parties = Parties::new(manifests);
    events.iter().flat_map(|event| parties.flows(&event.into())).collect()
}

/// The connections of journals.
pub struct OfJournal<'a> {
    parties: Parties<'a>,
    found: HashMap<Flow, (u64, SystemTime)>,
}

impl<'a> OfJournal<'a> {
    /// Starts empty; `manifests` have the workloads.
    pub fn new(manifests: &'a Manifests) -> Self {
        Self { parties: Parties::new(manifests), found: HashMap::new() }
    }

    /// Adds those of a row.
    pub fn add(&mut self, row: &Connections) {
        for flow in self.parties.flows(&row.into()) {
            self.count(flow, row.count, row.last);
        }
    }

    /// Adds those of another part of the journals.
    pub fn merge(&mut self, other: Self) {
        other.found.into_iter().for_each(|(flow, (count, last))| self.count(flow, count, last));
    }

    fn count(&mut self, flow: Flow, count: u64, last: SystemTime) {
        let (sum, latest) = self.found.entry(flow).or_insert((0, last));
        *sum += count;
        *latest = last.max(*latest);
    }

    /// Returns the connections, with their number and the time of the last one.
    pub fn found(self) -> BTreeMap<Flow, (u64, SystemTime)> {
        self.found.into_iter().collect()
    }
}

/// The parts of a verdict that a connection is made of.
struct Seen<'a> {
    verdict: Verdict,
    reason: &'a Reason,
    protocol: Option<observe::verdicts::Protocol>,
    from: &'a End,
    to: &'a End,
}

impl<'a> From<&'a Event> for Seen<'a> {
    fn from(Event { verdict, reason, protocol, from, to, .. }: &'a Event) -> Self {
        Self { verdict: *verdict, reason, protocol: *protocol, from, to }
    }
}

impl<'a> From<&'a Connections> for Seen<'a> {
    fn from(Connections { verdict, reason, protocol, from, to, .. }: &'a Connections) -> Self {
        Self { verdict: *verdict, reason, protocol: *protocol, from, to }
    }
}

struct Parties<'a> {
    manifests: &'a Manifests,
    pods: BTreeSet<&'a PodKey>,
    services: Services,
    /// The workloads of pods by name: there may be many verdicts about a pod.
    known: RefCell<HashMap<Arc<str>, Option<Party>>>,
    /// Pods behind an address that a workload has, by protocol and port.
    behind: RefCell<HashMap<Destination, Vec<(PodKey, u16)>>>,
}

/// Destination of a connection: its end, address, protocol and port.
type Destination = (Party, IpAddr, Protocol, u16);

/// The services of completed manifests.
struct Services {
    view: Arc<View>,
    pods: BTreeMap<IpAddr, PodKey>,
}

impl Services {
    fn new(manifests: &Manifests) -> Self {
        let mut whole = manifests.clone();
        // Without addresses no connection is one to a service.
        let _ = complete(&mut whole, []);
        let view = whole.control().view();
        let pods = view
            .pods
            .iter()
            .flat_map(|(key, pod)| pod.addresses.iter().map(|address| (*address, key.clone())));
        Self { pods: pods.collect(), view }
    }

    /// The pods and ports behind the ports of services that `is_meant` picks.
    fn behind(
        &self,
        protocol: Protocol,
        port: u16,
        is_meant: impl Fn(&Service) -> bool,
    ) -> Vec<(PodKey, u16)> {
        let mut found = Vec::new();
        for service in self.view.services.values().filter(|it| is_meant(&it.service)) {
            let ports = service.service.ports.iter().zip(&service.endpoints);
            let of_port = ports
                .filter(|(it, _)| it.port == port && Some(it.protocol) == protocol.with_ports());
            let endpoints = of_port.flat_map(|(_, endpoints)| endpoints);
            found.extend(
                endpoints.filter_map(|it| Some((self.pods.get(&it.address)?.clone(), it.port))),
            );
        }
        found
    }
}

impl<'a> Parties<'a> {
    fn new(manifests: &'a Manifests) -> Self {
        let pods = manifests.pods().map(|pod| &pod.key).collect();
        let services = Services::new(manifests);
        Self { manifests, pods, services, known: RefCell::default(), behind: RefCell::default() }
    }

    /// The connections behind a verdict: several where a service chose an endpoint that the
    /// verdict does not name.
    fn flows(&self, seen: &Seen<'_>) -> Vec<Flow> {
        let Some(flow) = self.flow(seen) else { return Vec::new() };
        let (Some(port), Some(address)) = (flow.port, seen.to.ip) else { return vec![flow] };
        let mut known = self.behind.borrow_mut();
        let destination = (flow.to.clone(), address, flow.protocol, port);
        let behind = known.entry(destination).or_insert_with(|| self.behind(&flow, address, port));
        let found: BTreeSet<Flow> = behind
            .iter()
            .map(|(key, port)| Flow {
                to: Party::Workload(key.namespace.to_string(), self.own_name(key)),
                port: Some(*port),
                ..flow.clone()
            })
            .collect();
        if found.is_empty() { vec![flow] } else { found.into_iter().collect() }
    }

    /// The pods and ports that a connection to an address may be for, if a service has it.
    fn behind(&self, flow: &Flow, address: IpAddr, port: u16) -> Vec<(PodKey, u16)> {
        let has = |service: &Service| {
            let all = [&service.cluster_ips, &service.external_ips, &service.load_balancer_ips];
            all.into_iter().flatten().any(|it| *it == address)
        };
        let chosen = |key: &PodKey| {
            let Party::Workload(namespace, name) = &flow.to else { return true };
            *key.namespace == **namespace && self.own_name(key) == *name
        };
        let mut behind = self.services.behind(flow.protocol, port, has);
        if behind.is_empty()
            && let Party::Workload(namespace, name) = &flow.to
            && !self.listens(namespace, name, port)
        {
            // The manifests do not have the service's address.
            let here = |service: &Service| *service.key.namespace == **namespace;
            behind = self.services.behind(flow.protocol, port, here);
        }
        behind.retain(|(key, _)| chosen(key));
        behind
    }

    /// Returns whether a container of a workload names this port.
    fn listens(&self, namespace: &str, name: &str, port: u16) -> bool {
        self.manifests.pods().any(|pod| {
            *pod.key.namespace == *namespace
                && self.own_name(&pod.key) == name
                && pod.ports.named.iter().any(|it| it.number == port)
        })
    }

    fn own_name(&self, key: &PodKey) -> String {
        let workload = self.manifests.workload(key);
        workload.split_once('/').map_or(workload.clone(), |(_, name)| name.to_owned())
    }

    fn flow(&self, seen: &Seen<'_>) -> Option<Flow> {
        let denied = match (seen.verdict, seen.reason.outcome()) {
            (Verdict::Dropped, Some(Outcome::PolicyDenied)) => true,
            (Verdict::Forwarded, _) => false,
            _ => return None,
        };
        let protocol = Protocol::from_number(seen.protocol?.0)?;
        let port = if protocol == Protocol::Icmp { None } else { Some(seen.to.port?) };
        let (from, to) = (self.party(seen.from)?, self.party(seen.to)?);
        Some(Flow { from, to, protocol, port, denied })
    }

    fn party(&self, end: &End) -> Option<Party> {
        if let Some(pod) = &end.pod {
            let mut known = self.known.borrow_mut();
            let workload = || {
                let (namespace, name) = pod.split_once('/')?;
                Some(self.workload(namespace, name))
            };
            return known.entry(Arc::clone(pod)).or_insert_with(workload).clone();
        }
        let address = end.ip?;
        let node = self.manifests.objects.iter().find_map(|object| match object {
            Object::Node(node) if node.addresses.contains(&address) => Some(node.name.to_string()),
            _ => None,
        });
        Some(node.map_or(Party::Address(address), Party::Node))
    }

    fn workload(&self, namespace: &str, name: &str) -> Party {
        let key = PodKey { namespace: namespace.into(), name: name.into() };
        if self.pods.contains(&key) {
            return Party::Workload(namespace.to_owned(), self.own_name(&key));
        }
        let known = self.pods.iter().filter(|pod| *pod.namespace == *namespace);
        let owner = known
            .filter(|pod| name.strip_prefix(&*pod.name).is_some_and(|rest| rest.starts_with('-')))
            .max_by_key(|pod| pod.name.len());
        let workload = owner.map_or_else(|| name.to_owned(), |pod| self.own_name(pod));
        Party::Workload(namespace.to_owned(), workload)
    }
}
