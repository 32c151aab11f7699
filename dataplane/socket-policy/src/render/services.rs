//! Services, from the namespace that has fewest on.

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ahash::RandomState;
use session_rules::{Service, Services, Transport};

use super::{Overflow, Rendered};
use crate::layout::{Endpoint, Piece, ServiceKey, UNKNOWN, bytes, number};
use crate::limits::Limits;

/// The addresses of a service's destination at a port.
type Found<'s> = (Vec<IpAddr>, SocketAddr, Transport, &'s Service);

pub(super) fn add(rendered: &mut Rendered, services: &Services, node: &[IpAddr], limits: &Limits) {
    let mut by_namespace: BTreeMap<&Arc<str>, Vec<Found<'_>>> = BTreeMap::new();
    for (at, transport, service) in services.iter() {
        let of_family = |it: &&IpAddr| it.is_ipv4() == at.is_ipv4();
        let mut addresses = vec![at.ip()];
        if at.ip().is_unspecified() {
            addresses = node.iter().filter(of_family).copied().collect();
        }
        // A service that names the address comes first.
        addresses.retain(|address| {
            let named = (*address, at.port()).into();
            *address == at.ip() || services.find(named, transport, || false).is_none()
        });
        by_namespace.entry(&service.owner).or_default().push((addresses, at, transport, service));
    }
    // Each needs an entry for an address and transport at least, by which it is closed.
    let needed = |all: &[Found<'_>]| closed(all).len();
    let mut left = limits.services as usize;
    let kept: usize = by_namespace.values().map(|all| needed(all)).sum();
    left = left.saturating_sub(kept);
    let mut ordered: Vec<_> = by_namespace.into_iter().collect();
    ordered.sort_by_key(|(_, all)| {
        all.iter()
            .map(|(addresses, .., service)| addresses.len() + service.endpoints.len())
            .sum::<usize>()
    });
    for (namespace, mut all) in ordered {
        let keys: usize = all.iter().map(|(addresses, ..)| addresses.len()).sum();
        let endpoints: usize = all.iter().map(|(.., service)| service.endpoints.len()).sum();
        let kept = needed(&all);
        let has_room = keys <= left + kept
            && rendered.endpoints.len() + endpoints <= limits.endpoints as usize;
        if !has_room {
            let room = left + kept;
            rendered.services.extend(closed(&all).into_iter().take(room));
            rendered.closed.push(Overflow::Namespace(Arc::clone(namespace)));
            continue;
        }
        left = (left + kept).saturating_sub(keys);
        all.sort_unstable_by_key(|(_, at, transport, _)| (*at, *transport));
        for (addresses, at, transport, service) in all {
            let first = rendered.endpoints.len() as u32;
            rendered.endpoints.extend(service.endpoints.iter().map(|it| endpoint(*it)));
            let piece = Piece { first, count: service.endpoints.len() as u32 };
            let keys = addresses.iter().map(|address| (key(*address, at.port(), transport), piece));
            rendered.services.extend(keys);
        }
    }
}

/// Entries that close every port of the services' addresses. Node ports are closed one by one: the
/// others are those of other services and of the node.
fn closed(all: &[Found<'_>]) -> HashSet<(ServiceKey, Piece), RandomState> {
    let unknown = Piece { first: 0, count: UNKNOWN };
    let keys = all.iter().flat_map(|(addresses, at, transport, _)| {
        let port = if at.ip().is_unspecified() { at.port() } else { 0 };
        addresses.iter().map(move |address| (key(*address, port, *transport), unknown))
    });
    keys.collect()
}

fn key(address: IpAddr, port: u16, transport: Transport) -> ServiceKey {
    let (family, address) = bytes(address);
    let (transport, port) = (number(transport), port.to_be_bytes());
    ServiceKey { family, transport, port, address, ..ServiceKey::default() }
}

fn endpoint(at: SocketAddr) -> Endpoint {
    let (family, address) = bytes(at.ip());
    Endpoint { address, port: at.port().to_be_bytes(), family, zero: [0; 5] }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::super::render;
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// The addresses and ports of entries, and whether their endpoints are known.
    fn entries(rendered: &Rendered) -> Vec<(IpAddr, u16, bool)> {
        let entry = |(key, piece): &(ServiceKey, Piece)| {
            let [a, b, c, d, ..] = key.address;
            ([a, b, c, d].into(), u16::from_be_bytes(key.port), piece.count != UNKNOWN)
        };
        let mut found: Vec<_> = rendered.services.iter().map(entry).collect();
        found.sort_unstable();
        found
    }

    #[test]
    fn ports_of_the_node_are_services_at_its_addresses() {
        let mut services = Services::default();
        let endpoints = vec![at("10.1.0.2:8080")];
        let service = Service { endpoints, ..Service::default() };
        for to in ["0.0.0.0:30080", "10.96.0.1:80", "192.0.2.1:30080"] {
            services.set(at(to), Transport::Tcp, Some(service.clone()));
        }
        let node = ["192.0.2.1", "192.0.2.2", "2001:db8::1"].map(|it| it.parse().unwrap());
        let rendered = render(&[], &[], &services, &node, &HashMap::new(), &Limits::default());
        let wanted = [("10.96.0.1", 80), ("192.0.2.1", 30080), ("192.0.2.2", 30080)];
        let wanted = wanted.map(|(address, port)| (address.parse().unwrap(), port, true));
        assert_eq!(entries(&rendered), wanted);
    }

    /// Services of a namespace at addresses of 10.96.N.0/24, each with so many ports and endpoints
    /// a port.
    fn many(services: &mut Services, owner: &str, n: u8, counts: (u8, u16, u16)) {
        let (addresses, ports, endpoints) = counts;
        for (address, port) in (0..addresses).flat_map(|it| (0..ports).map(move |port| (it, port)))
        {
            let endpoints = (0..endpoints).map(|it| SocketAddr::from(([10, 1, 0, 1], it)));
            let service = Service {
                owner: owner.into(),
                endpoints: endpoints.collect(),
                ..Service::default()
            };
            let to = SocketAddr::from(([10, 96, n, address], 1 + port));
            services.set(to, Transport::Tcp, Some(service));
        }
    }

    #[test]
    fn services_that_find_no_room_are_closed_with_their_namespace_and_no_others() {
        let limits = Limits { services: 200, endpoints: 1_000, ..Limits::default() };
        let mut services = Services::default();
        many(&mut services, "few", 1, (2, 5, 10));
        many(&mut services, "ports", 2, (1, 300, 0));
        many(&mut services, "endpoints", 3, (2, 1, 600));
        many(&mut services, "some", 4, (10, 1, 80));
        let node = ["192.0.2.1".parse().unwrap()];
        let owned = Service { owner: "ports".into(), ..Service::default() };
        services.set(at("0.0.0.0:30080"), Transport::Tcp, Some(owned));
        let rendered = render(&[], &[], &services, &node, &HashMap::new(), &limits);
        let closed = ["endpoints", "ports"].map(|it| Overflow::Namespace(it.into()));
        assert_eq!(rendered.closed, closed);
        assert!(rendered.services.len() <= 200 && rendered.endpoints.len() <= 1_000);
        let entries = entries(&rendered);
        let known = entries.iter().filter(|(.., is_known)| *is_known).count();
        assert_eq!(known, 10 + 10);
        let wanted = [("10.96.2.0", 0), ("10.96.3.0", 0), ("10.96.3.1", 0), ("192.0.2.1", 30080)];
        let wanted = wanted.map(|(address, port)| (address.parse().unwrap(), port, false));
        let unknown = entries.into_iter().filter(|(.., is_known)| !is_known);
        assert_eq!(unknown.collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn ten_thousand_services_with_150_000_endpoints_fit() {
        let mut services = Services::default();
        for n in 0..40 {
            many(&mut services, &format!("n{n}"), n, (250, 1, 15));
        }
        let rendered = render(&[], &[], &services, &[], &HashMap::new(), &Limits::default());
        assert_eq!((rendered.services.len(), rendered.endpoints.len()), (10_000, 150_000));
        assert!(rendered.closed.is_empty());
    }
}
