//! Explains why a connection may be opened or not, by the policies at either end.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use acl::Origin;
use control::PodKey;
use control::model::{Direction, PortSpec};
use serde::Serialize;

use super::closest::{Other, closest};
use super::labels::{Cluster, nearest};
use crate::probe::answer::{Passage, PodDecision, Reply, reason};
use crate::probe::host::HostDecision;
use crate::probe::world::Location;
use crate::probe::{Answer, Endpoint, Port, ProbeVerdict, Prober, Question, Unended};

/// Explanation of the decision about a connection.
#[derive(Debug, Serialize)]
pub struct Explanation {
    /// `allow` or `deny`.
    pub verdict: &'static str,
    /// True if the verdict is `allow`.
    pub permits: bool,
    /// The reason, as of a probe.
    pub reason: String,
    /// Origins of the rules that decided.
    pub by: Vec<Origin>,
    /// The decision at the pod that opens the connection, or at the node with host firewalls that does.
    pub egress: Option<AtEnd>,
    /// The decision at the pod that it is opened to, or at such a node.
    pub ingress: Option<AtEnd>,
    /// Every connection that the question is about; of those that decide, the first has the
    /// decisions above.
    pub connections: Vec<Opened>,
    /// Ends that policies see as something else, in words.
    pub notes: Vec<String>,
}

/// The decision at one end.
#[derive(Debug, Serialize)]
pub struct AtEnd {
    /// The pod, as `ns/pod`, or the node, as `node/NAME`.
    pub pod: Arc<str>,
    /// Every policy that selects the end and has rules for this direction, in their order.
    pub selecting: Vec<String>,
    /// True if its rules permit the connection.
    pub permits: bool,
    /// The rule that decided.
    pub by: Option<Origin>,
    /// If no rule matched: the one that came closest, with its unmet conditions.
    pub closest: Option<String>,
}

/// One connection: to an endpoint of a service, or of one family.
#[derive(Debug, Serialize)]
pub struct Opened {
    /// The endpoint or the family.
    pub to: String,
    /// The answer about it, and the switches on the way.
    #[serde(flatten)]
    pub reply: Reply,
}

/// Opens the connections of a question, and names the policies behind the decisions.
///
/// # Errors
/// A connection that a switch gave no verdict about.
pub fn explain(prober: &mut Prober, question: Question<'_>) -> Result<Explanation, Unended> {
    let (difference, replies) = prober.replies([question])?.remove(0);
    let answers = replies.iter().map(|(to, reply)| (to.clone(), reply.answer.clone())).collect();
    let nothing = || Answer::deny(reason::NO_ENDPOINT);
    let answer = Answer::all(difference, answers).unwrap_or_else(nothing);
    let mut each = replies.iter();
    let deciding = each.find(|(_, reply)| reply.answer.verdict == answer.verdict);
    let prober = &*prober;
    let decision = |direction| {
        let (label, reply) = deciding?;
        let host = match direction {
            Direction::Egress => &reply.at_source,
            Direction::Ingress => &reply.at_target,
        };
        if let Some(decision) = host {
            return Some(at_node(prober, decision));
        }
        let of = |passage: &Passage| match direction {
            Direction::Egress => passage.egress.clone(),
            Direction::Ingress => passage.ingress.clone(),
        };
        let (passage, decision) = reply.path.iter().find_map(|it| Some((it, of(it)?)))?;
        Some(at_pod(prober, &question, label, passage, decision, direction))
    };
    Ok(Explanation {
        verdict: answer.verdict.name(),
        permits: answer.verdict == ProbeVerdict::Allow,
        reason: answer.reason.to_string(),
        by: answer.by.clone(),
        egress: decision(Direction::Egress),
        ingress: decision(Direction::Ingress),
        notes: notes(prober, &question, &replies),
        connections: replies.into_iter().map(|(to, reply)| Opened { to, reply }).collect(),
    })
}

/// Words on ends that are pods on the host network, and on a pod that reaches itself through a service.
fn notes(prober: &Prober, question: &Question<'_>, replies: &[(String, Reply)]) -> Vec<String> {
    let world = prober.world();
    let mut on_host: Vec<(String, &str)> = Vec::new();
    for end in [question.from, question.to] {
        if let Endpoint::Pod(key) = end
            && let Some(pod) = world.pod(key).filter(|pod| pod.host_network)
        {
            on_host.push((key.to_string(), pod.node.as_deref().unwrap_or_default()));
        }
    }
    let labels: BTreeSet<&str> = match question.to {
        Endpoint::Service(_) => replies.iter().filter_map(|(it, _)| it.split(' ').next()).collect(),
        _ => BTreeSet::new(),
    };
    for address in labels.into_iter().filter_map(|label| label.parse().ok()) {
        let node = world.nodes().find(|node| node.addresses.contains(&address));
        on_host.extend(node.map(|node| (format!("endpoint {address}"), &*node.name)));
    }
    let words = |(end, node)| {
        format!(
            "{end} is on the host network: policies see it as node {node}, and none that selects \
             pods holds for it"
        )
    };
    // Not of a pod that is asked by its own address, where no switch is on the way.
    let is_itself = |(_, reply): &(String, Reply)| {
        reply.answer.reason == reason::SAME_POD && !reply.path.is_empty()
    };
    let itself = replies.iter().find(|it| is_itself(it)).map(|(label, _)| {
        format!(
            "{label} reaches itself through the service, which is permitted whatever policies say (the API text of \
             ClusterNetworkPolicy of July 2026 would subject it to them: docs/policies.md)"
        )
    });
    on_host.into_iter().map(words).chain(itself).collect()
}

