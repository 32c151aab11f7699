//! Services with their endpoints, as published in the view.
//!
//! A service's view is recomputed when the service or one of its endpoint slices changes. (Where a
//! slice names no ports and the service names its target by a container port's name, also when a
//! pod changes; slices that Kubernetes makes carry numbers.)

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::PodKey;
use crate::cache::Cache;
use crate::external_ips::{ExternalIps, RefusedIp};
use crate::model::{
    Endpoint, EndpointSlice, Key, Protocol, Service, ServicePort, TargetPort, Topology,
};

/// A service with its endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceView {
    /// The service itself.
    pub service: Arc<Service>,
    /// The endpoints of each of `service.ports`, in the same order; each list in order.
    pub endpoints: Vec<Vec<ServiceEndpoint>>,
    /// External IPs that it does not take; `service` is without them.
    pub refused: Vec<RefusedIp>,
    /// Its endpoints over all ports where they exceed [`MAX_ENDPOINTS`]: it has none then, so
    /// connections to it are refused.
    pub excess: Option<usize>,
}

/// Endpoints of a service over all its ports: each port counts its own.
pub(crate) const MAX_ENDPOINTS: usize = 1 << 18;

/// An endpoint of a service port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceEndpoint {
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// Whether it takes new connections. If not, it is terminating but still serves, and is used if
    /// no other endpoint is left (KEP-1669).
    pub ready: bool,
    /// Its node, if its slice names one, and its hints.
    pub topology: Arc<Topology>,
}

/// The views of all services.
pub(crate) type ServiceViews = BTreeMap<Key, Arc<ServiceView>>;

/// Services to recompute.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    changed: BTreeSet<Key>,
    /// Services of which only endpoint slices have changed.
    endpoints: BTreeSet<Key>,
    /// Whether the latter wait.
    holds_endpoints: bool,
    /// Services whose target is the name of a pod's port.
    by_name: BTreeSet<Key>,
    /// Services with external IPs that they may not take, or with too many endpoints.
    refused: BTreeSet<Key>,
    external_ips: ExternalIps,
}

impl Pending {
    pub(crate) fn service_changed(&mut self, key: Key) {
        self.changed.insert(key);
    }

    pub(crate) fn endpoints_changed(&mut self, key: Key) {
        self.endpoints.insert(key);
    }

    /// Leaves changes of endpoint slices for later, or no longer.
    pub(crate) fn hold_endpoints(&mut self, holds: bool) {
        self.holds_endpoints = holds;
    }

    /// Whether changes of endpoint slices wait.
    pub(crate) fn has_endpoints(&self) -> bool {
        !self.endpoints.is_empty()
    }

    /// A pod changed that had, or has, these addresses.
    pub(crate) fn pod_changed(&mut self, addresses: &BTreeSet<IpAddr>) {
        self.changed.extend(self.by_name.iter().chain(self.external_ips.of(addresses)).cloned());
    }

    /// Something changed that external IPs depend on.
    pub(crate) fn surroundings_changed(&mut self) {
        self.changed.extend(self.external_ips.services().cloned());
    }

    /// Lets services take external IPs of the `permitted` networks, those of `cluster` left out.
    pub(crate) fn permit_external_ips(&mut self, permitted: Vec<IpNet>, cluster: Vec<IpNet>) {
        self.external_ips.permit(permitted, cluster);
        self.surroundings_changed();
    }

    /// Services with external IPs that they may not take, or with too many endpoints.
    pub(crate) fn refused(&self) -> &BTreeSet<Key> {
        &self.refused
    }

    /// Returns the views after the changes; the same ones if nothing differs.
    pub(crate) fn work_out<'a>(
        &mut self,
        cache: &Cache,
        owner: impl Fn(IpAddr) -> Option<&'a PodKey>,
        before: &Arc<ServiceViews>,
    ) -> Arc<ServiceViews> {
        if !self.holds_endpoints {
            self.changed.append(&mut self.endpoints);
        }
        let mut after = Arc::clone(before);
        let now = |key: &Key| cache.services().get(key);
        let cluster_ips = |key: &Key| {
            let then = before.get(key).map(|view| &view.service);
            let both: Vec<IpAddr> =
                then.into_iter().chain(now(key)).flat_map(|it| it.cluster_ips.clone()).collect();
            both
        };
        let moved = self.changed.iter().flat_map(cluster_ips).collect();
        self.changed.extend(self.external_ips.of(&moved).cloned());
        for key in std::mem::take(&mut self.changed) {
            let service = now(&key);
            let wanted = service.map(|it| &**it);
            let refused = self.external_ips.refused(cache, &owner, &key, wanted);
            let view = service.map(|service| view(cache, service, refused));
            let note = |keys: &mut BTreeSet<Key>, is_among: fn(&(ServiceView, bool)) -> bool| {
                match view.as_ref().is_some_and(is_among) {
                    true => keys.insert(key.clone()),
                    false => keys.remove(&key),
                };
            };
            note(&mut self.by_name, |(_, by_name)| *by_name);
            note(&mut self.refused, |(it, _)| !it.refused.is_empty() || it.excess.is_some());
            let view = view.map(|(view, _)| view);
            if after.get(&key).map(|known| &**known) == view.as_ref() {
                continue;
            }
            let views = Arc::make_mut(&mut after);
            match view {
                Some(view) => drop(views.insert(key, Arc::new(view))),
                None => drop(views.remove(&key)),
            }
        }
        after
    }
}

