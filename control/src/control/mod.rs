//! The pipeline as one struct: events go in, views come out.
//!
//! Nothing here waits, reads a clock or does I/O. [`Control::apply`], [`Control::delete`],
//! [`Control::resync`], [`Control::bind_address`] and [`Control::unbind`] work an event into
//! the cache and the peer sets and note which local pods it may affect; [`Control::commit`]
//! configures those, compiles what has to be and publishes, so that however many events
//! become one view.

mod processor;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use acl::{PeerSetId, Rule};
use ahash::RandomState;

use crate::cache::{Cache, Change};
use crate::configurator::{self, Policies};
use crate::membership::{Membership, NameId};
use crate::model::{Direction, EndpointSlice, Pod, Service};
use crate::render::{self, Followed};
use crate::services;
use crate::session_rules::Nets;
use crate::tables::Tables;
use crate::{Kind, Object, ObjectRef, PodKey, View};

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
    pub(crate) scope: Scope,
    pub(crate) cache: Cache,
    membership: Membership,
    pub(crate) tables: Tables,
    /// The pods in scope, by name.
    pub(crate) local: BTreeMap<PodKey, Local>,
    /// Local pods, or pods that were, to be configured anew.
    dirty: BTreeSet<PodKey>,
    nodes_changed: bool,
    revision: u64,
    departed: BTreeSet<IpAddr>,
    any_departed: bool,
    services: services::Pending,
    pub(crate) view: Arc<View>,
}

/// A pod in scope: its gates for ingress and egress.
#[derive(Debug, Default)]
pub(crate) struct Local {
    pub(crate) gates: [Option<Gate>; 2],
}

/// A gate that is not open.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) rules: Arc<[Rule]>,
    /// Port names that the rules follow.
    names: Vec<NameId>,
}

/// Figures about the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Distinct tables in force.
    pub tables: usize,
    /// How often a table has been compiled since the start.
    pub compiled: u64,
}

impl Control {
    /// Knows nothing yet; its view is empty and has generation 0.
    pub fn new(scope: Scope) -> Self {
        Self {
            scope,
            cache: Cache::default(),
            membership: Membership::default(),
            tables: Tables::default(),
            local: BTreeMap::new(),
            dirty: BTreeSet::new(),
            nodes_changed: false,
            revision: 0,
            departed: BTreeSet::new(),
            any_departed: false,
            services: services::Pending::default(),
            view: Arc::new(View::default()),
        }
    }

    /// Adds or replaces an object.
    pub fn apply(&mut self, object: Object) {
        let reference = object.reference();
        let before = self.addresses_before(&reference);
        let uid = self.uid_of(&reference);
        let change = self.cache.apply(object);
        self.process(change, &before);
        // Another pod of the same name and address: its end and its beginning came as one.
        if uid.is_some() && uid != self.uid_of(&reference) {
            self.note_departed(before);
        }
    }

    /// Removes an object, if it is known.
    pub fn delete(&mut self, reference: &ObjectRef) {
        let before = self.addresses_before(reference);
        let change = self.cache.delete(reference);
        self.process(change, &before);
    }

    /// Makes the known objects exactly these; bound addresses stay.
    pub fn resync(&mut self, objects: Vec<Object>) {
        let stale = self.cache.references();
        self.replace(stale, objects);
    }

    /// The same for the objects of one kind; those of other kinds stay.
    pub fn resync_kind(&mut self, kind: Kind, objects: Vec<Object>) {
        let stale = self.cache.references_of(kind);
        self.replace(stale, objects);
    }

    fn replace(&mut self, mut stale: HashSet<ObjectRef>, objects: Vec<Object>) {
        for object in objects {
            stale.remove(&object.reference());
            self.apply(object);
        }
        for reference in stale {
            self.delete(&reference);
        }
    }

    /// Tells the addresses of a pod on this cluster node, which win over those in its
    /// status. A pod that is not known yet waits for its object; with a `uid`, it waits for the
    /// one with that uid, and an earlier or later pod of its name has no addresses.
    pub fn bind_address(&mut self, pod: PodKey, uid: Option<&str>, addresses: Vec<IpAddr>) {
        let before = self.cache.addresses(&pod).to_vec();
        if self.cache.bind(&pod, uid.map(Arc::from), addresses) {
            self.process(Change::Pod(pod), &before);
        }
    }

    /// Takes back what [`Self::bind_address`] told; the pod's status counts again.
    pub fn unbind(&mut self, pod: &PodKey) {
        let before = self.cache.addresses(pod).to_vec();
        if self.cache.unbind(pod) {
            self.process(Change::Pod(pod.clone()), &before);
        }
    }

    /// The view in force.
    pub fn view(&self) -> Arc<View> {
        Arc::clone(&self.view)
    }