fn at_node(prober: &Prober, decision: &HostDecision) -> AtEnd {
    let HostDecision { node, permits, by } = decision;
    let view = prober.control().view();
    let firewalls = view.host_acls.get(node).into_iter().flatten();
    AtEnd {
        pod: format!("node/{node}").into(),
        selecting: firewalls.map(|it| format!("ClusterHostFirewall {}", it.name)).collect(),
        permits: *permits,
        by: by.first().cloned(),
        closest: None,
    }
}

fn at_pod(
    prober: &Prober,
    question: &Question<'_>,
    label: &str,
    passage: &Passage,
    decision: PodDecision,
    direction: Direction,
) -> AtEnd {
    let PodDecision { pod, permits, by } = decision;
    let key = key(&pod);
    let selecting = prober.control().selecting(&key, direction);
    let is_default = by.as_ref().is_some_and(Origin::is_default_deny);
    let closest = (!permits && is_default).then(|| {
        // The endpoint of a service, which the packet does not name yet.
        let chosen = label.split(" via ").next().filter(|name| name.contains('/')).map(self::key);
        let world = prober.world();
        let at = |address: IpAddr| match world.location(address) {
            Location::Pod(key) => world.pod(&key),
            _ => None,
        };
        let (pod, address) = match direction {
            Direction::Ingress => (at(passage.source), passage.source),
            Direction::Egress => {
                let pod = chosen.as_ref().and_then(|key| world.pod(key));
                (pod.or_else(|| at(passage.destination)), passage.destination)
            }
        };
        let target = match direction {
            Direction::Ingress => world.pod(&key),
            Direction::Egress => pod,
        };
        let port = port_at(prober, question, target.map(|pod| &pod.key));
        let other = Other { pod, address, protocol: question.protocol, port, target };
        closest(prober.manifests(), &selecting, direction, &other)
    });
    AtEnd { pod, selecting, permits, by, closest: closest.flatten() }
}

fn key(pod: &str) -> PodKey {
    let (namespace, name) = pod.split_once('/').unwrap_or(("", pod));
    PodKey { namespace: namespace.into(), name: name.into() }
}

/// The port of a connection at the pod that receives it.
fn port_at(prober: &Prober, question: &Question<'_>, target: Option<&PodKey>) -> Option<u16> {
    let (world, view) = (prober.world(), prober.control().view());
    let service = match question.to {
        Endpoint::Service(key) => Some(key),
        Endpoint::Address(address) => world.service_at(*address).map(|service| &service.key),
        _ => None,
    };
    let pod = target.and_then(|key| world.pod(key));
    match (service, question.port?) {
        (None, Port::Number(number)) => Some(*number),
        (None, Port::Name(name)) => pod?.named_port(name, question.protocol.with_ports()?),
        (Some(key), port) => {
            let service = view.services.get(key)?;
            let mut ports = service.service.ports.iter().zip(&service.endpoints);
            let (_, endpoints) = ports.find(|(it, _)| {
                port.is(it) && Some(it.protocol) == question.protocol.with_ports()
            })?;
            let own = endpoints
                .iter()
                .find(|it| pod.is_some_and(|pod| pod.addresses.contains(&it.address)));
            own.map(|it| it.port)
        }
    }
}

/// A port name in a rule that stands for no port.
#[derive(Debug, Serialize)]
pub struct UnknownPort {
    /// `ingress` or `egress`.
    pub direction: &'static str,
    /// The rule.
    pub by: Origin,
    /// The protocol.
    pub protocol: String,
    /// The name.
    pub port: Arc<str>,
    /// A name that is spelt much like it.
    pub similar: Option<String>,
}

/// Port names in the rules of a pod's policies that stand for no port: of ingress rules at the pod,
/// of egress rules at any pod that the peers select.
pub fn unknown_ports(prober: &Prober, pod: &PodKey) -> Vec<UnknownPort> {
    let objects = &prober.manifests().objects;
    let cluster = Cluster::new(objects);
    let own = prober.world().pod(pod);
    let mut found = Vec::new();
    for direction in Direction::BOTH {
        let selecting = prober.control().selecting(pod, direction);
        for rule in super::closest::rules(objects, &selecting, direction) {
            let targets = match direction {
                Direction::Ingress => own.into_iter().collect(),
                Direction::Egress => cluster.peers(rule),
            };
            for ports in rule.ports.iter().flatten() {
                let PortSpec::Name(name) = &ports.port else { continue };
                let has =
                    |pod: &&control::model::Pod| pod.named_port(name, ports.protocol).is_some();
                if targets.is_empty() || targets.iter().any(has) {
                    continue;
                }
                let names =
                    targets.iter().flat_map(|pod| pod.ports.named.iter()).map(|it| &*it.name);
                found.push(UnknownPort {
                    direction: direction.field(),
                    by: rule.origin.clone(),
                    protocol: ports.protocol.to_string(),
                    port: Arc::clone(name),
                    similar: nearest(name, names).map(str::to_owned),
                });
            }
        }
    }
    found
}
