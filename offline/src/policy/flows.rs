//! Connections that `podgate observe -o json` saw.
//!
//! Pods are known by their workloads. A pod that the manifests do not have, since they hold its
//! Deployment or another workload, is known by its name: `web-5d4f-x` belongs to `web`.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use control::{Object, PodKey};
use observe::verdicts::{End, Event, Verdict};

use crate::input::Manifests;
use crate::probe::Protocol;

/// One end of an observed connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Party {
    /// Pods of a workload: its namespace and its name.
    Workload(String, String),
    /// A cluster node.
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
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flow {
    /// The end that opened it.
    pub from: Party,
    /// The end that it was opened to.
    pub to: Party,
    /// The protocol.
    pub protocol: Protocol,
    /// The port; `None` for ICMP.
    pub port: Option<u16>,
    /// Whether policies denied it.
    pub denied: bool,
}

/// Reads what `podgate observe -o json` wrote: one verdict a line.
///
/// # Errors
/// Every line that is no verdict.
pub fn read(text: &str) -> Result<Vec<Event>, Vec<String>> {
    let (mut events, mut faults) = (Vec::new(), Vec::new());
    for (n, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        match serde_json::from_str(line) {
            Ok(event) => events.push(event),
            Err(error) => faults.push(format!("line {}: is no verdict: {error}", n + 1)),
        }
    }
    if faults.is_empty() { Ok(events) } else { Err(faults) }
}

/// The connections behind verdicts, each once. Verdicts about packets that policies are not about,
/// such as malformed ones, are left out.
pub fn flows(manifests: &Manifests, events: &[Event]) -> BTreeSet<Flow> {
    let parties = Parties::new(manifests);
    events.iter().filter_map(|event| parties.flow(event)).collect()
}

struct Parties<'a> {
    manifests: &'a Manifests,
    pods: BTreeSet<&'a PodKey>,
}

impl<'a> Parties<'a> {
    fn new(manifests: &'a Manifests) -> Self {
        let pods = manifests.objects.iter().filter_map(|object| match object {
            Object::Pod(pod) => Some(&pod.key),
            _ => None,
        });
        Self { manifests, pods: pods.collect() }
    }

    fn flow(&self, event: &Event) -> Option<Flow> {
        let denied = match (event.verdict, event.reason.as_str()) {
            (Verdict::Dropped, "policy-denied") => true,
            (Verdict::Forwarded, _) => false,
            _ => return None,
        };
        let protocol = match event.protocol.as_deref()? {
            "ICMPv6" => Protocol::Icmp,
            name => Protocol::from_name(name)?,
        };
        let port = if protocol == Protocol::Icmp { None } else { Some(event.to.port?) };
        let (from, to) = (self.party(&event.from)?, self.party(&event.to)?);
        Some(Flow { from, to, protocol, port, denied })
    }

    fn party(&self, end: &End) -> Option<Party> {
        if let Some(pod) = &end.pod {
            let (namespace, name) = pod.split_once('/')?;
            return Some(self.workload(namespace, name));
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
        let of = |key: &PodKey| {
            let workload = self.manifests.workload(key);
            workload.split_once('/').map_or(workload.clone(), |(_, name)| name.to_owned())
        };
        if self.pods.contains(&key) {
            return Party::Workload(namespace.to_owned(), of(&key));
        }
        let known = self.pods.iter().filter(|pod| *pod.namespace == *namespace);
        let owner = known
            .filter(|pod| name.strip_prefix(&*pod.name).is_some_and(|rest| rest.starts_with('-')))
            .max_by_key(|pod| pod.name.len());
        let workload = owner.map_or_else(|| name.to_owned(), |pod| of(pod));
        Party::Workload(namespace.to_owned(), workload)
    }
}
