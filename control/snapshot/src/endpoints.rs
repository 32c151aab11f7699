//! The endpoints that each port of a service uses on a node.

use std::net::IpAddr;
use std::sync::Arc;

use control::{ServiceEndpoint, ServiceView};
use dataplane::services::{Backend, Backends, ServicePort};

/// A port of a service for IPv4 and for IPv6.
pub(crate) type Families = [Arc<ServicePort>; 2];

/// The ports of a service on node `node` in `zone`.
pub(crate) fn ports(view: &ServiceView, node: &str, zone: Option<&str>) -> Vec<Families> {
    let service = &view.service;
    let ports = service.ports.iter().zip(&view.endpoints);
    ports
        .map(|(port, endpoints)| {
            let name: Arc<str> = match &*port.name {
                "" => format!("{}/{}:{}", service.key.namespace, service.key.name, port.port),
                name => format!("{}/{}:{name}", service.key.namespace, service.key.name),
            }
            .into();
            [false, true].map(|v6| {
                let of_family = |it: &&ServiceEndpoint| it.address.is_ipv6() == v6;
                let all: Vec<_> = endpoints.iter().filter(of_family).collect();
                let local = |it: &&&ServiceEndpoint| it.topology.node.as_deref() == Some(node);
                let local: Vec<_> = all.iter().filter(local).copied().collect();
                let any = usable(&hinted(&all, node, zone));
                let choice = |local_only| if local_only { usable(&local) } else { any.clone() };
                Arc::new(ServicePort {
                    name: Arc::clone(&name),
                    internal: choice(service.internal_local),
                    external: choice(service.external_local),
                    any: any.clone(),
                    affinity_s: service.affinity_seconds,
                })
            })
        })
        .collect()
}

/// The endpoints of a service in the whole cluster that this node uses, as kube-proxy
/// chooses them: if every ready endpoint has a hint for nodes, those for this one; else if
/// every one has a hint for zones, those for this zone; all of them if these are none.
fn hinted<'e>(
    endpoints: &[&'e ServiceEndpoint],
    node: &str,
    zone: Option<&str>,
) -> Vec<&'e ServiceEndpoint> {
    let ready: Vec<_> = endpoints.iter().copied().filter(|it| it.ready).collect();
    let has = |names: &[Arc<str>], wanted: &str| names.iter().any(|name| **name == *wanted);
    let nodes = |it: &'e ServiceEndpoint| &it.topology.hints.nodes[..];
    let zones = |it: &'e ServiceEndpoint| &it.topology.hints.zones[..];
    let by_node = ready.iter().all(|it| !nodes(it).is_empty());
    let by_zone = ready.iter().all(|it| !zones(it).is_empty());
    let of_node = ready.iter().copied().filter(|it| by_node && has(nodes(it), node));
    let of_node: Vec<_> = of_node.collect();
    if !of_node.is_empty() {
        return of_node;
    }
    let of_zone = ready.iter().copied();
    let of_zone = of_zone.filter(|it| by_zone && zone.is_some_and(|zone| has(zones(it), zone)));
    let of_zone: Vec<_> = of_zone.collect();
    if of_zone.is_empty() { endpoints.to_vec() } else { of_zone }
}

/// Ready endpoints; if there are none, terminating ones that still serve.
fn usable(endpoints: &[&ServiceEndpoint]) -> Backends {
    let any_ready = endpoints.iter().any(|endpoint| endpoint.ready);
    let chosen = endpoints.iter().filter(|endpoint| endpoint.ready || !any_ready);
    let backend =
        |it: &&ServiceEndpoint| Backend { address: IpAddr::into(it.address), port: it.port };
    Backends::new(chosen.map(backend).collect())
}
