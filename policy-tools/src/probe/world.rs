//! The objects of the manifests, by name and by address.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use control::model::{Key, Node, Pod, Service};
use control::{Object, PodKey};
use ipnet::IpNet;
use snapshot::gateways;

use super::{DomainAddresses, Endpoint};
use crate::input::Manifests;

/// Location of an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Location {
    /// A pod with a network of its own.
    Pod(PodKey),
    /// A node, or a pod on its network.
    Node(Arc<str>),
    /// An address that no object of the manifests has.
    Outside,
}

/// The objects of the manifests by name and by address.
#[derive(Debug, Default)]
pub struct World {
    pods: BTreeMap<PodKey, Arc<Pod>>,
    nodes: BTreeMap<Arc<str>, Arc<Node>>,
    services: BTreeMap<Key, Arc<Service>>,
    owners: HashMap<IpAddr, Location>,
    conflicts: HashMap<IpAddr, BTreeSet<Location>>,
    virtual_addresses: HashMap<IpAddr, Key>,
    /// Addresses of a family that an end need not have.
    could_have: BTreeSet<IpAddr>,
    /// The names that services of type ExternalName lead to.
    external_names: BTreeMap<Key, String>,
    /// Domain names with addresses.
    names: DomainAddresses,
    /// Networks of pods with the nodes they are on, longest prefix first.
    pod_networks: Vec<(IpNet, Arc<str>)>,
}

impl World {
    /// The world of these manifests, completed, and of these domain names.
    pub fn new(manifests: &Manifests, names: DomainAddresses) -> Self {
        let could_have = manifests.could_have.clone();
        let external_names = manifests.external_names.clone();
        let mut world = Self { names, could_have, external_names, ..Self::default() };
        for object in &manifests.objects {
            match object {
                Object::Pod(pod) => world.add_pod(pod),
                Object::Node(node) => world.add_node(node),
                Object::Service(service) => world.add_service(service),
                _ => {}
            }
        }
        world.pod_networks.sort_by_key(|(net, _)| std::cmp::Reverse(net.prefix_len()));
        world.add_gateways();
        world
    }

    /// Adds the addresses of the nodes' kernels on their host ports, where no pod has them.
    fn add_gateways(&mut self) {
        for node in self.nodes.values() {
            for gateway in gateways(&node.pod_cidrs) {
                let location = || Location::Node(Arc::clone(&node.name));
                self.owners.entry(gateway).or_insert_with(location);
            }
        }
    }

    fn add_pod(&mut self, pod: &Arc<Pod>) {
        if pod.is_on_pod_network() {
            for address in &pod.addresses {
                self.claim(*address, Location::Pod(pod.key.clone()));
            }
        }
        self.pods.insert(pod.key.clone(), Arc::clone(pod));
    }

    fn add_node(&mut self, node: &Arc<Node>) {
        for address in &node.addresses {
            self.claim(*address, Location::Node(Arc::clone(&node.name)));
        }
        let networks = node.pod_cidrs.iter().map(|net| (*net, Arc::clone(&node.name)));
        self.pod_networks.extend(networks);
        self.nodes.insert(Arc::clone(&node.name), Arc::clone(node));
    }

    fn add_service(&mut self, service: &Arc<Service>) {
        let all = [&service.cluster_ips, &service.external_ips, &service.load_balancer_ips];
        for address in all.into_iter().flatten() {
            self.virtual_addresses.insert(*address, service.key.clone());
        }
        self.services.insert(service.key.clone(), Arc::clone(service));
    }

    fn claim(&mut self, address: IpAddr, location: Location) {
        match self.owners.get(&address) {
            Some(other) if *other != location => {
                let claimants = self.conflicts.entry(address).or_default();
                claimants.insert(other.clone());
                claimants.insert(location);
            }
            Some(_) => {}
            None => {
                self.owners.insert(address, location);
            }
        }
    }

    /// A pod by name.
    pub fn pod(&self, key: &PodKey) -> Option<&Pod> {
        self.pods.get(key).map(|pod| &**pod)
    }

    /// All pods, in order.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.values().map(|pod| &**pod)
    }

    /// All nodes, in order.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values().map(|node| &**node)
    }

    /// A node by name.
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.get(name).map(|node| &**node)
    }

    /// A service by name.
    pub fn service(&self, key: &Key) -> Option<&Service> {
        self.services.get(key).map(|service| &**service)
    }

    /// The end that a service of type ExternalName leads to: a service of the cluster, or a domain name.
    pub(crate) fn external_name(&self, service: &Key) -> Option<Endpoint> {
        let name = self.external_names.get(service)?;
        let labels: Vec<&str> = name.split('.').collect();
        match labels[..] {
            [name, namespace, "svc", ..] => {
                Some(Endpoint::Service(Key { namespace: namespace.into(), name: name.into() }))
            }
            _ => Some(Endpoint::Name(name.as_str().into())),
        }
    }

    /// The addresses of a domain name.
    pub fn addresses_of(&self, name: &str) -> impl Iterator<Item = IpAddr> + '_ {
        self.names.of(name)
    }

    /// Returns the location of an address.
    pub fn location(&self, address: IpAddr) -> Location {
        self.owners.get(&address).cloned().unwrap_or(Location::Outside)
    }

    /// The service that has this address, unless a pod or node has it.
    pub(crate) fn service_at(&self, address: IpAddr) -> Option<&Service> {
        if self.owners.contains_key(&address) {
            return None;
        }
        self.service(self.virtual_addresses.get(&address)?)
    }

    /// Returns whether an end has this address in a family that it need not have.
    pub(crate) fn could_have(&self, address: IpAddr) -> bool {
        self.could_have.contains(&address)
    }

    /// Returns whether several objects claim this address.
    pub(crate) fn is_contested(&self, address: IpAddr) -> bool {
        self.conflicts.contains_key(&address)
    }

    /// Returns the addresses that several objects claim, with the claimants.
    pub fn contested(&self) -> BTreeMap<IpAddr, &BTreeSet<Location>> {
        self.conflicts.iter().map(|(address, locations)| (*address, locations)).collect()
    }

    /// The node that packets to (or from) this address pass: its owner's, else the one
    /// with its pod network.
    pub fn node_of(&self, address: IpAddr) -> Option<&Arc<str>> {
        match self.owners.get(&address) {
            Some(Location::Pod(key)) => self.pods.get(key)?.node.as_ref(),
            Some(Location::Node(name)) => Some(name),
            Some(Location::Outside) | None => {
                let found = self.pod_networks.iter().find(|(net, _)| net.contains(&address));
                found.map(|(_, node)| node)
            }
        }
    }
}
