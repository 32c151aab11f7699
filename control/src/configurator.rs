//! Policies become basic rules: one direction of one pod at a time.
//!
//! ```text
//! egress firewalls, each by itself: Deny, or Allow, which is Pass
//!         │
//! Admin cluster policies ── Pass ──┐
//!                                  ├→ NetworkPolicies, default-deny      (if any isolates the pod)
//!                                  └→ Baseline cluster policies ── Pass ─→ default-allow (if none)
//! ```
//!
//! Cluster policies (ClusterNetworkPolicy, AdminNetworkPolicy, BaselineAdminNetworkPolicy) are ordered
//! by priority, then name and kind; NetworkPolicies by namespace and name; rules as they are written. The result is one list in which the first match decides and no `Pass`
//! is left: a rule that passes is replaced by the next tier's rules, narrowed to what it matches.
//! Pods that the same policies select and whose port names mean the same numbers get equal lists.
//!
//! A rule about domain names is about the addresses that DNS gave to this pod: so pods with such rules
//! have lists of their own.
//!
//! A node whose object has faults opens nothing: no permission of `nodes` covers it, and
//! every other rule of `nodes` denies it. Policies with faults come here as [`crate::objects`]
//! reads them, and pods with faults do not come here: they are closed. A denial of `nodes` also covers
//! what the nodes publish of their addresses.

use std::fmt;
use std::sync::Arc;

use acl::{Origin, PolicyRef, PortRange};
use ipnet::IpNet;

use crate::Failsafe;
use crate::PodKey;
use crate::cache::ApiServer;
use crate::model::{
    ClusterEgressFirewall, ClusterHostFirewall, ClusterNetworkPolicy, ClusterRule, Direction,
    NetworkPolicy, Peer, Pod, PolicyRule, PortSpec, Protocol, RuleAction,
};
use crate::peers::{NamedPort, PeerSet, PodPeers};

/// The policies that select a pod, each list in its order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policies {
    /// Egress firewalls, each a tier of its own.
    pub(crate) firewalls: Vec<ClusterWide>,
    /// Policies of tier `Admin`.
    pub(crate) admin: Vec<ClusterWide>,
    /// Policies of the pod's namespace.
    pub(crate) namespaced: Vec<Arc<NetworkPolicy>>,
    /// Policies of tier `Baseline`.
    pub(crate) baseline: Vec<ClusterWide>,
    /// The addresses of the API server.
    pub(crate) api_server: ApiServer,
}

impl Policies {
    /// Whether both are the same objects.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let is_same = |a: &[ClusterWide], b: &[ClusterWide]| {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.is_same(b))
        };
        let namespaced = self.namespaced.iter().zip(&other.namespaced);
        is_same(&self.firewalls, &other.firewalls)
            && is_same(&self.admin, &other.admin)
            && is_same(&self.baseline, &other.baseline)
            && self.namespaced.len() == other.namespaced.len()
            && namespaced.into_iter().all(|(a, b)| Arc::ptr_eq(a, b))
    }

    /// Names those that have rules for `direction`, in their order.
    pub(crate) fn with_rules(&self, direction: Direction) -> Vec<String> {
        let cluster = |list: &[ClusterWide]| -> Vec<String> {
            let list = list.iter().filter(|policy| !policy.direction(direction).is_empty());
            list.map(ToString::to_string).collect()
        };
        let namespaced = self.namespaced.iter();
        let namespaced = namespaced.filter(|it| it.direction(direction).is_some());
        let mut names = cluster(&self.firewalls);
        names.extend(cluster(&self.admin));
        names.extend(namespaced.map(|it| format!("NetworkPolicy {}", it.key)));
        names.extend(cluster(&self.baseline));
        names
    }
}

/// A policy that is in no namespace.
#[derive(Clone, Debug)]
pub(crate) enum ClusterWide {
    Policy(Arc<ClusterNetworkPolicy>),
    Firewall(Arc<ClusterEgressFirewall>),
}

