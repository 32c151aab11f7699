//! The pipeline as one struct: events go in, views come out.
//!
//! Nothing here waits, reads a clock or does I/O. [`Control::apply`], [`Control::delete`],
//! [`Control::resync`], [`Control::bind_address`] and [`Control::unbind`] apply an event to the
//! cache and the peer sets and record the local pods it may affect. [`Control::commit`] configures
//! those, compiles changed tables and publishes, so any number of events becomes one view.

mod domains;
mod host;
mod host_acls;
mod host_services;
mod outside;
mod policy_events;
mod processor;
mod resolved;
mod staged;
mod uids;
mod withheld;

pub use policy_events::{PolicyChange, PolicyEvent};
pub use resolved::ResolvedRule;
pub use uids::Uids;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::num::NonZero;
use std::sync::Arc;

use acl::{PeerSetId, Rule};
use ahash::RandomState;
use ipnet::IpNet;

use crate::cache::{Cache, Change};
use crate::configurator::{self, Policies};
use crate::membership::{Membership, Nets, Versions};
use crate::model::{DeniedReply, Direction, Pod, Service, Stage, Uid, WireGuard};
use crate::peers::NameId;
use crate::render::{self, TrackedNames};
use crate::services;
use crate::tables::{RuleList, Tables};
use crate::{Fault, Kind, Object, ObjectRef, PodKey, RefusedIp, View};

/// Selects the pods that get tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The pods of this node.
    Node(Arc<str>),
    /// All pods, on whatever node or none.
    All,
}

/// The control side of one node, or, for offline commands, of all.
#[derive(Debug)]
pub struct Control {
    pub(crate) scope: Scope,
    pub(crate) cache: Cache,
    membership: Membership,
    pub(crate) tables: Tables,
    /// The pods in scope, by name.
    pub(crate) local: BTreeMap<PodKey, Local>,
    /// Pods in scope, or formerly in scope, to be configured again.
    dirty: BTreeSet<PodKey>,
    nodes_changed: bool,
    revision: u64,
    departed: BTreeSet<IpAddr>,
    moved: BTreeSet<IpAddr>,
    any_departed: bool,
    policy_changes: Vec<PolicyChange>,
    services: services::Pending,
    withheld: withheld::Withheld,
    host: host::Hosts,
    host_acls: host_acls::HostAcls,
    host_services: host_services::HostServices,
    outside: outside::Outside,
    domains: domains::OwnAddresses,
    pub(crate) denied_reply: DeniedReply,
    /// The stage of policies without an annotation.
    stage: Stage,
    pub(crate) view: Arc<View>,
}

/// A pod in scope: its ACLs for ingress and egress.
#[derive(Debug, Default)]
pub(crate) struct Local {
    pub(crate) acls: [Option<Acl>; 2],
    /// The same if staged policies were enforced; `None` if that changes nothing.
    pub(crate) staged: Option<[Option<Acl>; 2]>,
}

impl Local {
    /// All ACLs that are not open.
    fn acls(&self) -> impl Iterator<Item = &Acl> {
        self.acls.iter().chain(self.staged.iter().flatten()).flatten()
    }
}

/// An ACL that is not open.
#[derive(Debug)]
pub(crate) struct Acl {
    pub(crate) rules: RuleList,
    /// Port names that the rules depend on.
    names: Vec<NameId>,
}

/// ACLs of this commit that do not depend on the pod, by policies and direction.
type Shared = HashMap<(Vec<usize>, Direction), Option<(RuleList, Vec<NameId>)>, RandomState>;

/// A pod that an event changed.
#[derive(Clone, Debug)]
pub struct PodChange {
    /// Its namespace and name.
    pub key: PodKey,
    /// The pod before; `None` if it is new.
    pub before: Option<Arc<Pod>>,
    /// The pod after it; `None` if it is gone.
    pub after: Option<Arc<Pod>>,
}

/// Statistics of the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Distinct tables in force.
    pub tables: usize,
    /// Number of compilations of tables since the start.
    pub compiled: u64,
}

