//! Endpoints of services that manifests leave to the cluster.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use control::Object;
use control::model::{Addresses, Endpoint, EndpointSlice, Hints, Key, Pod, Topology};

/// Gives services with a selector and no endpoint slice the pods that they select, and endpoints
/// the nodes that they are on.
pub(super) fn complete(
    objects: &mut Vec<Object>,
    selectors: &BTreeMap<Key, BTreeMap<String, String>>,
) {
    let mut nodes: HashMap<IpAddr, Arc<str>> = HashMap::new();
    let mut node_addresses: HashMap<Arc<str>, Vec<IpAddr>> = HashMap::new();
    let mut pods: HashMap<Arc<str>, Vec<&Pod>> = HashMap::new();
    let mut have_slices = HashSet::new();
    for object in objects.iter() {
        match object {
            Object::Pod(pod) if !pod.finished => {
                let node = pod.node.iter().cloned();
                nodes.extend(pod.addresses.iter().copied().zip(node.cycle()));
                pods.entry(Arc::clone(&pod.key.namespace)).or_default().push(pod);
            }
            Object::Node(node) => {
                node_addresses.insert(Arc::clone(&node.name), node.addresses.clone());
            }
            Object::EndpointSlice(slice) => {
                have_slices.extend(slice.service.iter().map(|name| Key {
                    namespace: Arc::clone(&slice.key.namespace),
                    name: Arc::clone(name),
                }));
            }
            _ => {}
        }
    }
    let mut slices = Vec::new();
    for (service, selector) in selectors.iter().filter(|(key, _)| !have_slices.contains(*key)) {
        let selects =
            |pod: &&&Pod| selector.iter().all(|(key, value)| pod.labels.value(key) == Some(value));
        let selected = pods.get(&service.namespace).into_iter().flatten().filter(selects);
        let endpoints = selected.flat_map(|pod| {
            let of_node = pod.node.as_ref().and_then(|node| node_addresses.get(node));
            let own = Some(&pod.addresses[..]).filter(|own| !own.is_empty());
            let of_node = of_node.filter(|_| pod.host_network).map(Vec::as_slice);
            let addresses = own.or(of_node).unwrap_or_default();
            [true, false].into_iter().filter_map(|v4| {
                let address = addresses.iter().find(|address| address.is_ipv4() == v4)?;
                Some(Endpoint {
                    addresses: Addresses::One(*address),
                    ready: true,
                    serving: true,
                    terminating: false,
                    topology: Topology { node: pod.node.clone(), hints: Hints::default() }.into(),
                })
            })
        });
        let slice = EndpointSlice {
            // No object can have this name.
            key: Key { name: format!("({})", service.name).into(), ..service.clone() },
            service: Some(Arc::clone(&service.name)),
            endpoints: endpoints.collect(),
            ports: Vec::new(),
        };
        slices.push(Object::EndpointSlice(slice.into()));
    }
    for object in objects.iter_mut() {
        let Object::EndpointSlice(slice) = object else { continue };
        if slice.endpoints.iter().all(|it| it.topology.node.is_some()) {
            continue;
        }
        let endpoints = Arc::make_mut(&mut Arc::make_mut(slice).endpoints).iter_mut();
        for endpoint in endpoints.filter(|it| it.topology.node.is_none()) {
            let node = endpoint.addresses.iter().find_map(|it| nodes.get(it)).cloned();
            Arc::make_mut(&mut endpoint.topology).node = node;
        }
    }
    objects.extend(slices);
}
