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
//! A rule of a policy is one rule here: its peers are one set, and its ports one list of intervals.
//! So a policy costs what it has of both, and not their product.
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

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use acl::{Origin, PolicyRef, PortRange};
use ipnet::IpNet;

use crate::Failsafe;
use crate::PodKey;
use crate::cache::ApiServer;
use crate::intervals::Intervals;
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

    /// The addresses of the objects in their order: policies that exist at the same time are the
    /// same if these are.
    pub(crate) fn identity(&self) -> Vec<usize> {
        let cluster = |it: &ClusterWide| match it {
            ClusterWide::Policy(policy) => Arc::as_ptr(policy).addr(),
            ClusterWide::Firewall(firewall) => Arc::as_ptr(firewall).addr(),
        };
        let admin = self.firewalls.iter().chain(&self.admin).map(cluster);
        let namespaced = self.namespaced.iter().map(|it| Arc::as_ptr(it).addr());
        admin.chain(namespaced).chain(self.baseline.iter().map(cluster)).collect()
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
    /// Protocols and destination ports.
    pub(crate) ports: Intervals,
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
    fn numbers(&mut self, peers: &PeerSet, name: &Arc<str>, protocol: Protocol) -> Vec<u16>;

    /// Notes that the rules depend on the pod itself, and not on the policies alone.
    fn note_own(&mut self) {}
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
    fn numbers(&mut self, _: &PeerSet, _: &Arc<str>, _: Protocol) -> Vec<u16> {
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
        ports: Intervals::of(vec![(protocol.number(), PortRange::one(port))]),
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
    BasicRule { peer: None, ports: Intervals::all(), verdict, is_default: true, origin }
}

/// Maximum of rules, one for each interval of ports, that a pod may have in one direction where a
/// tier passes. Each rule that passes repeats those behind it, so a few policies could produce any
/// number.
const MOST_RULES: usize = 1 << 17;

/// Combines a tier with the next one, which has no `Pass` and decides everything.
fn chain(tier: Vec<BasicRule>, next: &[BasicRule]) -> Vec<BasicRule> {
    let mut rules: Vec<BasicRule> = Vec::with_capacity(tier.len() + next.len());
    let mut count: usize = next.iter().map(|rule| rule.ports.len()).sum();
    for rule in tier {
        let known = rules.len();
        match rule.verdict {
            RuleAction::Pass => rules.extend(next.iter().filter_map(|next| narrow(next, &rule))),
            RuleAction::Accept | RuleAction::Deny => rules.push(rule),
        }
        count += rules[known..].iter().map(|rule| rule.ports.len()).sum::<usize>();
        if count > MOST_RULES {
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
    let ports = rule.ports.and(&to.ports);
    (!ports.is_empty()).then(|| BasicRule {
        peer,
        ports,
        verdict: rule.verdict,
        is_default: rule.is_default,
        origin: rule.origin.clone(),
    })
}

/// Expands a rule at this pod: one basic rule for all its peers and ports. A rule about nodes has
/// another one for nodes with faults before it, and a port name of the peers one for each number
/// behind it.
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
    let host = |address: &IpAddr| PeerSet::Block(IpNet::from(*address), Vec::new());
    let key = pod.map(|pod| &pod.key);
    let peer = rule.peers.as_ref().map(|peers| {
        let mut sets = Vec::with_capacity(peers.len());
        for peer in peers {
            match peer {
                Peer::ApiServer => sets.extend(api_server.iter().map(host)),
                peer => {
                    if matches!(peer, Peer::Name(_)) {
                        names.note_own();
                    }
                    sets.push(PeerSet::of(peer, verdict, key));
                }
            }
        }
        PeerSet::any(sets)
    });
    let mut numbers = Vec::new();
    // Names of ports of the peers.
    let mut named: BTreeSet<(&Arc<str>, Protocol)> = BTreeSet::new();
    for port in rule.ports.iter().flatten() {
        match (&port.port, direction) {
            (PortSpec::All, _) => numbers.push((port.protocol.number(), PortRange::ANY)),
            (PortSpec::Range(range), _) => numbers.push((port.protocol.number(), *range)),
            // The pod itself is connected to.
            (PortSpec::Name(name), Direction::Ingress) => {
                names.note_own();
                let own = pod.iter().flat_map(|pod| pod.named_ports(name, port.protocol));
                numbers.extend(own.map(|it| (port.protocol.number(), PortRange::one(it))));
            }
            (PortSpec::Name(name), Direction::Egress) => {
                named.insert((name, port.protocol));
            }
        }
    }
    let ports = match rule.ports {
        None => Intervals::all(),
        Some(_) => Intervals::of(numbers),
    };
    let mut add = |peer: Option<PeerSet>, ports: Intervals, verdict: RuleAction| {
        if !ports.is_empty() {
            let origin = rule.origin.clone();
            into.push(BasicRule { peer, ports, verdict, is_default: false, origin });
        }
    };
    let is_nodes = |peer: &Peer| matches!(peer, Peer::Nodes(_));
    if verdict != RuleAction::Accept && rule.peers.iter().flatten().any(is_nodes) {
        add(Some(PeerSet::FaultyNodes), ports.clone(), RuleAction::Deny);
    }
    add(peer.clone(), ports, verdict);
    let all = peer.clone().unwrap_or_else(|| PeerSet::Pods(PodPeers::all()));
    for (name, protocol) in named {
        for number in names.numbers(&all, name, protocol) {
            let port = NamedPort { name: Arc::clone(name), protocol, number };
            let ports = Intervals::of(vec![(protocol.number(), PortRange::one(number))]);
            if let Some(peer) = PeerSet::with_port(peer.as_ref(), port) {
                add(Some(peer), ports, verdict);
            }
        }
    }
}