impl Control {
    /// An empty pipeline; its view is empty and has generation 0.
    pub fn new(scope: Scope) -> Self {
        Self {
            cache: match &scope {
                Scope::Node(name) => Cache::of_node(Arc::clone(name)),
                Scope::All => Cache::default(),
            },
            scope,
            membership: Membership::default(),
            tables: Tables::default(),
            local: BTreeMap::new(),
            dirty: BTreeSet::new(),
            nodes_changed: false,
            revision: 0,
            departed: BTreeSet::new(),
            moved: BTreeSet::new(),
            any_departed: false,
            policy_changes: Vec::new(),
            services: services::Pending::default(),
            withheld: withheld::Withheld::default(),
            host: host::Hosts::default(),
            host_acls: host_acls::HostAcls::default(),
            host_services: host_services::HostServices::default(),
            outside: outside::Outside::default(),
            domains: domains::OwnAddresses::default(),
            denied_reply: DeniedReply::default(),
            stage: Stage::default(),
            view: Arc::default(),
        }
    }

    /// Publishes the content of every peer set from now on, for renderers that write sets out.
    pub fn list_peer_sets(&mut self) {
        self.membership.list_content();
    }

    /// Sets the reply where policies deny, for pods whose Namespace names none; before any object.
    pub fn reply_to_denials(&mut self, reply: DeniedReply) {
        self.denied_reply = reply;
    }

    /// Lets services take external IPs of the `permitted` networks. They never take one that a pod, a
    /// node or the API server has, nor one of the pods' networks or of `cluster`. Without this call
    /// they take none.
    pub fn permit_external_ips(&mut self, permitted: Vec<IpNet>, cluster: Vec<IpNet>) {
        self.services.permit_external_ips(permitted, cluster);
    }

    /// The external IPs that services do not take, and endpoints beyond the bound, as texts of the
    /// services' faults.
    pub fn service_faults(&self) -> impl Iterator<Item = String> {
        let views = self.services.refused().iter();
        let views = views.filter_map(|key| Some((key, self.view.services.get(key)?)));
        views.flat_map(|(key, view)| {
            let object = ObjectRef {
                kind: Kind::Service,
                namespace: Some(Arc::clone(&key.namespace)),
                name: Arc::clone(&key.name),
            };
            let excess = view.excess.map(|count| {
                let most = services::MAX_ENDPOINTS;
                format!("{object}: spec.ports: {count} endpoints over all ports, more than {most}: none is used")
            });
            let refused = view.refused.iter().map(move |RefusedIp { index, problem }| {
                format!("{object}: spec.externalIPs[{index}]: {problem}")
            });
            refused.chain(excess)
        })
    }

    /// Nodes and pods that claim what is another one's, as faults of their objects.
    pub fn claim_faults(&self) -> impl Iterator<Item = Fault> {
        self.cache.refused_claims().chain(self.membership.refused_claims(&self.cache))
    }

    /// The addresses that nodes publish and that are not theirs, as faults of the objects.
    pub fn published_address_faults(&self) -> &[Fault] {
        self.cache.refused_addresses()
    }

    /// Returns the WireGuard keys and ports that nodes publish, by node.
    pub fn wireguard(&self) -> BTreeMap<Arc<str>, WireGuard> {
        self.cache.wireguard().map(|(node, it)| (Arc::clone(node), it.clone())).collect()
    }

    /// Returns whether an endpoint of the API server has an address of a node's object.
    pub fn runs_api_server(&self, node: &str) -> bool {
        let endpoints = &self.cache.api_server().endpoints;
        let node = self.cache.nodes().get(node);
        node.is_some_and(|node| node.addresses.iter().any(|it| endpoints.contains(it)))
    }

    /// Those of a node's addresses, as its kernel has them, that it may publish.
    pub fn publishable(&self, node: &str, addresses: impl Iterator<Item = IpAddr>) -> Vec<IpAddr> {
        self.cache.publishable(node, addresses, |it| self.membership.owner(it).is_some())
    }

    /// Adds or replaces an object.
    pub fn apply(&mut self, object: Object) {
        self.applied(object);
    }

    /// The same; returns the pod that changed, if one did.
    pub(crate) fn applied(&mut self, object: Object) -> Option<PodChange> {
        self.cache.begin_event();
        self.apply_listed(object)
    }

    /// Applies an object of a list, or of an event.
    fn apply_listed(&mut self, object: Object) -> Option<PodChange> {
        let object = self.admitted(object);
        let change = self.cache.apply(object);
        let before = self.addresses_before(&change);
        // Another pod of the same name and address: one event replaced it.
        let is_another = match &change {
            Change::Pod(_, (Some(before), Some(after))) => {
                before.uid.is_some() && before.uid != after.uid
            }
            _ => false,
        };
        let changed = self.process(change, &before);
        if is_another {
            self.note_departed(before);
        }
        changed
    }

