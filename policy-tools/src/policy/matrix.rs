//! Decisions about many pairs of addresses.
//!
//! The decision is that of the graph's policy node, made over a snapshot that has all pods of the
//! cluster behind ports of one switch: both ends of a connection are evaluated together instead
//! of packet by packet. Host firewalls decide about nodes at either end. Services and routes have no
//! part in it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use acl::{Origin, Table};
use control::model::{ClusterRule, Direction, Namespaces, Peer, Pod, PolicyRule, Selector};
use control::{Object, PodAcl, PodKey, View};
use dataplane::wire::Flow;
use dataplane::{Outcome, PortId, Snapshot};
use ipnet::IpNet;
use snapshot::{NodeContext, NodePort, PortRole};

use crate::input::pods;
use crate::probe::Protocol;
use crate::probe::answer::{distinct, drop_default};
use crate::probe::host::{self, HostDecision};

/// The tables of all pods.
pub struct Matrix {
    snapshot: Snapshot,
    view: Arc<View>,
    nodes: HashMap<IpAddr, Arc<str>>,
    /// The node that the pod with an address is on.
    nodes_of_pods: HashMap<IpAddr, Arc<str>>,
}

/// The rules' answer for one connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PairDecision {
    /// True if the connection may be opened.
    pub permits: bool,
    /// Origins of the rules that decide.
    pub by: Vec<Origin>,
}

impl Matrix {
    /// The tables of a view.
    ///
    /// # Errors
    /// Fails if there are more pods than a switch has ports.
    pub fn new(view: Arc<View>) -> Result<Self, String> {
        let port = |(n, (key, pod)): (usize, (&PodKey, &Arc<control::PodView>))| {
            let id = u16::try_from(n).ok().map(PortId).filter(|id| *id != PortId::NONE)?;
            Some(NodePort::new(id, PortRole::Pod(key.clone(), pod.addresses.clone())))
        };
        let ports: Option<Vec<NodePort>> = view.pods.iter().enumerate().map(port).collect();
        let ports = ports.ok_or("there are more pods than a switch has ports")?;
        let generation = view.generation.max(1);
        let snapshot = snapshot::snapshot(&view, "", NodeContext::default(), generation, &ports);
        let named = |addresses: &[IpAddr], name: &Arc<str>| -> Vec<(IpAddr, Arc<str>)> {
            addresses.iter().map(|address| (*address, Arc::clone(name))).collect()
        };
        let nodes = view.nodes.iter().flat_map(|(name, node)| named(&node.addresses, name));
        let pods = view.pods.values().flat_map(|pod| named(&pod.addresses, &pod.node));
        let (nodes, nodes_of_pods) = (nodes.collect(), pods.collect());
        Ok(Self { snapshot, view, nodes, nodes_of_pods })
    }

    /// The view that the tables come from.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Decides about a connection between two addresses of one family.
    pub fn decide(&self, from: IpAddr, to: IpAddr, protocol: Protocol, port: u16) -> PairDecision {
        let flow = Flow {
            source: from.into(),
            destination: to.into(),
            source_port: 0,
            destination_port: if protocol == Protocol::Icmp { 0 } else { port },
            protocol: protocol.number(to.is_ipv6()),
        };
        let [source, target] = [&from, &to].map(|address| self.nodes.get(address));
        if source.is_some() && source == target {
            return PairDecision { permits: true, by: vec![Origin::DefaultAllow] };
        }
        let host = |node: Option<&Arc<str>>, direction| {
            let HostDecision { permits, by, .. } =
                host::decide(&self.view, node?, direction, &flow)?;
            Some(PairDecision { permits, by })
        };
        let by_policies = match source.is_some() && source == self.nodes_of_pods.get(&to) {
            true => {
                PairDecision { permits: true, by: vec![Origin::other(Outcome::OwnNode.name())] }
            }
            false => self.evaluate(&flow),
        };
        let at_ends =
            [host(source, Direction::Egress), Some(by_policies), host(target, Direction::Ingress)];
        let mut by = Vec::new();
        for decision in at_ends.into_iter().flatten() {
            if !decision.permits {
                return decision;
            }
            by.extend(decision.by);
        }
        let mut by = distinct(by.iter());
        drop_default(&mut by);
        if by.is_empty() {
            by.push(Origin::DefaultAllow);
        }
        PairDecision { permits: true, by }
    }

