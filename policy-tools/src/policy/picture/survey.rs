//! Finds the nodes and edges of a picture.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use acl::Table;
use control::PodKey;
use ipnet::IpNet;

use super::{Edge, Node, NodeKind, Picture, Ports};
use crate::input::Manifests;
use crate::policy::flows::{Flow, Party};
use crate::policy::matrix::{self, Matrix};
use crate::probe::Protocol;
use crate::probe::complete::complete;

/// The node of addresses that no policy names.
pub const INTERNET: &str = "internet";

/// Choice of what a picture shows.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Only this protocol.
    pub protocol: Option<Protocol>,
    /// Only this port.
    pub port: Option<u16>,
    /// Connections that were observed; of these the denied ones are drawn.
    pub observed: Vec<Flow>,
    /// Whether the internet is drawn also where nothing leads to it.
    pub with_internet: bool,
}

/// One end of connections.
struct End {
    node: Node,
    /// Addresses that policies may treat differently, with the pod that has each.
    addresses: Vec<(IpAddr, Option<PodKey>)>,
}

/// Draws what the policies of these manifests allow.
///
/// # Errors
/// When there are more pods than addresses or ports for them.
pub fn picture(mut manifests: Manifests, options: &Options) -> Result<Picture, String> {
    complete(&mut manifests, [])?;
    let survey = Survey::new(Matrix::new(manifests.control().view())?, &manifests);
    let ends = survey.ends(&manifests);
    let mut picture =
        Picture { nodes: ends.iter().map(|end| end.node.clone()).collect(), edges: Vec::new() };
    let allowed = survey.allowed(&ends, options);
    let allowed = summarize(&mut picture.nodes, allowed);
    picture.add_edges(allowed, false);
    let denied = options.observed.iter().filter(|flow| flow.denied);
    let denied: Vec<_> = denied
        .filter_map(|flow| {
            let from = node_of(&mut picture.nodes, &survey.nets, &flow.from);
            let to = node_of(&mut picture.nodes, &survey.nets, &flow.to);
            let (first, last) = flow.port.map_or(super::ALL, |port| (port, port));
            (from != to).then_some((from, to, (flow.protocol, first, last)))
        })
        .collect();
    picture.add_edges(denied, true);
    picture.leave_out_idle(options.with_internet);
    Ok(picture)
}

type Range = (Protocol, u16, u16);

/// Tables and identity of an address: addresses with equal ones are decided about alike.
type Class = ([Option<*const Table>; 2], acl::Identity, Vec<bool>);

struct Survey {
    matrix: Matrix,
    nets: Vec<IpNet>,
    outside: BTreeMap<IpAddr, String>,
}

impl Survey {
    fn new(matrix: Matrix, manifests: &Manifests) -> Self {
        let nets = matrix::networks(&manifests.objects).into_iter().collect();
        let pods = matrix.view().pods.values();
        let v4 = pods.clone().next().is_none_or(|pod| pod.addresses.iter().any(IpAddr::is_ipv4));
        let outside = matrix::outside(&manifests.objects, v4);
        Self { matrix, nets, outside }
    }

    fn class(&self, address: IpAddr, pod: Option<&PodKey>) -> Class {
        let view = self.matrix.view();
        let tables = pod.map_or([None, None], |pod| matrix::tables(view, pod));
        let tables = tables.each_ref().map(|table| table.as_ref().map(Arc::as_ptr));
        let identity = view.addresses.lookup(address.into());
        (tables, identity, self.nets.iter().map(|net| net.contains(&address)).collect())
    }

    fn ends(&self, manifests: &Manifests) -> Vec<End> {
        let view = self.matrix.view();
        let mut ends: BTreeMap<(String, String), End> = BTreeMap::new();
        let mut classes = BTreeSet::new();
        for (address, name) in &self.outside {
            let node = Node { name: name.clone(), group: String::new(), kind: NodeKind::Outside };
            let end = End { node, addresses: Vec::new() };
            let end = ends.entry((String::new(), name.clone())).or_insert(end);
            end.addresses.push((*address, None));
        }
        for (key, pod) in view.pods.iter() {
            let Some(address) = pod.addresses.first() else { continue };
            let workload = manifests.workload(key);
            let name = workload.split_once('/').map_or(&*workload, |(_, name)| name).to_owned();
            let is_open = matrix::tables(view, key)[1].is_none();
            let group = key.namespace.to_string();
            let end = ends.entry((group.clone(), name.clone())).or_insert_with(|| End {
                node: Node { name, group, kind: NodeKind::Workload { pods: 0, is_open: false } },
                addresses: Vec::new(),
            });
            if let NodeKind::Workload { pods, is_open: any_open } = &mut end.node.kind {
                *pods += 1;
                *any_open |= is_open;
            }
            if classes.insert((workload, self.class(*address, Some(key)))) {
                end.addresses.push((*address, Some(key.clone())));
            }
        }
        ends.into_values().collect()
    }