    /// Works in what happened since the last commit. `Some` if anything in the view is
    /// different now.
    pub fn commit(&mut self) -> Option<Arc<View>> {
        let names = self.membership.take_changed_names();
        if !names.is_empty() {
            let follows = |gate: &Gate| gate.names.iter().any(|name| names.contains(name));
            let affected =
                self.local.iter().filter(|(_, local)| local.gates.iter().flatten().any(follows));
            self.dirty.extend(affected.map(|(key, _)| key.clone()));
        }
        let dirty = std::mem::take(&mut self.dirty);
        for key in &dirty {
            self.configure(key);
        }
        self.membership.sweep(&self.cache);
        let addresses = match self.membership.version() {
            Some(version) => Arc::new(version),
            None => Arc::clone(&self.view.addresses),
        };
        let compiled_again = self.tables.compile(&self.view.addresses, &addresses);
        let pods = match (compiled_again, dirty.is_empty()) {
            (false, true) => Arc::clone(&self.view.pods),
            (false, false) => self.pods(dirty),
            (true, _) => {
                let known = self.view.pods.keys().chain(self.local.keys()).cloned();
                self.pods(known.collect())
            }
        };
        let nodes = match std::mem::take(&mut self.nodes_changed) {
            true => self.nodes(),
            false => Arc::clone(&self.view.nodes),
        };
        let services = self.services.work_out(&self.cache, &self.view.services);
        let same = !std::mem::take(&mut self.any_departed)
            && Arc::ptr_eq(&addresses, &self.view.addresses)
            && Arc::ptr_eq(&pods, &self.view.pods)
            && Arc::ptr_eq(&nodes, &self.view.nodes)
            && Arc::ptr_eq(&services, &self.view.services);
        if same {
            return None;
        }
        let generation = self.view.generation + 1;
        self.view = Arc::new(View { generation, addresses, pods, nodes, services });
        Some(self.view())
    }

    /// The services known, in order.
    pub fn services(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.cache.services().values()
    }

    /// The endpoint slices known, in order.
    pub fn endpoint_slices(&self) -> impl Iterator<Item = &Arc<EndpointSlice>> {
        self.cache.endpoint_slices().values()
    }

    /// A pod by name, if it is known.
    pub fn pod(&self, key: &PodKey) -> Option<&Arc<Pod>> {
        self.cache.pod(key)
    }

    /// Whether the pod of this name that is known is another one than the one bound: an earlier
    /// one whose end, or a later one whose beginning, was told first.
    pub fn is_namesake(&self, key: &PodKey) -> bool {
        self.cache.is_namesake(key)
    }

    /// Grows whenever what is known becomes different; the same objects told again leave it.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// All objects known, one at a time.
    pub fn objects(&self) -> impl Iterator<Item = Object> {
        self.cache.objects()
    }

    /// How many objects of each kind are known; kinds without any are left out.
    pub fn counts(&self) -> BTreeMap<Kind, usize> {
        self.cache.counts()
    }

    /// The pod that has this address, on whatever cluster node; of several that claim it, the
    /// one that counts.
    pub fn pod_at(&self, address: IpAddr) -> Option<&PodKey> {
        self.membership.owner(address)
    }

    /// Every address that a pod has, with that pod.
    pub fn pods_by_address(&self) -> impl Iterator<Item = (IpAddr, &PodKey)> {
        self.membership.owners()
    }

    /// Figures about the pipeline.
    pub fn figures(&self) -> Figures {
        Figures { tables: self.tables.len(), compiled: self.tables.compiled() }
    }

    /// The peer sets, for those who put them into words.
    pub(crate) fn membership(&self) -> &Membership {
        &self.membership
    }

    /// The networks of every peer set.
    pub(crate) fn nets_of_sets(&self) -> HashMap<PeerSetId, Nets, RandomState> {
        self.membership.nets()
    }

    /// Addresses that were a pod's and are so no longer, or are another pod's, since this was last
    /// called: no connection goes on with the next pod. [`Self::commit`] has a view for them.
    pub fn take_departed(&mut self) -> BTreeSet<IpAddr> {
        std::mem::take(&mut self.departed)
    }

    fn note_departed(&mut self, addresses: impl IntoIterator<Item = IpAddr>) {
        let known = self.departed.len();
        self.departed.extend(addresses);
        self.any_departed |= self.departed.len() > known;
    }

    fn uid_of(&self, reference: &ObjectRef) -> Option<Arc<str>> {
        let namespace = reference.namespace.clone().filter(|_| reference.kind == Kind::Pod)?;
        self.cache.pod(&PodKey { namespace, name: Arc::clone(&reference.name) })?.uid.clone()
    }

    /// The addresses that a pod has before it is changed; none for other objects.
    fn addresses_before(&self, reference: &ObjectRef) -> Vec<IpAddr> {
        match (reference.kind, &reference.namespace) {
            (Kind::Pod, Some(namespace)) => {
                let (namespace, name) = (Arc::clone(namespace), Arc::clone(&reference.name));
                self.cache.addresses(&PodKey { namespace, name }).to_vec()
            }
            _ => Vec::new(),
        }
    }

    /// Works out the gates of a pod.
    fn configure(&mut self, key: &PodKey) {
        let mut gates = [None, None];
        let is_local = self.is_local(key);
        if let Some(pod) = self.cache.pod(key).filter(|_| is_local).cloned() {
            let policies = self.policies_of(&pod);
            gates = Direction::BOTH.map(|direction| self.gate(&pod, &policies, direction));
        }
        let before = match is_local {
            true => self.local.insert(key.clone(), Local { gates }),
            false => self.local.remove(key),
        };
        for gate in before.into_iter().flat_map(|local| local.gates).flatten() {
            for set in self.tables.release(&gate.rules) {
                self.membership.release(set);
            }
            gate.names.into_iter().for_each(|name| self.membership.release_name(name));
        }
    }

    fn gate(&mut self, pod: &Pod, policies: &Policies, direction: Direction) -> Option<Gate> {
        let mut followed = Followed::new(&self.cache, &mut self.membership);
        let rules = configurator::rules(pod, policies, direction, &mut followed)?;
        let names = followed.into_names();
        let rules = render::rules(rules, direction, &self.cache, &mut self.membership);
        let (rules, sets) = self.tables.acquire(rules);
        sets.iter().for_each(|set| self.membership.retain(*set));
        names.iter().for_each(|name| self.membership.retain_name(*name));
        Some(Gate { rules, names })
    }
}
