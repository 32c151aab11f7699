//! Finds the rule that came closest to matching a connection, and its unmet conditions.

use std::net::IpAddr;

use control::Object;
use control::model::{
    Direction, Namespaces, Peer, Pod, PolicyRule, PortSpec, Requirement, Selector,
};

use super::labels::Cluster;
use crate::input::Manifests;
use crate::probe::Protocol;

/// The other end of a connection, from the pod whose rules are compared with it.
#[derive(Clone, Copy)]
pub(super) struct Other<'a> {
    /// The pod, if the end is one.
    pub(super) pod: Option<&'a Pod>,
    pub(super) address: IpAddr,
    pub(super) protocol: Protocol,
    /// The port at the pod that receives the connection.
    pub(super) port: Option<u16>,
    /// That pod.
    pub(super) target: Option<&'a Pod>,
}

/// The rules of the named NetworkPolicies.
pub(super) fn rules<'a>(
    objects: &'a [Object],
    selecting: &'a [String],
    direction: Direction,
) -> impl Iterator<Item = &'a PolicyRule> {
    let policies = objects.iter().filter_map(|object| match object {
        Object::NetworkPolicy(policy) => Some(policy),
        _ => None,
    });
    let policies = policies.filter(|policy| {
        let name = format!("NetworkPolicy {}", policy.key);
        selecting.contains(&name)
    });
    policies.flat_map(move |policy| policy.direction(direction).iter().flatten())
}

/// Returns the rule that came closest, with its unmet conditions; `None` if no policy has a rule.
pub(super) fn closest(
    manifests: &Manifests,
    selecting: &[String],
    direction: Direction,
    other: &Other<'_>,
) -> Option<String> {
    let cluster = Cluster::new(&manifests.objects);
    let gaps = rules(&manifests.objects, selecting, direction).map(|rule| {
        let (mut lacking, mut words) = (0, Vec::new());
        for gap in [peer_gap(&cluster, rule, other), port_gap(rule, other)] {
            let Some((weight, text)) = gap else { continue };
            lacking += weight;
            words.push(text);
        }
        (lacking, format!("{} {}", rule.origin, words.join(", and ")))
    });
    gaps.min_by_key(|(lacking, _)| *lacking).map(|(_, words)| words)
}

/// Weight and words of a rule's unmet conditions.
type Gap = Option<(usize, String)>;

fn peer_gap(cluster: &Cluster<'_>, rule: &PolicyRule, other: &Other<'_>) -> Gap {
    let peers = rule.peers.as_ref()?;
    let gaps: Vec<Gap> = peers.iter().map(|peer| gap_of(cluster, peer, other)).collect();
    if gaps.iter().any(Option::is_none) {
        return None;
    }
    gaps.into_iter().flatten().min_by_key(|(weight, _)| *weight)
}

fn gap_of(cluster: &Cluster<'_>, peer: &Peer, other: &Other<'_>) -> Gap {
    let name = || other.pod.map_or_else(|| other.address.to_string(), |pod| pod.key.to_string());
    match (peer, other.pod) {
        (Peer::Block(net, except), pod) => {
            let addresses = pod.map_or(vec![other.address], |pod| pod.addresses.to_vec());
            let inside = addresses.iter().find(|it| net.contains(*it));
            match inside {
                None => {
                    let shown = addresses.first().unwrap_or(&other.address);
                    Some((6, format!("wants {net}; {} has {shown}", name())))
                }
                Some(address) => {
                    let left_out = except.iter().find(|it| it.contains(address))?;
                    Some((3, format!("leaves out {left_out}; {} has {address}", name())))
                }
            }
        }
        (Peer::Pods { namespaces, pods }, Some(pod)) => {
            let (mut wants, mut has) = (Vec::new(), Vec::new());
            match namespaces {
                Namespaces::Own(own) if *own != pod.key.namespace => {
                    wants.push(format!("namespace {own}"));
                    has.push(format!("{} is in {}", pod.key, pod.key.namespace));
                }
                Namespaces::Own(_) => {}
                Namespaces::Selected(selector) => {
                    let labels = cluster.namespace(&pod.key.namespace);
                    for requirement in unmet(selector, |key| labels.and_then(|it| it.value(key))) {
                        wants.push(format!("a namespace with {requirement}"));
                        let value = labels.and_then(|it| it.value(&requirement.key));
                        let verb = format!("namespace {} has", pod.key.namespace);
                        has.push(value_in_words(&requirement.key, value, &verb));
                    }
                }
            }
            for requirement in unmet(pods, |key| pod.labels.value(key)) {
                wants.push(requirement.to_string());
                let value = pod.labels.value(&requirement.key);
                has.push(value_in_words(&requirement.key, value, &format!("{} has", pod.key)));
            }
            if wants.is_empty() {
                return None;
            }
            let text = format!("wants {}; {}", wants.join(" and "), has.join(" and "));
            Some((2 * wants.len(), text))
        }
        (Peer::Pods { .. }, None) => Some((6, format!("wants pods; {} is none", name()))),
        (Peer::Nodes(_), _) => Some((6, format!("wants nodes; {} is none", name()))),
        (Peer::Name(pattern), _) => {
            Some((6, format!("wants {pattern}, as DNS answers the pod; {} is an address", name())))
        }
        (Peer::ApiServer, _) => Some((6, format!("wants the API server; {} is not it", name()))),
    }
}

fn unmet<'a>(
    selector: &'a Selector,
    value: impl Fn(&str) -> Option<&'a str> + 'a,
) -> impl Iterator<Item = &'a Requirement> {
    selector.requirements().iter().filter(move |it| {
        let own = value(&it.key).map(|value| (&*it.key, value));
        let alone: Selector = [(*it).clone()].into_iter().collect();
        !alone.matches(&own.into_iter().collect())
    })
}

fn value_in_words(key: &str, value: Option<&str>, verb: &str) -> String {
    match value {
        Some(value) => format!("{verb} {key}={value}"),
        None => format!("{verb} no label {key}"),
    }
}

fn port_gap(rule: &PolicyRule, other: &Other<'_>) -> Gap {
    let ports = rule.ports.as_ref()?;
    let Some(protocol) = other.protocol.with_ports() else {
        return Some((1, "is about ports, which ICMP has not".into()));
    };
    let number = |name: &str| other.target.and_then(|pod| pod.named_port(name, protocol));
    // Without a known port only the protocol is compared.
    let matches = ports.iter().filter(|it| it.protocol == protocol).any(|it| match &it.port {
        PortSpec::All => true,
        PortSpec::Range(range) => {
            other.port.is_none_or(|port| range.first <= port && port <= range.last)
        }
        PortSpec::Name(name) => {
            number(name).is_some_and(|it| other.port.is_none_or(|port| port == it))
        }
    });
    if matches {
        return None;
    }
    let words = ports.iter().map(|it| match &it.port {
        PortSpec::All => it.protocol.to_string(),
        PortSpec::Range(range) if range.first == range.last => {
            format!("{} {}", it.protocol, range.first)
        }
        PortSpec::Range(range) => format!("{} {}-{}", it.protocol, range.first, range.last),
        PortSpec::Name(name) => match other.target {
            Some(pod) if number(name).is_none() => {
                format!("{} {name} (no port of {})", it.protocol, pod.key)
            }
            _ => format!("{} {name}", it.protocol),
        },
    });
    let words: Vec<String> = words.collect();
    let asked = other.port.map_or_else(String::new, |port| format!(" {port}"));
    let text = format!("is about {}, not {protocol}{asked}", words.join(", "));
    Some((1, text))
}
