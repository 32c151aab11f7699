//! Policies become basic rules: one direction of one pod at a time.
//!
//! Policies are taken in the order of (namespace, name), their rules in the order they are
//! written. Every rule permits; what nothing permits falls to the `default-deny` at the end,
//! which names the policies that isolate the pod. A rule that repeats an earlier one is left
//! out. Pods that the same policies select and whose port names mean the same numbers get
//! equal rule lists.

use std::collections::HashSet;
use std::sync::Arc;

use acl::{Action, End, PortRange, Rule};

use crate::model::{Direction, NetworkPolicy, Peer, Pod, PolicyRule, PortSpec};
use crate::peers::{NamedPort, PeerSet, PodPeers, set_of};

/// What rules need to know of the peers.
pub(crate) trait Peers {
    /// The number of a peer set.
    fn set(&mut self, set: PeerSet) -> acl::PeerSetId;
    /// Every number that pods of `peers` give the port name, sorted.
    fn numbers(
        &mut self,
        peers: &PodPeers,
        name: &str,
        protocol: crate::model::Protocol,
    ) -> Vec<u16>;
}

/// The rules of `pod` for `direction` out of the policies that select it, which come in
/// order; `None` if none of them is about this direction.
pub(crate) fn rules(
    pod: &Pod,
    policies: &[Arc<NetworkPolicy>],
    direction: Direction,
    peers: &mut impl Peers,
) -> Option<Arc<[Rule]>> {
    let mut isolating = Vec::new();
    let mut list = List::default();
    for policy in policies {
        let Some(rules) = policy.direction(direction) else { continue };
        isolating.push(format!("NetworkPolicy {}", policy.key));
        for rule in rules {
            let origin: Arc<str> =
                format!("NetworkPolicy {} {}[{}]", policy.key, direction.field(), rule.index)
                    .into();
            list.add_rule(pod, rule, direction, &origin, peers);
        }
    }
    if isolating.is_empty() {
        return None;
    }
    list.add(Rule::new(Action::Deny, format!("default-deny of {}", isolating.join(", "))));
    Some(list.rules.into())
}

/// Rules without repetition.
#[derive(Default)]
struct List {
    rules: Vec<Rule>,
    seen: HashSet<Rule>,
}

impl List {
    fn add(&mut self, rule: Rule) {
        let nameless = Rule { origin: "".into(), ..rule.clone() };
        if self.seen.insert(nameless) {
            self.rules.push(rule);
        }
    }

    fn add_rule(
        &mut self,
        pod: &Pod,
        rule: &PolicyRule,
        direction: Direction,
        origin: &Arc<str>,
        peers: &mut impl Peers,
    ) {
        let anybody = [None];
        let ends: Vec<Option<&Peer>> = match &rule.peers {
            None => anybody.to_vec(),
            Some(listed) => listed.iter().map(Some).collect(),
        };
        for peer in ends {
            let Some(ports) = &rule.ports else {
                let end = end(peer, peers);
                self.add(permit(origin, direction, end));
                continue;
            };
            for port in ports {
                let protocol = port.protocol.number();
                let mut add = |end: End, range: PortRange| {
                    let rule = permit(origin, direction, end).protocol(protocol);
                    self.add(rule.destination_ports(range));
                };
                match (&port.port, direction) {
                    (PortSpec::All, _) => add(end(peer, peers), PortRange::ANY),
                    (PortSpec::Range(range), _) => add(end(peer, peers), *range),
                    (PortSpec::Name(name), Direction::Ingress) => {
                        if let Some(number) = pod.named_port(name, port.protocol) {
                            add(end(peer, peers), PortRange::one(number));
                        }
                    }
                    (PortSpec::Name(name), Direction::Egress) => {
                        let pods = PodPeers::of(peer);
                        for number in peers.numbers(&pods, name, port.protocol) {
                            let named = NamedPort {
                                name: Arc::clone(name),
                                protocol: port.protocol,
                                number,
                            };
                            let set = PodPeers { port: Some(named), ..pods.clone() };
                            let end = End::Set(peers.set(PeerSet::Pods(set)));
                            add(end, PortRange::one(number));
                        }
                    }
                }
            }
        }
    }
}

fn end(peer: Option<&Peer>, peers: &mut impl Peers) -> End {
    peer.map_or(End::Any, |peer| End::Set(peers.set(set_of(peer))))
}

fn permit(origin: &Arc<str>, direction: Direction, peer: End) -> Rule {
    let rule = Rule::new(Action::Permit, Arc::clone(origin));
    match direction {
        Direction::Ingress => rule.source(peer),
        Direction::Egress => rule.destination(peer),
    }
}