impl ClusterWide {
    /// Its rules for `direction`.
    pub(crate) fn direction(&self, direction: Direction) -> &[ClusterRule] {
        match (self, direction) {
            (Self::Policy(policy), _) => policy.direction(direction),
            (Self::Firewall(firewall), Direction::Egress) => &firewall.egress,
            (Self::Firewall(_), Direction::Ingress) => &[],
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Policy(a), Self::Policy(b)) => Arc::ptr_eq(a, b),
            (Self::Firewall(a), Self::Firewall(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// Its place within its tier.
    pub(crate) fn priority(&self) -> u16 {
        match self {
            Self::Policy(policy) => policy.priority,
            Self::Firewall(_) => 0,
        }
    }
}

impl fmt::Display for ClusterWide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy(policy) => write!(f, "{} {}", policy.kind.name(), policy.name),
            Self::Firewall(firewall) => write!(f, "ClusterEgressFirewall {}", firewall.name),
        }
    }
}

/// A rule about the peers of one pod, for one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BasicRule {
    /// The other end; `None` is any address.
    pub(crate) peer: Option<PeerSet>,
    /// IP protocol number; `None` is all of them.
    pub(crate) protocol: Option<u8>,
    /// Destination ports.
    pub(crate) ports: PortRange,
    /// The verdict.
    pub(crate) verdict: RuleAction,
    /// Whether no policy states it.
    pub(crate) is_default: bool,
    /// The deciding policy and rule.
    pub(crate) origin: Origin,
}

/// Resolves port names to numbers.
pub(crate) trait PortNames {
    /// Every number that pods of `peers` give the port name, sorted.
    fn numbers(&mut self, peers: &PodPeers, name: &Arc<str>, protocol: Protocol) -> Vec<u16>;
}

/// Returns the rules of `pod` for `direction`, the last of which matches everything; `None` if no
/// policy applies.
pub(crate) fn rules(
    pod: &Pod,
    policies: &Policies,
    direction: Direction,
    names: &mut impl PortNames,
) -> Option<Vec<BasicRule>> {
    let mut expand = |rule: &PolicyRule, verdict, into: &mut Vec<BasicRule>| {
        expand(Some(pod), rule, verdict, (direction, &policies.api_server), names, into);
    };
    let mut tier = |policies: &[ClusterWide]| {
        let mut rules = Vec::new();
        for policy in policies {
            for rule in policy.direction(direction) {
                expand(&rule.rule, rule.verdict, &mut rules);
            }
        }
        rules
    };
    let (admin, baseline) = (tier(&policies.admin), tier(&policies.baseline));
    let firewalls: Vec<Vec<BasicRule>> =
        policies.firewalls.chunks(1).map(&mut tier).filter(|rules| !rules.is_empty()).collect();
    let mut isolating = Vec::new();
    let mut namespaced = Vec::new();
    for policy in &policies.namespaced {
        let Some(rules) = policy.direction(direction) else { continue };
        isolating.push(PolicyRef::new(
            "NetworkPolicy",
            Some(&policy.key.namespace),
            &policy.key.name,
        ));
        for rule in rules {
            expand(rule, RuleAction::Accept, &mut namespaced);
        }
    }
    let mut cluster_wide =
        policies.firewalls.iter().chain(&policies.admin).chain(&policies.baseline);
    let rest = match isolating.is_empty() {
        false => {
            let origin = Origin::DefaultDeny(Arc::new(isolating));
            namespaced.push(everything(RuleAction::Deny, origin));
            namespaced
        }
        // A rule about a port name that no pod has yet is no basic rule, but it will be one.
        true if cluster_wide.all(|it| it.direction(direction).is_empty()) => return None,
        true => chain(baseline, &[everything(RuleAction::Accept, Origin::DefaultAllow)]),
    };
    let rest = chain(admin, &rest);
    Some(firewalls.into_iter().rev().fold(rest, |rest, firewall| chain(firewall, &rest)))
}

/// Resolves no port names: those of ingress rules are the pod's own.
struct NoNames;

impl PortNames for NoNames {
    fn numbers(&mut self, _: &PodPeers, _: &Arc<str>, _: Protocol) -> Vec<u16> {
        Vec::new()
    }
}

