//! The session rule renderer: ACLs as rules for an L4 stack.
//!
//! Tables decide by the first match, a session stack by the most specific one. So an ACL's ordered
//! rules are evaluated for every network that any of them names, exceptions included: which ports
//! does the list allow for an address in this network and in none inside it? A network whose answer
//! equals that of the network around it needs no rule. The resulting port ranges are disjoint, so
//! specificity of ports never decides.
//!
//! | ACL | scope | local | remote |
//! |---|---|---|---|
//! | `from_pod` | local, the pod | any | destination and port |
//! | `to_pod` | global | the pod's address, destination port | source |

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use acl::{Action, End, Origin, PeerSetId, PortRange, Rule};
use ahash::RandomState;
use ipnet::IpNet;
use session_rules as session;

use crate::membership::Nets;
use crate::{Control, Failsafe, HostSockets, PodAcl, PodKey, PodView};

/// Verdicts and deciding policies by port; disjoint, sorted and without gaps.
type Answers = Vec<(session::Ports, bool, Vec<Origin>)>;

/// A place where a list decides otherwise than it does for the network around.
struct Found {
    transport: session::Transport,
    /// `None`: everywhere.
    net: Option<IpNet>,
    ports: session::Ports,
    allowed: bool,
    /// The deciding policies.
    by: Vec<Origin>,
}

/// Input of session rules: a view, and the members of its peer sets. Taking it is quick;
/// [`SessionRules::of_pods`] may take a while in a large cluster, on any thread.
#[derive(Debug)]
pub struct SessionRules {
    pods: Vec<(PodKey, Arc<PodView>)>,
    host: Vec<(PodKey, HostSockets)>,
    failsafe: Failsafe,
    nets: HashMap<PeerSetId, Nets, RandomState>,
}

impl Control {
    /// The rules that an L4 stack on the node would decide by, for the pods of the
    /// view in force. Their tags name the deciding policies and are not unique:
    /// [`session_rules::changes`] makes tags that are.
    pub fn session_rules(&self) -> Vec<session::Rule> {
        let source = self.session_rule_source(None);
        source.of_pods().map(|(_, rule)| rule).collect()
    }

    /// The input for the rules of one pod, or of all in the view.
    pub fn session_rule_source(&self, pod: Option<&PodKey>) -> SessionRules {
        let view = self.view();
        let wanted = view.pods.iter().filter(|(key, _)| pod.is_none_or(|pod| pod == *key));
        let pods = wanted.map(|(key, pod)| (key.clone(), Arc::clone(pod))).collect();
        let host = view.host_sockets.iter().filter(|(key, _)| pod.is_none_or(|pod| pod == *key));
        let host = host.map(|(key, sockets)| (key.clone(), sockets.clone())).collect();
        let failsafe = self.host_failsafe().clone();
        SessionRules { pods, host, failsafe, nets: self.nets_of_sets() }
    }
}

impl SessionRules {
    /// The rules, with the pod that each is for.
    pub fn of_pods(&self) -> impl Iterator<Item = (&PodKey, session::Rule)> {
        let of_pod = |(key, pod): &(PodKey, Arc<PodView>)| self.of_pod(key, pod);
        let pods = self.pods.iter().flat_map(move |it| of_pod(it).map(move |rule| (&it.0, rule)));
        let host = self.host.iter().flat_map(|(key, it)| {
            self.local(key, &it.opens).into_iter().map(move |rule| (key, rule))
        });
        pods.chain(host)
    }

    /// The rules about what the sockets of pods on the host network accept, with the pod that each is for: a remote network, and
    /// ports at whatever address of the node. Failsafe ports stay open.
    pub fn accepted(&self) -> Vec<(&PodKey, session::Rule)> {
        let mut rules = Vec::new();
        for (key, sockets) in &self.host {
            let PodAcl::Table(table) = &sockets.accepts else { continue };
            for found in acl(table.rules(), &self.nets) {
                let kept = match found.transport {
                    session::Transport::Tcp => &self.failsafe.tcp_in,
                    session::Transport::Udp => &self.failsafe.udp_in,
                };
                let remote = session::End { net: found.net, ports: session::Ports::ANY };
                for ports in without(found.ports, kept) {
                    let local = session::End { net: None, ports };
                    rules.push((key, rule(session::Scope::Global, local, remote, &found)));
                }
            }
        }
        rules
    }

    /// The rules about what a pod opens.
    fn local(&self, key: &PodKey, acl_of_pod: &PodAcl) -> Vec<session::Rule> {
        let PodAcl::Table(table) = acl_of_pod else { return Vec::new() };
        let scope = session::Scope::Local(key.to_string().into());
        let of = |found: Found| {
            let remote = session::End { net: found.net, ports: found.ports };
            rule(scope.clone(), session::End::ANY, remote, &found)
        };
        acl(table.rules(), &self.nets).into_iter().map(of).collect()
    }

