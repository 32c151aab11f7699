//! The pipeline as one struct: events go in, views come out.
//!
//! Nothing here waits, reads a clock or does I/O. [`Control::apply`], [`Control::delete`],
//! [`Control::resync`], [`Control::bind_address`] and [`Control::unbind`] only note what
//! happened; [`Control::commit`] works out what follows and publishes it, so that however
//! many events become one view.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use acl::{AddressMap, AddressMapBuilder, Block, End, PeerSetId, Rule, Table};

use crate::cache::{Cache, Change};
use crate::configurator::{self, Peers};
use crate::model::{Direction, NetworkPolicy, Pod, Protocol};
use crate::peers::{PeerSet, PeerSets, PodPeers, single};
use crate::{ClusterNode, Object, ObjectRef, PodGate, PodKey, PodView, View};

/// Whose pods get tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The pods of this cluster node.
    Node(Arc<str>),
    /// All pods, on whatever cluster node or none.
    All,
}

/// The control side of one cluster node (or, for questions asked from outside, of all).
#[derive(Debug)]
pub struct Control {
    scope: Scope,
    cache: Cache,
    /// Addresses given to local pods before the API knows them.
    bound: HashMap<PodKey, Vec<IpAddr>>,
    sets: PeerSets,
    /// What the address map in force was built from.
    members: BTreeMap<PeerSetId, BTreeSet<MapEntry>>,
    /// Tables in force by their rules.
    tables: HashMap<Arc<[Rule]>, Arc<Table>>,
    changed: bool,
    view: Arc<View>,
}

/// A local pod: its name, cluster node, addresses, and the rules for ingress and egress.
type PodRules = (PodKey, Arc<str>, Vec<IpAddr>, [Option<Arc<[Rule]>>; 2]);

/// A block in a form that sorts.
type MapEntry = (ipnet::IpNet, Vec<ipnet::IpNet>);

impl Control {
    /// Knows nothing yet; its view is empty and has generation 0.
    pub fn new(scope: Scope) -> Self {
        Self {
            scope,
            cache: Cache::default(),
            bound: HashMap::new(),
            sets: PeerSets::default(),
            members: BTreeMap::new(),
            tables: HashMap::new(),
            changed: false,
            view: Arc::new(View::default()),
        }
    }

    /// Adds or replaces an object.
    pub fn apply(&mut self, object: Object) {
        self.changed |= self.cache.apply(object) == Change::Some;
    }

    /// Removes an object, if it is known.
    pub fn delete(&mut self, reference: &ObjectRef) {
        self.changed |= self.cache.delete(reference) == Change::Some;
    }

    /// Makes the known objects exactly these. Those that could not be read keep their last
    /// valid version; bound addresses stay.
    pub fn resync(&mut self, objects: Vec<Object>) {
        let mut stale = self.cache.references();
        for object in objects {
            stale.remove(&object.reference());
            self.apply(object);
        }
        for reference in stale {
            self.delete(&reference);
        }
    }

    /// Tells the addresses of a pod on this cluster node, which win over those in its
    /// status. A pod that is not known yet waits for its object.
    pub fn bind_address(&mut self, pod: PodKey, addresses: Vec<IpAddr>) {
        let before = self.bound.insert(pod.clone(), addresses);
        self.changed |= before.as_ref() != self.bound.get(&pod);
    }

    /// Takes back what [`Self::bind_address`] told; the pod's status counts again.
    pub fn unbind(&mut self, pod: &PodKey) {
        self.changed |= self.bound.remove(pod).is_some();
    }

    /// The view in force.
    pub fn view(&self) -> Arc<View> {
        Arc::clone(&self.view)
    }