    /// The decision of the policies of pods at both ends.
    fn evaluate(&self, flow: &Flow) -> PairDecision {
        let decision = dataplane::evaluate(&self.snapshot, flow);
        let permits = matches!(decision.outcome, Outcome::PolicyAllowed | Outcome::NoPolicy);
        PairDecision { permits, by: decision.by.origins(&self.snapshot, decision.outcome) }
    }
}

/// The tables of all pods, each once.
pub fn tables_of_pods(view: &View) -> Vec<Arc<Table>> {
    let of_pods = view.pods.keys().flat_map(|pod| tables(view, pod)).flatten();
    let distinct: HashMap<_, _> = of_pods.map(|table| (Arc::as_ptr(&table), table)).collect();
    distinct.into_values().collect()
}

/// Returns the tables of a pod: egress and ingress.
pub fn tables(view: &View, pod: &PodKey) -> [Option<Arc<Table>>; 2] {
    let table = |acl: &PodAcl| match acl {
        PodAcl::Open => None,
        PodAcl::Table(table) => Some(Arc::clone(table)),
    };
    view.pods.get(pod).map_or([None, None], |pod| [table(&pod.from_pod), table(&pod.to_pod)])
}

/// The tables that decide about connections between two ends, each a pod or a node.
pub(crate) fn tables_between(
    view: &View,
    [(from, source), (to, target)]: [(Option<&PodKey>, Option<&Arc<str>>); 2],
) -> Vec<Arc<Table>> {
    let of = |pod: Option<&PodKey>| pod.map(|pod| tables(view, pod)).unwrap_or_default();
    let ([sending, _], [_, receiving]) = (of(from), of(to));
    let at_source = host::tables(view, source.filter(|_| from.is_none()), Direction::Egress);
    let at_target = host::tables(view, target.filter(|_| to.is_none()), Direction::Ingress);
    let of_nodes = at_source.chain(at_target).cloned();
    sending.into_iter().chain(receiving).chain(of_nodes).collect()
}

/// The first port of every range of ports that the rules of these tables and failsafe ports treat
/// alike.
pub(crate) fn port_ranges<'a>(
    tables: impl IntoIterator<Item = &'a Arc<Table>>,
    protocol: Protocol,
) -> BTreeSet<u16> {
    let mut firsts = BTreeSet::from([1]);
    if protocol == Protocol::Icmp {
        return firsts;
    }
    for rule in tables.into_iter().flat_map(|table| table.rules()) {
        if rule.protocol.is_some_and(|number| number != protocol.number(false)) {
            continue;
        }
        let ports = rule.destination_ports;
        firsts.insert(ports.first.max(1));
        firsts.extend(ports.last.checked_add(1));
    }
    let failsafe = Direction::BOTH.map(|it| host::failsafe(it, protocol.number(false)));
    firsts.extend(failsafe.into_iter().flatten().flat_map(|port| [port, port + 1]));
    firsts
}

/// Returns an address of every part into which the networks of these policies split the space of one family, with a
/// name for the part.
pub fn outside<'a>(
    objects: impl IntoIterator<Item = &'a Object>,
    v4: bool,
) -> BTreeMap<IpAddr, String> {
    let mut nets = networks(objects);
    nets.retain(|net| net.addr().is_ipv4() == v4);
    let usual: &[&str] = match v4 {
        true => &["203.0.113.9", "198.51.100.9", "192.0.2.9"],
        false => &["2001:db8:9::9"],
    };
    let mut found = BTreeMap::new();
    let usual: Vec<IpAddr> = usual.iter().filter_map(|text| text.parse().ok()).collect();
    let is_apart = |it: &&IpAddr| around(&nets, **it).is_none();
    if let Some(address) = usual.iter().find(is_apart) {
        found.insert(*address, "internet".to_owned());
    }
    for net in &nets {
        let next = match net.broadcast() {
            IpAddr::V4(last) => u32::from(last).checked_add(1).map(|bits| IpAddr::V4(bits.into())),
            IpAddr::V6(last) => u128::from(last).checked_add(1).map(|bits| IpAddr::V6(bits.into())),
        };
        for address in [Some(net.network()), next].into_iter().flatten() {
            // Address 0 opens nothing; the rest of the space is the internet above.
            if let Some(name) = around(&nets, address) {
                found.insert(address, name.to_string());
            }
        }
    }
    found
}