    /// The ranges of ports that policies allow, of each pair of ends that a policy is about.
    fn allowed(&self, ends: &[End], options: &Options) -> Vec<(usize, usize, Range)> {
        let mut known: HashMap<(Class, Class), BTreeSet<Range>> = HashMap::new();
        let mut found = Vec::new();
        for (from, source) in ends.iter().enumerate() {
            for (to, target) in ends.iter().enumerate().filter(|(to, _)| *to != from) {
                let mut ranges = BTreeSet::new();
                for (a, sender) in &source.addresses {
                    for (b, receiver) in &target.addresses {
                        let is_pair = a.is_ipv4() == b.is_ipv4();
                        if !is_pair || sender.is_none() && receiver.is_none() {
                            continue;
                        }
                        let classes =
                            (self.class(*a, sender.as_ref()), self.class(*b, receiver.as_ref()));
                        let of_pair = known.entry(classes).or_insert_with(|| {
                            self.ranges((*a, sender.as_ref()), (*b, receiver.as_ref()), options)
                        });
                        ranges.extend(of_pair.iter().copied());
                    }
                }
                found.extend(ranges.into_iter().map(|range| (from, to, range)));
            }
        }
        found
    }

    fn ranges(
        &self,
        (from, sender): (IpAddr, Option<&PodKey>),
        (to, receiver): (IpAddr, Option<&PodKey>),
        options: &Options,
    ) -> BTreeSet<Range> {
        let tables = |pod: Option<&PodKey>, n: usize| {
            pod.and_then(|pod| matrix::tables(self.matrix.view(), pod)[n].clone())
        };
        let tables: Vec<_> = tables(sender, 0).into_iter().chain(tables(receiver, 1)).collect();
        let mut found = BTreeSet::new();
        if tables.is_empty() {
            return found;
        }
        let protocols = Protocol::ALL.into_iter();
        for protocol in protocols.filter(|it| options.protocol.is_none_or(|wanted| wanted == *it)) {
            let mut last_one: Option<Range> = None;
            let firsts: Vec<u16> = match options.port {
                Some(port) => vec![port],
                None => matrix::port_ranges(&tables, protocol).into_iter().collect(),
            };
            for (n, first) in firsts.iter().enumerate() {
                let next = firsts.get(n + 1).map_or(u16::MAX, |next| next - 1);
                let last = options.port.unwrap_or(next);
                if !self.matrix.decide(from, to, protocol, *first).permits {
                    continue;
                }
                match &mut last_one {
                    Some((_, _, end)) if *end + 1 == *first => *end = last,
                    other => found.extend(other.replace((protocol, *first, last))),
                }
            }
            found.extend(last_one);
        }
        found
    }
}

/// Makes one source of all workloads of a namespace or of the cluster, one target of all workloads
/// of a namespace, and one end of everything outside.
fn summarize(
    nodes: &mut Vec<Node>,
    edges: Vec<(usize, usize, Range)>,
) -> Vec<(usize, usize, Range)> {
    let mut spaces: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    for (n, node) in nodes.iter().enumerate().filter(|(_, node)| !node.group.is_empty()) {
        spaces.entry(node.group.clone()).or_default().insert(n);
    }
    let all: BTreeSet<usize> = spaces.values().flatten().copied().collect();
    let outside = (0..nodes.len()).filter(|n| nodes[*n].kind == NodeKind::Outside);
    let outside: BTreeSet<usize> = outside.collect();
    let mut by_target: BTreeMap<(usize, Range), BTreeSet<usize>> = BTreeMap::new();
    for (from, to, range) in edges {
        by_target.entry((to, range)).or_default().insert(from);
    }
    let mut by_source: BTreeMap<(usize, Range), BTreeSet<usize>> = BTreeMap::new();
    for ((to, range), mut froms) in by_target {
        let mut whole = Vec::new();
        let is_all = |of: &BTreeSet<usize>, froms: &BTreeSet<usize>| {
            of.iter().filter(|it| **it != to).count() > 1
                && of.iter().all(|it| *it == to || froms.contains(it))
        };
        if spaces.len() > 1 && is_all(&all, &froms) {
            froms.retain(|it| !all.contains(it));
            whole.push((super::EVERYWHERE.to_owned(), "*", NodeKind::WholeCluster));
        }
        for (space, of) in &spaces {
            if is_all(of, &froms) {
                froms.retain(|it| !of.contains(it));
                whole.push((space.clone(), "*", NodeKind::WholeNamespace));
            }
        }
        most_of_outside(nodes, &outside, &mut froms);
        for (group, name, kind) in whole {
            froms.insert(place(nodes, Node { name: name.into(), group, kind }));
        }
        for from in froms {
            by_source.entry((from, range)).or_default().insert(to);
        }
    }
    let mut found = Vec::new();
    for ((from, range), mut tos) in by_source {
        most_of_outside(nodes, &outside, &mut tos);
        for (space, of) in &spaces {
            let others: Vec<&usize> = of.iter().filter(|it| **it != from).collect();
            if others.len() > 1 && others.iter().all(|it| tos.contains(it)) {
                tos.retain(|it| !of.contains(it));
                let node =
                    Node { name: "*".into(), group: space.clone(), kind: NodeKind::WholeNamespace };
                tos.insert(place(nodes, node));
            }
        }
        found.extend(tos.into_iter().map(|to| (from, to, range)));
    }
    found
}