    /// Works in what happened since the last commit. `Some` if anything in the view is
    /// different now.
    pub fn commit(&mut self) -> Option<Arc<View>> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let local = self.local_pods();
        let mut lists: Vec<PodRules> = Vec::new();
        for pod in local {
            let policies = self.policies_of(&pod);
            let addresses = self.addresses(&pod);
            let mut peers = Evaluator { cache: &self.cache, sets: &mut self.sets };
            let rules = Direction::BOTH
                .map(|direction| configurator::rules(&pod, &policies, direction, &mut peers));
            let node = match (&self.scope, &pod.node) {
                (Scope::Node(name), _) => Arc::clone(name),
                (Scope::All, node) => node.clone().unwrap_or_else(|| "".into()),
            };
            lists.push((pod.key.clone(), node, addresses, rules));
        }
        let addresses = self.address_map(&lists);
        let pods = self.render(lists, &addresses);
        let nodes: BTreeMap<Arc<str>, Arc<ClusterNode>> =
            self.cache.nodes().values().map(|node| self.node_view(node)).collect();
        let same = Arc::ptr_eq(&addresses, &self.view.addresses)
            && nodes == self.view.nodes
            && pods.len() == self.view.pods.len()
            && pods.iter().all(|(key, pod)| {
                self.view.pods.get(key).is_some_and(|before| Arc::ptr_eq(before, pod))
            });
        if same {
            return None;
        }
        let generation = self.view.generation + 1;
        self.view = Arc::new(View { generation, addresses, pods, nodes });
        Some(self.view())
    }

    fn node_view(&self, node: &crate::model::Node) -> (Arc<str>, Arc<ClusterNode>) {
        let fresh =
            ClusterNode { addresses: node.addresses.clone(), pod_cidrs: node.pod_cidrs.clone() };
        let shared = match self.view.nodes.get(&node.name) {
            Some(known) if **known == fresh => Arc::clone(known),
            _ => Arc::new(fresh),
        };
        (Arc::clone(&node.name), shared)
    }

    /// Bound addresses, else those of the status.
    fn addresses(&self, pod: &Pod) -> Vec<IpAddr> {
        self.bound.get(&pod.key).unwrap_or(&pod.addresses).clone()
    }

    /// The pods that get tables.
    fn local_pods(&self) -> Vec<Arc<Pod>> {
        let is_local = |pod: &Pod| match &self.scope {
            Scope::All => true,
            Scope::Node(name) => {
                pod.node.as_ref() == Some(name) || self.bound.contains_key(&pod.key)
            }
        };
        self.cache
            .namespaces()
            .values()
            .flat_map(|entry| entry.pods.values())
            .filter(|pod| pod.is_on_pod_network() && is_local(pod))
            .filter(|pod| !self.addresses(pod).is_empty())
            .cloned()
            .collect()
    }

    /// The policies that select a pod, in order.
    fn policies_of(&self, pod: &Pod) -> Vec<Arc<NetworkPolicy>> {
        let Some(entry) = self.cache.namespaces().get(&pod.key.namespace) else {
            return Vec::new();
        };
        let selecting = entry.policies.values().filter(|it| it.selector.matches(&pod.labels));
        selecting.cloned().collect()
    }

    /// The map for the sets that these rules use; the one in force if nothing moved.
    fn address_map(&mut self, lists: &[PodRules]) -> Arc<AddressMap> {
        let used: HashSet<PeerSetId> = lists
            .iter()
            .flat_map(|(_, _, _, rules)| rules.iter().flatten())
            .flat_map(|rules| rules.iter())
            .flat_map(|rule| [rule.source, rule.destination])
            .filter_map(|end| match end {
                End::Set(set) => Some(set),
                End::Any | End::Net(_) => None,
            })
            .collect();
        self.sets.retain(|id| used.contains(&id));
        let mut members: BTreeMap<PeerSetId, BTreeSet<MapEntry>> = BTreeMap::new();
        for (set, id) in self.sets.iter() {
            let entries = members.entry(id).or_default();
            match set {
                PeerSet::Block(net, except) => {
                    entries.insert((*net, except.clone()));
                }
                PeerSet::Pods(peers) => {
                    for pod in matching(&self.cache, peers) {
                        let all = self.addresses(pod);
                        let inside = all.into_iter().filter(|it| peers.covers_address(*it));
                        entries.extend(inside.map(|it| (single(it).net, Vec::new())));
                    }
                }
            }
        }
        if members == self.members {
            return Arc::clone(&self.view.addresses);
        }
        let mut builder = AddressMapBuilder::default();
        for (id, entries) in &members {
            let block = |(net, except): &MapEntry| Block { net: *net, except: except.clone() };
            builder.add(*id, entries.iter().map(block));
        }
        self.members = members;
        Arc::new(builder.build())
    }

    /// Rule lists become tables, equal ones sharing, those in force staying.
    fn render(
        &mut self,
        lists: Vec<PodRules>,
        addresses: &Arc<AddressMap>,
    ) -> BTreeMap<PodKey, Arc<PodView>> {
        let in_force = match Arc::ptr_eq(addresses, &self.view.addresses) {
            true => std::mem::take(&mut self.tables),
            false => HashMap::new(),
        };
        let mut tables: HashMap<Arc<[Rule]>, Arc<Table>> = HashMap::new();
        let mut gate = |rules: Option<Arc<[Rule]>>| match rules {
            None => PodGate::Open,
            Some(rules) => {
                PodGate::Table(Arc::clone(tables.entry(Arc::clone(&rules)).or_insert_with(|| {
                    match in_force.get(&rules) {
                        Some(table) => Arc::clone(table),
                        None => Arc::new(Table::compile(rules, addresses)),
                    }
                })))
            }
        };
        let mut pods = BTreeMap::new();
        for (key, node, addresses, [ingress, egress]) in lists {
            let (to_pod, from_pod) = (gate(ingress), gate(egress));
            let fresh = PodView { node, addresses, to_pod, from_pod };
            let shared = match self.view.pods.get(&key) {
                Some(known) if same(known, &fresh) => Arc::clone(known),
                _ => Arc::new(fresh),
            };
            pods.insert(key, shared);
        }
        self.tables = tables;
        pods
    }
}