    /// The pods and their addresses.
    pub fn pods(&self) -> impl Iterator<Item = (&PodKey, &[IpAddr])> {
        self.pods.iter().map(|(key, pod)| (key, pod.addresses.as_slice()))
    }

    fn of_pod(&self, key: &PodKey, pod: &PodView) -> impl Iterator<Item = session::Rule> + use<> {
        let mut rules = self.local(key, &pod.from_pod);
        if let PodAcl::Table(table) = &pod.to_pod {
            for found in acl(table.rules(), &self.nets) {
                let remote = session::End { net: found.net, ports: session::Ports::ANY };
                for address in &pod.addresses {
                    let own = Some(IpNet::from(*address));
                    let local = session::End { net: own, ports: found.ports };
                    rules.push(rule(session::Scope::Global, local, remote, &found));
                }
            }
        }
        rules.into_iter()
    }
}

/// The parts of a range of ports that lie between these ports.
fn without(ports: session::Ports, kept: &BTreeSet<u16>) -> Vec<session::Ports> {
    let (mut parts, mut first) = (Vec::new(), Some(ports.first));
    for port in kept.range(ports.first..=ports.last) {
        if let (Some(first), Some(last)) = (first, port.checked_sub(1))
            && first <= last
        {
            parts.push(session::Ports { first, last });
        }
        first = port.checked_add(1);
    }
    let rest = first.filter(|first| *first <= ports.last);
    parts.extend(rest.map(|first| session::Ports { first, last: ports.last }));
    parts
}

fn rule(
    scope: session::Scope,
    local: session::End,
    remote: session::End,
    found: &Found,
) -> session::Rule {
    let action = if found.allowed { session::Action::Allow } else { session::Action::Deny };
    let (transport, tag) = (found.transport, Origin::list(&found.by).into());
    session::Rule { scope, transport, local, remote, action, tag }
}

/// Finds networks for which an ordered list decides otherwise than for the network around, with one
/// place for each network and range of ports: at most [`MAX_RULES`]. A list that needs more denies
/// everything.
fn acl(rules: &[Rule], nets: &HashMap<PeerSetId, Nets, RandomState>) -> Vec<Found> {
    places(rules, nets).unwrap_or_else(|| {
        let fault = format!("more than {MAX_RULES} session rules for one pod");
        let by = vec![Origin::Closed(Arc::new(fault))];
        let deny = |transport| Found {
            transport,
            net: None,
            ports: session::Ports::ANY,
            allowed: false,
            by: by.clone(),
        };
        [session::Transport::Tcp, session::Transport::Udp].map(deny).into()
    })
}

fn places(rules: &[Rule], nets: &HashMap<PeerSetId, Nets, RandomState>) -> Option<Vec<Found>> {
    let ends: Vec<End> = rules.iter().map(peer).collect();
    let mut members: BTreeMap<IpNet, BTreeSet<PeerSetId>> = BTreeMap::new();
    let sets: BTreeSet<PeerSetId> = ends
        .iter()
        .filter_map(|end| match end {
            End::Set(set) => Some(*set),
            End::Any => None,
        })
        .collect();
    let blocks = |set: &PeerSetId| nets.get(set).map_or(&[][..], Vec::as_slice);
    for (net, except) in sets.iter().flat_map(blocks) {
        members.entry(*net).or_default();
        for except in except {
            members.entry(*except).or_default();
        }
    }
    fill(&mut members, &sets, blocks);
    let mut found = Vec::new();
    for (transport, protocol) in [(session::Transport::Tcp, 6), (session::Transport::Udp, 17)] {
        let mut kinds = Kinds::new(rules, protocol);
        let everywhere = kinds.number(&BTreeSet::new());
        let place = |net, (ports, allowed, by): &(session::Ports, bool, Vec<Origin>)| Found {
            transport,
            net,
            ports: *ports,
            allowed: *allowed,
            by: by.clone(),
        };
        found.extend(kinds.answers[everywhere].iter().map(|it| place(None, it)));
        // Outer networks come before those inside them.
        let mut around: Vec<(IpNet, usize)> = Vec::new();
        for (net, inside) in &members {
            while around.last().is_some_and(|(outer, _)| !outer.contains(net)) {
                around.pop();
            }
            let outer = around.last().map_or(everywhere, |(_, kind)| *kind);
            let own = kinds.number(inside);
            let parts = kinds.difference(own, outer);
            if found.len() + parts.len() > MAX_RULES {
                return None;
            }
            found.extend(parts.iter().map(|it| place(Some(*net), it)));
            around.push((*net, own));
        }
    }
    Some(found)
}

/// Deciding rules that the tag of a session rule names.
const MAX_NAMED: usize = 8;
/// Places of one list.
const MAX_RULES: usize = 1 << 15;