/// The ingress rules of `pod`; see [`rules`].
pub(crate) fn ingress_rules(pod: &Pod, policies: &Policies) -> Option<Vec<BasicRule>> {
    rules(pod, policies, Direction::Ingress, &mut NoNames)
}

/// The rules of a pod with faults.
pub(crate) fn closed(pod: &PodKey) -> Vec<BasicRule> {
    let fault = format!("Pod {pod} or its namespace has faults");
    vec![everything(RuleAction::Deny, Origin::Closed(Arc::new(fault)))]
}

/// The rules of a host firewall for one direction, the last of which permits everything.
pub(crate) fn host_rules(
    rules: &[ClusterRule],
    direction: Direction,
    api_server: &ApiServer,
) -> Vec<BasicRule> {
    let mut all = Vec::new();
    for ClusterRule { rule, verdict } in rules {
        expand(None, rule, *verdict, (direction, api_server), &mut NoNames, &mut all);
    }
    all.push(everything(RuleAction::Accept, Origin::DefaultAllow));
    all
}

/// The rules of host firewalls together, each of which must permit; `None` without one. Failsafe ports stay open
/// as their objects say.
pub(crate) fn all_host_rules(
    firewalls: &[Arc<ClusterHostFirewall>],
    direction: Direction,
    api_server: &ApiServer,
) -> Option<Vec<BasicRule>> {
    let tier = |firewall: &Arc<ClusterHostFirewall>| {
        let mut tier = Vec::new();
        for ClusterRule { rule, verdict } in firewall.direction(direction) {
            let verdict =
                if *verdict == RuleAction::Deny { RuleAction::Deny } else { RuleAction::Pass };
            expand(None, rule, verdict, (direction, api_server), &mut NoNames, &mut tier);
        }
        tier
    };
    let chained = |failsafe: bool, rest: Vec<BasicRule>| {
        let firewalls = firewalls.iter().filter(|it| it.failsafe == failsafe).rev();
        firewalls.fold(rest, |rest, firewall| chain(tier(firewall), &rest))
    };
    let kept = chained(true, vec![everything(RuleAction::Accept, "default-allow".into())]);
    let open = Failsafe::default().ports(direction).map(|(protocol, port)| BasicRule {
        protocol: Some(protocol.number()),
        ports: PortRange::one(port),
        ..everything(RuleAction::Accept, "failsafe ports".into())
    });
    let rules = open.chain(kept).collect();
    (!firewalls.is_empty()).then(|| chained(false, rules))
}

/// The rules of these egress firewalls for clients outside, the last of which permits everything;
/// `None` without a firewall.
pub(crate) fn outside_rules<'a>(
    firewalls: impl Iterator<Item = &'a ClusterEgressFirewall>,
    api_server: &ApiServer,
) -> Option<Vec<BasicRule>> {
    let tiers: Vec<Vec<BasicRule>> = firewalls
        .map(|firewall| {
            let mut tier = Vec::new();
            for ClusterRule { rule, verdict } in &firewall.egress {
                let at = (Direction::Egress, api_server);
                expand(None, rule, *verdict, at, &mut NoNames, &mut tier);
            }
            tier
        })
        .collect();
    let rest = vec![everything(RuleAction::Accept, Origin::DefaultAllow)];
    let chained = |tiers: Vec<Vec<BasicRule>>| {
        tiers.into_iter().rev().fold(rest, |rest, firewall| chain(firewall, &rest))
    };
    (!tiers.is_empty()).then(|| chained(tiers))
}

fn everything(verdict: RuleAction, origin: Origin) -> BasicRule {
    let ports = PortRange::ANY;
    BasicRule { peer: None, protocol: None, ports, verdict, is_default: true, origin }
}

/// Maximum of rules a pod may have in one direction. Each rule that passes repeats those behind it,
/// so a few policies could produce any number.
const MOST_RULES: usize = 1 << 16;

