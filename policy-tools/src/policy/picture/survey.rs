//! Finds the nodes and edges of a picture.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use acl::{Action, PeerSetId, Rule, Table};
use control::PodKey;
use ipnet::IpNet;

use super::summary::{place, summarize};
use super::{ELSEWHERE, Edge, Node, NodeKind, Picture, Ports, Range};
use crate::input::Manifests;
use crate::policy::flows::{Flow, Party};
use crate::policy::matrix::{self, Matrix};
use crate::policy::representatives::{self, General, Kinds, Selectors};
use crate::probe::Protocol;
use crate::probe::complete::complete;

/// The node of addresses that no policy names.
pub const INTERNET: &str = "internet";

/// Choice of what a picture shows.
#[derive(Clone, Debug, Default)]
pub struct PictureOptions {
    /// Only this protocol.
    pub protocol: Option<Protocol>,
    /// Only this port.
    pub port: Option<u16>,
    /// Connections that were observed; of these the denied ones are drawn.
    pub observed: Vec<Flow>,
    /// True if the internet is drawn even without edges.
    pub with_internet: bool,
    /// True if pods that are in no manifest are drawn too, one for each class that selectors tell apart.
    pub with_possible: bool,
}

/// Draws what the policies of these manifests allow.
///
/// # Errors
/// Fails if there are more pods than addresses or ports for them, or more classes of possible pods than
/// [`representatives::MOST`].
pub fn picture(mut manifests: Manifests, options: &PictureOptions) -> Result<Picture, String> {
    if options.with_possible {
        let selectors = Selectors::of(&manifests.objects);
        representatives::add(&mut manifests, &selectors, &mut Kinds::default())?;
    }
    complete(&mut manifests, [])?;
    let survey = Survey::new(Matrix::new(manifests.control().view())?, &manifests);
    let mut picture = Picture { nodes: survey.nodes.clone(), edges: Vec::new() };
    let allowed = survey.allowed(options);
    let general = General::new(&manifests, &Selectors::of(&manifests.objects));
    let allowed = summarize(&mut picture.nodes, allowed, &general);
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

struct Survey {
    matrix: Matrix,
    nets: Vec<IpNet>,
    nodes: Vec<Node>,
    classes: Vec<Class>,
}

/// Addresses of one family that all tables treat alike.
struct Class {
    /// One of them, and another one if there is one.
    addresses: Vec<IpAddr>,
    sending: Option<Arc<Table>>,
    receiving: Option<Arc<Table>>,
    sets: Vec<PeerSetId>,
    /// The nodes that have such an address.
    nodes: BTreeSet<usize>,
}

impl Survey {
    fn new(matrix: Matrix, manifests: &Manifests) -> Self {
        let nets = matrix::networks(&manifests.objects).into_iter().collect();
        let mut survey = Self { matrix, nets, nodes: Vec::new(), classes: Vec::new() };
        survey.find_classes(manifests);
        survey
    }

    fn find_classes(&mut self, manifests: &Manifests) {
        let view = self.matrix.view();
        let of_pods = view.pods.values();
        let v4 = of_pods.clone().next().is_none_or(|pod| pod.addresses.iter().any(IpAddr::is_ipv4));
        let outside = matrix::outside(&manifests.objects, v4).into_iter().map(|(address, name)| {
            (Node { name, group: String::new(), kind: NodeKind::Outside }, address, None)
        });
        let pods = view.pods.iter().filter_map(|(key, pod)| {
            Some((workload(manifests, key), *pod.addresses.first()?, Some(key)))
        });
        let (mut places, mut classes) = (HashMap::new(), HashMap::new());
        for (node, address, pod) in outside.chain(pods) {
            let [sending, receiving] = pod.map_or([None, None], |pod| matrix::tables(view, pod));
            let key = (node.group.clone(), node.name.clone());
            let nodes = &mut self.nodes;
            let at = *places.entry(key).or_insert_with(|| {
                nodes.push(node);
                nodes.len() - 1
            });
            if let NodeKind::Workload { pods, is_open, reaches_all } = &mut nodes[at].kind {
                *pods += 1;
                *is_open |= receiving.is_none();
                *reaches_all |= sending.is_none();
            }
            let identity = view.addresses.lookup(address.into());
            let pointers = [&sending, &receiving].map(|it| it.as_ref().map(Arc::as_ptr));
            let found = &mut self.classes;
            let at_class = classes.entry((pointers, identity, address.is_ipv4()));
            let class = *at_class.or_insert_with(|| {
                let sets = view.addresses.members(identity).to_vec();
                let (addresses, nodes) = (Vec::new(), BTreeSet::new());
                found.push(Class { addresses, sending, receiving, sets, nodes });
                found.len() - 1
            });
            let class = &mut found[class];
            if class.addresses.len() < 2 {
                class.addresses.push(address);
            }
            class.nodes.insert(at);
        }
    }

    /// The classes that the permissions of a table are about at one end; `None` for all.
    fn partners(
        &self,
        of_sets: &HashMap<PeerSetId, Vec<usize>>,
        table: &Table,
        end: fn(&Rule) -> acl::End,
    ) -> Option<HashSet<usize>> {
        let mut found = HashSet::new();
        for rule in table.rules().iter().filter(|rule| rule.action == Action::Permit) {
            match end(rule) {
                acl::End::Any => return None,
                acl::End::Set(set) => found.extend(of_sets.get(&set).into_iter().flatten()),
            }
        }
        Some(found)
    }

    /// The ranges of ports that policies allow, of each pair of nodes that a policy is about.
    fn allowed(&self, options: &PictureOptions) -> Vec<(usize, usize, Range)> {
        let classes = &self.classes;
        let mut of_sets: HashMap<PeerSetId, Vec<usize>> = HashMap::new();
        for (n, class) in classes.iter().enumerate() {
            class.sets.iter().for_each(|set| of_sets.entry(*set).or_default().push(n));
        }
        let reached = classes.iter().map(|class| {
            let table = class.sending.as_ref()?;
            self.partners(&of_sets, table, |rule| rule.destination)
        });
        let reached: Vec<Option<HashSet<usize>>> = reached.collect();
        let named =
            |table: &Option<Arc<Table>>, end: fn(&Rule) -> acl::End| -> HashSet<PeerSetId> {
                let ends = table.iter().flat_map(|table| table.rules()).map(end);
                ends.filter_map(|end| match end {
                    acl::End::Any => None,
                    acl::End::Set(set) => Some(set),
                })
                .collect()
            };
        let named_by_sending: Vec<_> =
            classes.iter().map(|it| named(&it.sending, |rule| rule.destination)).collect();
        let mut known: HashMap<_, BTreeSet<Range>> = HashMap::new();
        let mut found = Vec::new();
        for (n, target) in classes.iter().enumerate() {
            let table = target.receiving.as_ref();
            let senders = table.and_then(|it| self.partners(&of_sets, it, |rule| rule.source));
            let senders: Vec<usize> = match senders {
                Some(some) => some.into_iter().collect(),
                None => (0..classes.len()).collect(),
            };
            let named_by_target = named(&target.receiving, |rule| rule.source);
            for sender in senders {
                let source = &classes[sender];
                let is_decided = source.sending.is_some() || target.receiving.is_some();
                let is_reached = reached[sender].as_ref().is_none_or(|it| it.contains(&n));
                let is_same_family = source.addresses[0].is_ipv4() == target.addresses[0].is_ipv4();
                if !is_decided || !is_reached || !is_same_family {
                    continue;
                }
                let Some(to) = target.addresses.iter().find(|it| **it != source.addresses[0])
                else {
                    continue;
                };
                let among = |sets: &[PeerSetId], named: &HashSet<PeerSetId>| -> Vec<PeerSetId> {
                    sets.iter().filter(|set| named.contains(set)).copied().collect()
                };
                // What the rules of both tables ask for.
                let pointer = |table: &Option<Arc<Table>>| table.as_ref().map(Arc::as_ptr);
                let key = (
                    (pointer(&source.sending), pointer(&target.receiving), to.is_ipv4()),
                    among(&source.sets, &named_by_target),
                    among(&target.sets, &named_by_sending[sender]),
                );
                let ranges = known.entry(key).or_insert_with(|| {
                    let tables = [&source.sending, &target.receiving].into_iter().flatten();
                    self.ranges(
                        &tables.cloned().collect::<Vec<_>>(),
                        source.addresses[0],
                        *to,
                        options,
                    )
                });
                let is_drawn = |from: usize, to: usize| {
                    let kinds = [from, to].map(|node| self.nodes[node].kind);
                    let is_of_files = |kind: &NodeKind| matches!(kind, NodeKind::Workload { .. });
                    // A policy of the other end lets possible pods in, or lets it out to them.
                    from != to
                        && kinds.iter().any(is_of_files)
                        && (kinds[0] != NodeKind::Possible || target.receiving.is_some())
                        && (kinds[1] != NodeKind::Possible || source.sending.is_some())
                };
                for from in &source.nodes {
                    for to in target.nodes.iter().filter(|to| is_drawn(*from, **to)) {
                        found.extend(ranges.iter().map(|range| (*from, *to, *range)));
                    }
                }
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    fn ranges(
        &self,
        tables: &[Arc<Table>],
        from: IpAddr,
        to: IpAddr,
        options: &PictureOptions,
    ) -> BTreeSet<Range> {
        let mut found = BTreeSet::new();
        let protocols = Protocol::ALL.into_iter();
        for protocol in protocols.filter(|it| options.protocol.is_none_or(|wanted| wanted == *it)) {
            let mut last_one: Option<Range> = None;
            let firsts: Vec<u16> = match options.port {
                Some(port) => vec![port],
                None => matrix::port_ranges(tables, protocol).into_iter().collect(),
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

/// The node of a pod: its workload, or the pods that it stands for.
fn workload(manifests: &Manifests, pod: &PodKey) -> Node {
    let workload = manifests.workload(pod);
    if manifests.representatives.contains_key(pod) {
        let is_elsewhere = manifests.representative_namespaces.contains(&pod.namespace);
        let group = if is_elsewhere { ELSEWHERE.to_owned() } else { pod.namespace.to_string() };
        return Node { name: workload, group, kind: NodeKind::Possible };
    }
    let name = workload.split_once('/').map_or(&*workload, |(_, name)| name).to_owned();
    let kind = NodeKind::Workload { pods: 0, is_open: false, reaches_all: false };
    Node { name, group: pod.namespace.to_string(), kind }
}

/// The place of the node that an observed end belongs to.
fn node_of(nodes: &mut Vec<Node>, nets: &[IpNet], party: &Party) -> usize {
    let (name, group, kind) = match party {
        Party::Workload(namespace, name) => {
            let kind = NodeKind::Workload { pods: 0, is_open: false, reaches_all: false };
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
                !matches!(node.kind, NodeKind::Outside | NodeKind::Possible)
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
