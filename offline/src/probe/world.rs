//! Who is who in the manifests.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use control::model::{EndpointSlice, Key, Node, Pod, Protocol, Service, ServicePort};
use control::{Object, PodKey};
use ipnet::IpNet;

/// Where an address is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Spot {
    /// A pod with a network of its own.
    Pod(PodKey),
    /// A cluster node, or a pod on its network.
    Node(Arc<str>),
    /// Nobody that the manifests know.
    Elsewhere,
}

/// The objects of the manifests by name and by address.
#[derive(Debug, Default)]
pub struct World {
    pods: BTreeMap<PodKey, Pod>,
    nodes: BTreeMap<Arc<str>, Node>,
    services: BTreeMap<Key, Service>,
    /// Endpoint slices by the service they belong to.
    slices: BTreeMap<Key, Vec<EndpointSlice>>,
    owners: HashMap<IpAddr, Spot>,
    conflicts: HashMap<IpAddr, BTreeSet<Spot>>,
    virtual_addresses: HashMap<IpAddr, Key>,
    /// Networks of pods with the cluster nodes they are on, longest prefix first.
    pod_networks: Vec<(IpNet, Arc<str>)>,
}

impl World {
    /// The world of these objects, each of which has its own name.
    pub fn new(objects: &[Object]) -> Self {
        let mut world = Self::default();
        for object in objects {
            match object {
                Object::Pod(pod) => world.add_pod(pod),
                Object::Node(node) => world.add_node(node),
                Object::Service(service) => world.add_service(service),
                Object::EndpointSlice(slice) => world.add_slice(slice),
                _ => {}
            }
        }
        for slices in world.slices.values_mut() {
            slices.sort_by(|a, b| a.key.cmp(&b.key));
        }
        world.pod_networks.sort_by_key(|(net, _)| std::cmp::Reverse(net.prefix_len()));
        world
    }

    fn add_pod(&mut self, pod: &Pod) {
        if pod.is_on_pod_network() {
            for address in &pod.addresses {
                self.claim(*address, Spot::Pod(pod.key.clone()));
            }
        }
        self.pods.insert(pod.key.clone(), pod.clone());
    }

    fn add_node(&mut self, node: &Node) {
        for address in &node.addresses {
            self.claim(*address, Spot::Node(Arc::clone(&node.name)));
        }
        let networks = node.pod_cidrs.iter().map(|net| (*net, Arc::clone(&node.name)));
        self.pod_networks.extend(networks);
        self.nodes.insert(Arc::clone(&node.name), node.clone());
    }

    fn add_service(&mut self, service: &Service) {
        let all = [&service.cluster_ips, &service.external_ips, &service.load_balancer_ips];
        for address in all.into_iter().flatten() {
            self.virtual_addresses.insert(*address, service.key.clone());
        }
        self.services.insert(service.key.clone(), service.clone());
    }

    fn add_slice(&mut self, slice: &EndpointSlice) {
        if let Some(name) = &slice.service {
            let namespace = Arc::clone(&slice.key.namespace);
            let service = Key { namespace, name: Arc::clone(name) };
            self.slices.entry(service).or_default().push(slice.clone());
        }
    }

    fn claim(&mut self, address: IpAddr, spot: Spot) {
        match self.owners.get(&address) {
            Some(other) if *other != spot => {
                let claimants = self.conflicts.entry(address).or_default();
                claimants.insert(other.clone());
                claimants.insert(spot);
            }
            Some(_) => {}
            None => {
                self.owners.insert(address, spot);
            }
        }
    }

    /// A pod by name.
    pub fn pod(&self, key: &PodKey) -> Option<&Pod> {
        self.pods.get(key)
    }

    /// All pods, in order.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.values()
    }

    /// A cluster node by name.
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.get(name)
    }

    /// A service by name.
    pub fn service(&self, key: &Key) -> Option<&Service> {
        self.services.get(key)
    }

    /// The endpoint slices of a service, in order.
    pub fn slices(&self, service: &Key) -> &[EndpointSlice] {
        self.slices.get(service).map_or(&[], Vec::as_slice)
    }

    /// Where an address is.
    pub fn owner(&self, address: IpAddr) -> Spot {
        self.owners.get(&address).cloned().unwrap_or(Spot::Elsewhere)
    }

    /// The service that has this address, if nobody real has it.
    pub fn service_at(&self, address: IpAddr) -> Option<&Service> {
        if self.owners.contains_key(&address) {
            return None;
        }
        self.services.get(self.virtual_addresses.get(&address)?)
    }

    /// The service that a port of every cluster node's addresses leads to.
    pub fn node_port(&self, protocol: Protocol, port: u16) -> Option<(&Service, &ServicePort)> {
        let is_it = |it: &&ServicePort| it.protocol == protocol && it.node_port == Some(port);
        self.services
            .values()
            .find_map(|service| Some((service, service.ports.iter().find(is_it)?)))
    }

    /// Whether more than one claims this address.
    pub fn is_contested(&self, address: IpAddr) -> bool {
        self.conflicts.contains_key(&address)
    }

    /// Addresses that more than one claims, with the claimants.
    pub fn contested(&self) -> BTreeMap<IpAddr, &BTreeSet<Spot>> {
        self.conflicts.iter().map(|(address, spots)| (*address, spots)).collect()
    }

    /// The cluster node that packets to (or from) this address pass: its owner's, else the one
    /// with its pod network.
    pub fn node_of(&self, address: IpAddr) -> Option<&Arc<str>> {
        match self.owners.get(&address) {
            Some(Spot::Pod(key)) => self.pods.get(key)?.node.as_ref(),
            Some(Spot::Node(name)) => Some(name),
            Some(Spot::Elsewhere) | None => {
                let found = self.pod_networks.iter().find(|(net, _)| net.contains(&address));
                found.map(|(_, node)| node)
            }
        }
    }
}