    /// Removes an object, if it is known.
    pub fn delete(&mut self, reference: &ObjectRef) {
        self.deleted(reference);
    }

    /// The same; returns the pod that is gone, if it was one.
    pub(crate) fn deleted(&mut self, reference: &ObjectRef) -> Option<PodChange> {
        self.forget_withheld(reference);
        let change = self.cache.delete(reference);
        let before = self.addresses_before(&change);
        self.process(change, &before)
    }

    /// Replaces all objects by these; bound addresses stay.
    pub fn resync(&mut self, objects: Vec<Object>) {
        let stale = self.cache.references();
        self.replace(stale, objects);
    }

    /// The same for the objects of one kind; those of other kinds stay.
    pub fn resync_kind(&mut self, kind: Kind, objects: Vec<Object>) {
        let stale = self.cache.references_of(kind);
        self.replace(stale, objects);
    }

    fn replace(&mut self, mut stale: HashSet<ObjectRef, RandomState>, objects: Vec<Object>) {
        self.cache.begin_event();
        let (mut last, mut packed) =
            (None::<Arc<str>>, HashSet::<Arc<str>, RandomState>::default());
        for object in objects {
            let reference = object.reference();
            stale.remove(&reference);
            self.apply_listed(object);
            // A list is in the order of namespaces: what one does not need, the next one takes.
            if last != reference.namespace
                && let Some(before) = std::mem::replace(&mut last, reference.namespace)
                && packed.insert(Arc::clone(&before))
            {
                self.cache.pack_namespace(&before);
            }
        }
        last.iter().for_each(|name| self.cache.pack_namespace(name));
        for reference in stale {
            self.delete(&reference);
        }
        self.cache.pack();
    }

    /// Binds a pod on this node to addresses, which override those in its status. The
    /// binding waits for the pod's object; with a `uid`, for the one with that uid, and an earlier
    /// or later pod of its name has no addresses.
    pub fn bind_address(&mut self, pod: PodKey, uid: Option<&str>, addresses: Vec<IpAddr>) {
        let before = self.cache.addresses(&pod).to_vec();
        if self.cache.bind(&pod, uid.map(Uid::from), addresses) {
            let known = self.cache.pod(&pod).cloned();
            self.process(Change::Pod(pod, (known.clone(), known)), &before);
        }
    }

    /// Removes the binding of [`Self::bind_address`]; the pod's status counts again.
    pub fn unbind(&mut self, pod: &PodKey) {
        let before = self.cache.addresses(pod).to_vec();
        if self.cache.unbind(pod) {
            let known = self.cache.pod(pod).cloned();
            self.process(Change::Pod(pod.clone(), (known.clone(), known)), &before);
        }
    }

    /// The view in force.
    pub fn view(&self) -> Arc<View> {
        Arc::clone(&self.view)
    }