/// Makes one end of the internet with most of the networks outside.
fn most_of_outside(nodes: &mut Vec<Node>, outside: &BTreeSet<usize>, ends: &mut BTreeSet<usize>) {
    const MOST_LEFT_OUT: usize = 3;
    let within = outside.iter().filter(|it| ends.contains(it)).count();
    let has_internet = outside.iter().any(|it| ends.contains(it) && nodes[*it].name == INTERNET);
    let left_out: Vec<&str> =
        outside.iter().filter(|it| !ends.contains(it)).map(|it| &*nodes[*it].name).collect();
    if !has_internet || within < 2 || left_out.len() > MOST_LEFT_OUT {
        return;
    }
    let name = match left_out.is_empty() {
        true => "every address".to_owned(),
        false => format!("every address but {}", left_out.join(", ")),
    };
    ends.retain(|it| !outside.contains(it));
    ends.insert(place(nodes, Node { name, group: String::new(), kind: NodeKind::Outside }));
}

/// The place of a node, which is added where it is new.
fn place(nodes: &mut Vec<Node>, node: Node) -> usize {
    let same = |it: &Node| (&it.name, &it.group) == (&node.name, &node.group);
    nodes.iter().position(same).unwrap_or_else(|| {
        nodes.push(node);
        nodes.len() - 1
    })
}

/// The place of the node that an observed end belongs to.
fn node_of(nodes: &mut Vec<Node>, nets: &[IpNet], party: &Party) -> usize {
    let (name, group, kind) = match party {
        Party::Workload(namespace, name) => {
            let kind = NodeKind::Workload { pods: 0, is_open: false };
            (name.clone(), namespace.clone(), kind)
        }
        Party::Node(name) => (format!("node/{name}"), String::new(), NodeKind::Outside),
        Party::Address(address) => {
            let net = matrix::around(nets, *address);
            let name = net.map_or_else(|| INTERNET.to_owned(), ToString::to_string);
            (name, String::new(), NodeKind::Outside)
        }
    };
    place(nodes, Node { name, group, kind })
}

impl Picture {
    pub(super) fn add_edges(
        &mut self,
        ranges: impl IntoIterator<Item = (usize, usize, Range)>,
        denied: bool,
    ) {
        let mut merged: BTreeMap<(usize, usize), Ports> = BTreeMap::new();
        for (from, to, range) in ranges {
            merged.entry((from, to)).or_default().0.insert(range);
        }
        let edges = merged.into_iter().map(|((from, to), ports)| Edge { from, to, ports, denied });
        self.edges.extend(edges);
    }

    /// Leaves out networks that nothing connects to, and puts nodes in order.
    fn leave_out_idle(&mut self, with_internet: bool) {
        let used: BTreeSet<usize> =
            self.edges.iter().flat_map(|edge| [edge.from, edge.to]).collect();
        let mut order: Vec<usize> = (0..self.nodes.len())
            .filter(|n| {
                let node = &self.nodes[*n];
                node.kind != NodeKind::Outside
                    || used.contains(n)
                    || with_internet && node.name == INTERNET
            })
            .collect();
        order.sort_by(|a, b| {
            let key = |n: &usize| (&self.nodes[*n].group, &self.nodes[*n].name);
            key(a).cmp(&key(b))
        });
        let places: BTreeMap<usize, usize> =
            order.iter().enumerate().map(|(new, old)| (*old, new)).collect();
        self.nodes = order.iter().map(|n| self.nodes[*n].clone()).collect();
        for edge in &mut self.edges {
            (edge.from, edge.to) = (places[&edge.from], places[&edge.to]);
        }
        self.edges.sort_by_key(|edge| (edge.from, edge.to, edge.denied));
    }
}