fn same(a: &PodView, b: &PodView) -> bool {
    let same_gate = |a: &PodGate, b: &PodGate| match (a, b) {
        (PodGate::Open, PodGate::Open) => true,
        (PodGate::Table(a), PodGate::Table(b)) => Arc::ptr_eq(a, b),
        _ => false,
    };
    a.node == b.node
        && a.addresses == b.addresses
        && same_gate(&a.to_pod, &b.to_pod)
        && same_gate(&a.from_pod, &b.from_pod)
}

/// The pods that can be peers and that `peers` means.
fn matching<'a>(cache: &'a Cache, peers: &'a PodPeers) -> impl Iterator<Item = &'a Arc<Pod>> {
    cache
        .namespaces()
        .iter()
        .filter(|(name, entry)| peers.covers_namespace(name, &entry.labels))
        .flat_map(|(_, entry)| entry.pods.values())
        .filter(|pod| pod.is_on_pod_network() && peers.covers_pod(pod))
}

struct Evaluator<'a> {
    cache: &'a Cache,
    sets: &'a mut PeerSets,
}

impl Peers for Evaluator<'_> {
    fn set(&mut self, set: PeerSet) -> PeerSetId {
        self.sets.id(set)
    }

    fn numbers(&mut self, peers: &PodPeers, name: &str, protocol: Protocol) -> Vec<u16> {
        let numbers: BTreeSet<u16> =
            matching(self.cache, peers).filter_map(|pod| pod.named_port(name, protocol)).collect();
        numbers.into_iter().collect()
    }
}

impl Control {
    /// The services known, in order.
    pub fn services(&self) -> impl Iterator<Item = &Arc<crate::model::Service>> {
        self.cache.services().values()
    }

    /// The endpoint slices known, in order.
    pub fn endpoint_slices(&self) -> impl Iterator<Item = &Arc<crate::model::EndpointSlice>> {
        self.cache.endpoint_slices().values()
    }

    /// A pod by name, if it is known.
    pub fn pod(&self, key: &PodKey) -> Option<&Arc<Pod>> {
        self.cache.pod(key)
    }
}