    /// Applies the events since the last commit. `Some` if the view changed.
    pub fn commit(&mut self) -> Option<Arc<View>> {
        self.check_claims();
        self.check_published();
        let names = self.membership.take_changed_names();
        if !names.is_empty() {
            let follows = |acl: &Acl| acl.names.iter().any(|name| names.contains(name));
            let affected = self.local.iter().filter(|(_, local)| local.acls().any(follows));
            self.dirty.extend(affected.map(|(key, _)| key.clone()));
            if self.has_host_sockets_of(follows) {
                self.note_host_policies();
            }
        }
        let dirty = std::mem::take(&mut self.dirty);
        let mut shared = Shared::default();
        for key in &dirty {
            self.configure(key, &mut shared);
        }
        let host_firewalls = self.configure_host();
        let host_pods = self.configure_host_pods();
        self.configure_outside();
        let host_acls_changed = self.configure_host_acls();
        self.membership.sweep(&self.cache);
        self.follow_own_addresses();
        let (addresses, live_addresses) = match self.membership.version() {
            Some(Versions { addresses, live }) => {
                let addresses = Arc::new(addresses);
                let live = live.map_or_else(|| Arc::clone(&addresses), Arc::new);
                (addresses, live)
            }
            None => (Arc::clone(&self.view.addresses), Arc::clone(&self.view.live_addresses)),
        };
        // The live map has all identities of the other one.
        // Beside workers, one core is enough.
        let threads = match self.scope {
            Scope::Node(_) => 1,
            Scope::All => std::thread::available_parallelism().map_or(1, NonZero::get),
        };
        let before = &self.view.live_addresses;
        let compiled_again = self.tables.compile(before, &live_addresses, threads);
        let pods = match (compiled_again, dirty.is_empty()) {
            (false, true) => Arc::clone(&self.view.pods),
            (false, false) => self.pods(dirty),
            (true, _) => {
                let known = self.view.pods.keys().chain(self.local.keys()).cloned();
                self.pods(known.collect())
            }
        };
        let outside = self.outside_acl();
        let host_services = self.compiled_host_services();
        let host_sockets = self.host_sockets();
        let host_acls = self.compiled_host_acls();
        let nodes = match std::mem::take(&mut self.nodes_changed) {
            true => self.nodes(),
            false => Arc::clone(&self.view.nodes),
        };
        let owner = |address| self.membership.owner(address);
        let services = self.services.work_out(&self.cache, owner, &self.view.services);
        let peer_sets = self.membership.content();
        let same = !std::mem::take(&mut self.any_departed)
            && Arc::ptr_eq(&addresses, &self.view.addresses)
            && Arc::ptr_eq(&live_addresses, &self.view.live_addresses)
            && (Arc::ptr_eq(&peer_sets, &self.view.peer_sets) || peer_sets.is_empty())
            && Arc::ptr_eq(&pods, &self.view.pods)
            && Arc::ptr_eq(&nodes, &self.view.nodes)
            && Arc::ptr_eq(&host_firewalls, &self.view.host_firewalls)
            && Arc::ptr_eq(&host_pods, &self.view.host_pods)
            && Arc::ptr_eq(&host_sockets, &self.view.host_sockets)
            && outside.is_same(&self.view.outside)
            && Arc::ptr_eq(&host_services, &self.view.host_services)
            && !host_acls_changed
            && Arc::ptr_eq(&services, &self.view.services);
        if same {
            return None;
        }
        let generation = self.view.generation + 1;
        self.view = Arc::new(View {
            generation,
            addresses,
            live_addresses,
            pods,
            nodes,
            peer_sets,
            host_firewalls,
            host_pods,
            host_sockets,
            outside,
            host_services,
            host_acls,
            services,
        });
        Some(self.view())
    }

    /// Leaves changes of services' endpoints out of the commits that follow, or no longer. Those of the API server's
    /// service are never left out.
    pub fn hold_endpoints(&mut self, holds: bool) {
        self.services.hold_endpoints(holds);
    }

    /// Whether there are changes of endpoints that no commit has.
    pub fn has_endpoints(&self) -> bool {
        self.services.has_endpoints()
    }

    /// The services known, in order.
    pub fn services(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.cache.services().values()
    }

    /// A pod by name, if it is known.
    pub fn pod(&self, key: &PodKey) -> Option<&Arc<Pod>> {
        self.cache.pod(key)
    }

    /// Returns whether the known pod of this name is another one than the one bound: an earlier or
    /// a later one.
    pub fn is_namesake(&self, key: &PodKey) -> bool {
        self.cache.is_namesake(key)
    }

    /// Incremented with each change of the known objects; an equal object changes nothing.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// All objects known, one at a time.
    pub fn objects(&self) -> impl Iterator<Item = Object> {
        self.cache.objects()
    }