/// Computes the view of a service, and whether it depends on names of pods' ports.
fn view(cache: &Cache, service: &Arc<Service>, refused: Vec<RefusedIp>) -> (ServiceView, bool) {
    let mut by_name = false;
    let mut service = Arc::clone(service);
    if !refused.is_empty() {
        let is_taken = |(index, _): &(usize, IpAddr)| refused.iter().all(|it| it.index != *index);
        let listed = service.external_ips.iter().copied().enumerate();
        let taken = listed.filter(is_taken).map(|(_, address)| address).collect();
        Arc::make_mut(&mut service).external_ips = taken;
    }
    // Clients of a headless service open the pods' own addresses: nothing translates the port, whatever its target.
    let is_headless = [&service.cluster_ips, &service.external_ips, &service.load_balancer_ips]
        .iter()
        .all(|addresses| addresses.is_empty());
    let slices: Vec<&Arc<EndpointSlice>> = cache.slices_of(&service.key).collect();
    let excess = Some(endpoints(&service, &slices)).filter(|count| *count > MAX_ENDPOINTS);
    if excess.is_some() {
        let endpoints = vec![Vec::new(); service.ports.len()];
        return (ServiceView { service, endpoints, refused, excess }, false);
    }
    let endpoints = service.ports.iter().map(|port| {
        let mut list = BTreeMap::new();
        for slice in &slices {
            let Some(target) = slice_target(slice, port) else { continue };
            for endpoint in slice.endpoints.iter() {
                let Some(ready) = readiness(endpoint) else { continue };
                for address in endpoint.addresses.iter() {
                    let number = match &target {
                        _ if is_headless => Some(port.port),
                        TargetPort::Number(number) => Some(*number),
                        TargetPort::Name(name) => {
                            by_name = true;
                            named(cache, &service.key.namespace, *address, name, port.protocol)
                        }
                    };
                    let Some(number) = number else { continue };
                    // Two slices may list an endpoint while it moves between them.
                    let topology = &endpoint.topology;
                    let known = list.entry((*address, number));
                    let known = known.or_insert_with(|| (false, Arc::clone(topology)));
                    known.0 |= ready;
                    if known.1 != *topology {
                        known.1 = Arc::new(topology.or(&known.1));
                    }
                }
            }
        }
        let endpoint = |((address, port), (ready, topology))| ServiceEndpoint {
            address,
            port,
            ready,
            topology,
        };
        list.into_iter().map(endpoint).collect()
    });
    let endpoints = endpoints.collect();
    (ServiceView { service, endpoints, refused, excess }, by_name)
}

/// Number of endpoints of a service over all its ports, those that slices list twice counted twice.
fn endpoints(service: &Service, slices: &[&Arc<EndpointSlice>]) -> usize {
    let sizes: Vec<(&EndpointSlice, usize)> = slices
        .iter()
        .map(|slice| (&***slice, slice.endpoints.iter().map(|it| it.addresses.len()).sum()))
        .collect();
    let of_port = |port| {
        let lead = sizes.iter().filter(move |(slice, _)| slice_target(slice, port).is_some());
        lead.map(|(_, size)| size).sum::<usize>()
    };
    service.ports.iter().map(of_port).sum()
}

/// Returns `true` for an endpoint that takes new connections, `false` for one used only if no other
/// is left, `None` for others.
fn readiness(endpoint: &Endpoint) -> Option<bool> {
    match (endpoint.ready, endpoint.serving && endpoint.terminating) {
        (true, _) => Some(true),
        (false, true) => Some(false),
        (false, false) => None,
    }
}

/// The port of a service at the endpoints of a slice: the slice's port of the same name
/// and protocol. A slice without any ports leaves it to the service.
fn slice_target(slice: &EndpointSlice, port: &ServicePort) -> Option<TargetPort> {
    if slice.ports.is_empty() {
        return Some(port.target.clone());
    }
    let same =
        |it: &&crate::model::EndpointPort| it.name == port.name && it.protocol == port.protocol;
    let found = slice.ports.iter().find(same)?;
    Some(found.port.map_or_else(|| port.target.clone(), TargetPort::Number))
}

/// The number that a port's name stands for at the pod of the namespace with this address.
fn named(
    cache: &Cache,
    namespace: &str,
    address: IpAddr,
    name: &str,
    protocol: Protocol,
) -> Option<u16> {
    let pods = &cache.namespaces().get(namespace)?.pods;
    let mut at_address = pods.values().filter(|pod| cache.addresses_of(pod).contains(&address));
    at_address.find_map(|pod| pod.named_port(name, protocol))
}