/// Answers of a list, by the sets that an address is in: each is worked out once, however many
/// networks have it.
struct Kinds<'a> {
    rules: &'a [Rule],
    protocol: u8,
    numbers: BTreeMap<BTreeSet<PeerSetId>, usize>,
    answers: Vec<Answers>,
    differences: HashMap<(usize, usize), Arc<Answers>, RandomState>,
}

impl<'a> Kinds<'a> {
    fn new(rules: &'a [Rule], protocol: u8) -> Self {
        let (numbers, answers) = (BTreeMap::new(), Vec::new());
        Self { rules, protocol, numbers, answers, differences: HashMap::default() }
    }

    /// The number of the answers for addresses in these sets.
    fn number(&mut self, inside: &BTreeSet<PeerSetId>) -> usize {
        if let Some(number) = self.numbers.get(inside) {
            return *number;
        }
        self.answers.push(answers(self.rules, self.protocol, |end| match end {
            End::Any => true,
            End::Set(set) => inside.contains(set),
        }));
        self.numbers.insert(inside.clone(), self.answers.len() - 1);
        self.answers.len() - 1
    }

    /// The parts of some answers that are not so in those around.
    fn difference(&mut self, own: usize, outer: usize) -> Arc<Answers> {
        let answers = &self.answers;
        let made = || Arc::new(difference(&answers[own], &answers[outer]));
        Arc::clone(self.differences.entry((own, outer)).or_insert_with(made))
    }
}

fn peer(rule: &Rule) -> End {
    if rule.source == End::Any { rule.destination } else { rule.source }
}

/// Records for every network which sets it lies in.
fn fill<'n>(
    members: &mut BTreeMap<IpNet, BTreeSet<PeerSetId>>,
    sets: &BTreeSet<PeerSetId>,
    blocks: impl Fn(&PeerSetId) -> &'n [(IpNet, Vec<IpNet>)],
) {
    for set in sets {
        for (net, except) in blocks(set) {
            // A single address contains no other network.
            let inside = members.range_mut(net..).take_while(|(inner, _)| {
                net.contains(*inner) || inner.network() <= net.broadcast()
            });
            for (inner, of) in inside {
                if net.contains(inner) && !except.iter().any(|except| except.contains(inner)) {
                    of.insert(*set);
                }
            }
        }
    }
}

/// Evaluates the list for each port; a port that no rule matches is denied.
fn answers(rules: &[Rule], protocol: u8, is_peer: impl Fn(&End) -> bool) -> Answers {
    let matching: Vec<&Rule> = rules
        .iter()
        .filter(|rule| rule.protocol.is_none_or(|it| it == protocol) && is_peer(&peer(rule)))
        .collect();
    // By the ports where they begin and cease to match; the first of those that match decides.
    let mut turns: BTreeMap<u16, Vec<usize>> = BTreeMap::from([(0, Vec::new())]);
    for (index, rule) in matching.iter().enumerate() {
        let PortRange { first, last } = rule.destination_ports;
        let ends = [Some(first), last.checked_add(1)];
        ends.into_iter().flatten().for_each(|at| turns.entry(at).or_default().push(index));
    }
    let mut current = BTreeSet::new();
    let mut answers: Answers = Vec::new();
    let mut turns = turns.into_iter().peekable();
    while let Some((first, turned)) = turns.next() {
        let last = turns.peek().map_or(u16::MAX, |(next, _)| next - 1);
        for index in turned {
            if !current.remove(&index) {
                current.insert(index);
            }
        }
        let deciding = current.first().map(|index| matching[*index]);
        let allowed = deciding.is_some_and(|rule| rule.action == Action::Permit);
        let no_rule = || Origin::DefaultDeny(Arc::default());
        let by = deciding.map_or_else(no_rule, |rule| rule.origin.clone());
        match answers.last_mut() {
            Some((ports, same, policies)) if *same == allowed => {
                ports.last = last;
                if policies.len() < MAX_NAMED && !policies.contains(&by) {
                    policies.push(by);
                }
            }
            _ => answers.push((session::Ports { first, last }, allowed, vec![by])),
        }
    }
    answers
}

/// The parts of `own` that are not so in `outer`: both are sorted and without gaps.
fn difference(own: &Answers, outer: &Answers) -> Answers {
    let mut found = Answers::new();
    let mut others = outer.iter().peekable();
    for (ports, allowed, by) in own {
        while let Some((other, other_allowed, _)) = others.peek() {
            let (first, last) = (ports.first.max(other.first), ports.last.min(other.last));
            if first <= last && allowed != other_allowed {
                found.push((session::Ports { first, last }, *allowed, by.clone()));
            }
            if other.last > ports.last {
                break;
            }
            others.next();
        }
    }
    found
}