    /// All pods known.
    pub fn known_pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.cache.pods()
    }

    /// Number of known objects by kind; kinds without any are left out.
    pub fn counts(&self) -> BTreeMap<Kind, usize> {
        self.cache.counts()
    }

    /// The pod that has this address, on whatever node; of several that claim it, the
    /// one that counts.
    pub fn pod_at(&self, address: IpAddr) -> Option<&PodKey> {
        self.membership.owner(address)
    }

    /// Every address that a pod has, with that pod.
    pub fn pods_by_address(&self) -> impl Iterator<Item = (IpAddr, &PodKey)> {
        self.membership.owners()
    }

    /// Statistics of the pipeline.
    pub fn figures(&self) -> Figures {
        Figures { tables: self.tables.len(), compiled: self.tables.compiled() }
    }

    /// The peer sets, for descriptions.
    pub(crate) fn membership(&self) -> &Membership {
        &self.membership
    }

    /// The networks of every peer set.
    pub(crate) fn nets_of_sets(&self) -> HashMap<PeerSetId, Nets, RandomState> {
        self.membership.nets()
    }

    /// Returns the addresses that no longer belong to a pod, or belong to another pod, since the
    /// last call: their sessions have to end. [`Self::commit`] publishes a view for them.
    pub fn take_departed(&mut self) -> BTreeSet<IpAddr> {
        std::mem::take(&mut self.departed)
    }

    /// Returns the addresses that have become a pod's, another one's or none's since the last call; with the scope of a
    /// node.
    pub fn take_moved(&mut self) -> BTreeSet<IpAddr> {
        std::mem::take(&mut self.moved)
    }

    /// The addresses that [`Self::take_departed`] is to return.
    pub fn departed(&self) -> impl Iterator<Item = IpAddr> {
        self.departed.iter().copied()
    }

    /// Ends the sessions of these addresses, as [`Self::take_departed`] says.
    pub fn depart(&mut self, addresses: impl IntoIterator<Item = IpAddr>) {
        self.note_departed(addresses);
    }

    fn note_departed(&mut self, addresses: impl IntoIterator<Item = IpAddr>) {
        let known = self.departed.len();
        self.departed.extend(addresses);
        self.any_departed |= self.departed.len() > known;
    }

    /// The addresses that a pod had before its change.
    fn addresses_before(&self, change: &Change) -> Vec<IpAddr> {
        match change {
            Change::Pod(_, (before, _)) => self.addresses_of(before.as_ref()),
            _ => Vec::new(),
        }
    }

    /// The addresses at which a pod takes part in policies; none without one.
    fn addresses_of(&self, pod: Option<&Arc<Pod>>) -> Vec<IpAddr> {
        pod.map_or_else(Vec::new, |pod| self.cache.addresses_of(pod).to_vec())
    }

    /// Computes the ACLs of a pod.
    fn configure(&mut self, key: &PodKey, shared: &mut Shared) {
        let pod = self.cache.pod(key).filter(|pod| self.is_local(pod)).cloned();
        let before = match &pod {
            Some(pod) => {
                let policies = self.policies_of(pod);
                let acls = Direction::BOTH.map(|it| self.shared_acl(pod, &policies, it, shared));
                let staged = self.staged_acls(pod, &policies, shared);
                self.local.insert(key.clone(), Local { acls, staged })
            }
            None => self.local.remove(key),
        };
        let acls = before.into_iter().flat_map(|Local { acls, staged }| {
            acls.into_iter().chain(staged.into_iter().flatten()).flatten()
        });
        acls.for_each(|acl| self.release(acl));
    }

    fn acl(&mut self, pod: &Pod, policies: &Policies, direction: Direction) -> Option<Acl> {
        self.own_acl(pod, policies, direction).0
    }

    /// The ACL of a pod, and whether it is its own: pods of the same policies may have another one.
    fn own_acl(
        &mut self,
        pod: &Pod,
        policies: &Policies,
        direction: Direction,
    ) -> (Option<Acl>, bool) {
        let mut tracked = TrackedNames::new(&self.cache, &mut self.membership);
        let rules = configurator::rules(pod, policies, direction, &mut tracked);
        let (names, is_own) = tracked.into_used();
        let acl = rules.map(|rules| {
            let rules = render::rules(rules, direction, &self.cache, &mut self.membership);
            self.acquire(rules, names)
        });
        (acl, is_own)
    }

    /// The ACL of a pod, which it shares with the pods of this commit that the same policies
    /// select.
    fn shared_acl(
        &mut self,
        pod: &Pod,
        policies: &Policies,
        direction: Direction,
        shared: &mut Shared,
    ) -> Option<Acl> {
        let policies_and_direction = (policies.identity(), direction);
        if let Some(known) = shared.get(&policies_and_direction) {
            let (rules, names) = known.as_ref()?.clone();
            self.tables.share(&rules);
            names.iter().for_each(|name| self.membership.retain_name(*name));
            return Some(Acl { rules, names });
        }
        let (acl, is_own) = self.own_acl(pod, policies, direction);
        if !is_own {
            let parts = acl.as_ref().map(|acl| (acl.rules.clone(), acl.names.clone()));
            shared.insert(policies_and_direction, parts);
        }
        acl
    }

    /// Keeps rules, the peer sets that they name and the port names that they depend on.
    fn acquire(&mut self, rules: Vec<Rule>, names: Vec<NameId>) -> Acl {
        let (rules, sets) = self.tables.acquire(rules);
        sets.iter().for_each(|set| self.membership.retain(*set));
        names.iter().for_each(|name| self.membership.retain_name(*name));
        Acl { rules, names }
    }

    fn release(&mut self, acl: Acl) {
        for set in self.tables.release(&acl.rules) {
            self.membership.release(set);
        }
        acl.names.into_iter().for_each(|name| self.membership.release_name(name));
    }
}