/// An address that no object has, of the pods' family.
pub fn internet(objects: &[Object], is_taken: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
    let is_v6 = |pod: &Pod| !pod.addresses.is_empty() && pod.addresses.iter().all(IpAddr::is_ipv6);
    let mut outside = outside(objects, !pods(objects).any(is_v6));
    outside.retain(|address, _| !is_taken(*address));
    let generic = outside.iter().find(|(_, name)| *name == "internet");
    generic.or(outside.iter().next_back()).map(|(address, _)| *address)
}

/// The innermost of the networks around an address, without those that are the whole space.
pub fn around<'a>(nets: impl IntoIterator<Item = &'a IpNet>, address: IpAddr) -> Option<&'a IpNet> {
    let around = nets.into_iter().filter(|net| net.prefix_len() > 0 && net.contains(&address));
    around.max_by_key(|net| net.prefix_len())
}

/// Every network that a policy names, exceptions too.
pub fn networks<'a>(objects: impl IntoIterator<Item = &'a Object>) -> BTreeSet<IpNet> {
    let mut nets = BTreeSet::new();
    each_rule(objects, |rule| {
        for peer in rule.peers.iter().flatten() {
            if let Peer::Block(net, except) = peer {
                nets.insert(*net);
                nets.extend(except);
            }
        }
    });
    nets
}

/// A policy of any kind.
pub struct Policy<'a> {
    /// The pods that it selects; `None` where it selects nodes.
    pub subject: Option<(Namespaces, &'a Selector)>,
    /// Its ingress rules.
    pub ingress: Vec<&'a PolicyRule>,
    /// Its egress rules.
    pub egress: Vec<&'a PolicyRule>,
}

/// Visits every policy.
pub(crate) fn each_policy<'a>(
    objects: impl IntoIterator<Item = &'a Object>,
    mut visit: impl FnMut(Policy<'a>),
) {
    fn rules(list: &[ClusterRule]) -> Vec<&PolicyRule> {
        list.iter().map(|it| &it.rule).collect()
    }
    for object in objects {
        match object {
            Object::NetworkPolicy(policy) => {
                let own = Namespaces::Own(Arc::clone(&policy.key.namespace));
                visit(Policy {
                    subject: Some((own, &policy.selector)),
                    ingress: policy.ingress.iter().flatten().collect(),
                    egress: policy.egress.iter().flatten().collect(),
                });
            }
            Object::ClusterNetworkPolicy(policy) => visit(Policy {
                subject: Some((Namespaces::Selected(policy.namespaces.clone()), &policy.pods)),
                ingress: rules(&policy.ingress),
                egress: rules(&policy.egress),
            }),
            Object::ClusterEgressFirewall(policy) => visit(Policy {
                subject: Some((Namespaces::Selected(policy.namespaces.clone()), &policy.pods)),
                ingress: Vec::new(),
                egress: rules(&policy.egress),
            }),
            Object::ClusterHostFirewall(policy) => visit(Policy {
                subject: None,
                ingress: rules(&policy.ingress),
                egress: rules(&policy.egress),
            }),
            _ => {}
        }
    }
}

/// Visits every rule of every policy.
pub(crate) fn each_rule<'a>(
    objects: impl IntoIterator<Item = &'a Object>,
    mut visit: impl FnMut(&'a PolicyRule),
) {
    each_policy(objects, |it| it.ingress.into_iter().chain(it.egress).for_each(&mut visit));
}

/// Visits every rule of every policy, to change it.
pub(crate) fn each_rule_mut(objects: &mut [Object], mut visit: impl FnMut(&mut PolicyRule)) {
    for object in objects {
        match object {
            Object::NetworkPolicy(policy) => {
                let policy = Arc::make_mut(policy);
                let rules = policy.ingress.iter_mut().chain(&mut policy.egress);
                rules.flatten().for_each(&mut visit);
            }
            Object::ClusterNetworkPolicy(policy) => {
                let policy = Arc::make_mut(policy);
                let rules = policy.ingress.iter_mut().chain(&mut policy.egress);
                rules.for_each(|it| visit(&mut it.rule));
            }
            Object::ClusterEgressFirewall(policy) => {
                Arc::make_mut(policy).egress.iter_mut().for_each(|it| visit(&mut it.rule));
            }
            Object::ClusterHostFirewall(policy) => {
                let policy = Arc::make_mut(policy);
                let rules = policy.ingress.iter_mut().chain(&mut policy.egress);
                rules.for_each(|it| visit(&mut it.rule));
            }
            _ => {}
        }
    }
}