/// Combines a tier with the next one, which has no `Pass` and decides everything.
fn chain(tier: Vec<BasicRule>, next: &[BasicRule]) -> Vec<BasicRule> {
    let mut rules = Vec::with_capacity(tier.len() + next.len());
    for rule in tier {
        match rule.verdict {
            RuleAction::Pass => rules.extend(next.iter().filter_map(|next| narrow(next, &rule))),
            RuleAction::Accept | RuleAction::Deny => rules.push(rule),
        }
        if rules.len() + next.len() > MOST_RULES {
            let fault = format!("more than {MOST_RULES} rules for one pod");
            return vec![everything(RuleAction::Deny, Origin::Closed(Arc::new(fault)))];
        }
    }
    rules.extend_from_slice(next);
    rules
}

/// Narrows `rule` to the connections that `to` matches.
fn narrow(rule: &BasicRule, to: &BasicRule) -> Option<BasicRule> {
    let peer = match (&rule.peer, &to.peer) {
        (None, peer) | (peer, None) => peer.clone(),
        (Some(a), Some(b)) => Some(a.and(b)?),
    };
    let protocol = match (rule.protocol, to.protocol) {
        (Some(a), Some(b)) if a != b => return None,
        (a, b) => a.or(b),
    };
    let ports = PortRange {
        first: rule.ports.first.max(to.ports.first),
        last: rule.ports.last.min(to.ports.last),
    };
    (ports.first <= ports.last).then(|| BasicRule {
        peer,
        protocol,
        ports,
        verdict: rule.verdict,
        is_default: rule.is_default,
        origin: rule.origin.clone(),
    })
}

/// Expands a rule to basic rules, at this pod.
fn expand(
    pod: Option<&Pod>,
    rule: &PolicyRule,
    verdict: RuleAction,
    (direction, api_server): (Direction, &ApiServer),
    names: &mut impl PortNames,
    into: &mut Vec<BasicRule>,
) {
    // What a permission opens stands in the endpoints; a denial is about the machine.
    let api_server = match verdict {
        RuleAction::Deny => &api_server.hosts,
        RuleAction::Accept | RuleAction::Pass => &api_server.endpoints,
    };
    let hosts: Vec<Peer> =
        api_server.iter().map(|it| Peer::Block(IpNet::from(*it), Vec::new())).collect();
    let mut ends: Vec<Option<&Peer>> = Vec::new();
    match &rule.peers {
        None => ends.push(None),
        Some(listed) => {
            for peer in listed {
                match peer {
                    Peer::ApiServer => ends.extend(hosts.iter().map(Some)),
                    peer => ends.push(Some(peer)),
                }
            }
        }
    }
    for end in ends {
        let mut add = |peer: Option<PeerSet>, protocol: Option<u8>, ports: PortRange| {
            let origin = rule.origin.clone();
            let made = BasicRule { peer, protocol, ports, verdict, is_default: false, origin };
            if matches!(end, Some(Peer::Nodes(_))) && verdict != RuleAction::Accept {
                let peer = Some(PeerSet::FaultyNodes);
                into.push(BasicRule { peer, verdict: RuleAction::Deny, ..made.clone() });
            }
            into.push(made);
        };
        let peer = end.map(|end| PeerSet::of(end, verdict, pod.map(|pod| &pod.key)));
        let Some(ports) = &rule.ports else {
            add(peer, None, PortRange::ANY);
            continue;
        };
        for port in ports {
            let protocol = Some(port.protocol.number());
            match (&port.port, direction) {
                (PortSpec::All, _) => add(peer.clone(), protocol, PortRange::ANY),
                (PortSpec::Range(range), _) => add(peer.clone(), protocol, *range),
                // The pod itself is connected to.
                (PortSpec::Name(name), Direction::Ingress) => {
                    for number in pod.iter().flat_map(|pod| pod.named_ports(name, port.protocol)) {
                        add(peer.clone(), protocol, PortRange::one(number));
                    }
                }
                (PortSpec::Name(name), Direction::Egress) => {
                    let Some(pods) = PodPeers::of(end) else { continue };
                    for number in names.numbers(&pods, name, port.protocol) {
                        let port =
                            NamedPort { name: Arc::clone(name), protocol: port.protocol, number };
                        let set = PodPeers { port: Some(port), ..pods.clone() };
                        add(Some(PeerSet::Pods(set)), protocol, PortRange::one(number));
                    }
                }
            }
        }
    }
}
