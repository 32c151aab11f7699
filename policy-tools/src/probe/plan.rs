//! The connections that a question is about.
//!
//! A question about two pods is one about every family that both have. The service node of the
//! graph finds the endpoints of a service; only those of a service without an address, which its
//! name stands for in DNS, are listed here. All connections must be allowed.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use control::ServiceView;
use control::model::{Key, Pod, Service, ServicePort};

use super::answer::reason;
use super::cluster::{Connection, End};
use super::world::{Location, World};
use super::{Answer, Endpoint, Port, Protocol};

/// The question whether a connection may be opened.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The end that opens it.
    pub from: &'a Endpoint,
    /// The end that it is opened to.
    pub to: &'a Endpoint,
    /// The protocol.
    pub protocol: Protocol,
    /// The port; `None` for ICMP.
    pub port: Option<&'a Port>,
}

type Services = BTreeMap<Key, Arc<ServiceView>>;

/// The connections that answer a question together, one for each family or endpoint.
///
/// # Errors
/// The answer, where no connection is needed to find it.
pub fn plan(
    world: &World,
    services: &Services,
    question: &Question<'_>,
) -> Result<Vec<Connection>, Answer> {
    if let Endpoint::Service(key) = question.to
        && let Some(to) = world.external_name(key)
    {
        return external(world, services, question, &to);
    }
    let from = ends(world, question.from)?;
    let destinations = match question.to {
        Endpoint::Service(key) => service(world, services, question, key, &from)?,
        Endpoint::Address(address) => at_address(world, question, *address)?,
        Endpoint::Name(name) => {
            let addresses = world.addresses_of(name);
            let each = addresses.map(|it| at_address(world, question, it));
            each.collect::<Result<Vec<_>, _>>()?.concat()
        }
        Endpoint::Pod(_) | Endpoint::Node(_) => {
            let to = ends(world, question.to)?;
            let ports = target_ports(world, question, &to)?;
            let each = to.iter().flat_map(|end| ports.iter().map(|port| (end.address, *port)));
            each.collect()
        }
    };
    let connection = |(to, port): (IpAddr, u16)| {
        let from = from.iter().find(|from| from.address.is_ipv4() == to.is_ipv4())?.clone();
        Some(Connection { from, to, protocol: question.protocol, port, entry: None, backend: 0 })
    };
    let mut connections: Vec<Connection> =
        destinations.into_iter().filter_map(connection).collect();
    let could_be = |it: &Connection| world.could_have(it.from.address) || world.could_have(it.to);
    if !connections.iter().all(could_be) {
        connections.retain(|it| !could_be(it));
    }
    match connections.is_empty() {
        true => Err(Answer::deny(reason::NO_COMMON_FAMILY)),
        false => Ok(connections),
    }
}

/// The connections to what a service of type ExternalName leads to.
fn external(
    world: &World,
    services: &Services,
    question: &Question<'_>,
    to: &Endpoint,
) -> Result<Vec<Connection>, Answer> {
    let has_end = match to {
        Endpoint::Name(name) => world.addresses_of(name).next().is_some(),
        Endpoint::Service(key) => {
            world.service(key).is_some() && world.external_name(key).is_none()
        }
        _ => false,
    };
    if has_end {
        plan(world, services, &Question { to, ..*question })
    } else {
        Err(Answer::leads_to(to))
    }
}

/// An address with the ports that are meant there.
fn at_address(
    world: &World,
    question: &Question<'_>,
    address: IpAddr,
) -> Result<Vec<(IpAddr, u16)>, Answer> {
    let ports = match world.service_at(address) {
        Some(service) => vec![service_port(question, service)?.port],
        None => {
            target_ports(world, question, &[End { location: world.location(address), address }])?
        }
    };
    Ok(ports.into_iter().map(|port| (address, port)).collect())
}

/// The addresses and port that a service's name stands for.
fn service(
    world: &World,
    services: &Services,
    question: &Question<'_>,
    key: &Key,
    from: &[End],
) -> Result<Vec<(IpAddr, u16)>, Answer> {
    let none = || Answer::deny(reason::NO_ENDPOINT);
    let service = world.service(key).ok_or_else(none)?;
    let port = service_port(question, service)?;
    let outside = from.iter().all(|end| end.location == Location::Outside);
    let external = service.external_ips.iter().chain(&service.load_balancer_ips);
    let external: Vec<IpAddr> = external.filter(|_| outside).copied().collect();
    let addresses = if external.is_empty() { &service.cluster_ips } else { &external };
    if !addresses.is_empty() {
        return Ok(addresses.iter().map(|address| (*address, port.port)).collect());
    }
    let at = service.ports.iter().position(|it| it == port);
    let listed = services.get(key).and_then(|view| view.endpoints.get(at?)).ok_or_else(none)?;
    let any_ready = listed.iter().any(|endpoint| endpoint.ready);
    let usable = listed.iter().filter(|endpoint| endpoint.ready || !any_ready);
    let endpoints: Vec<(IpAddr, u16)> = usable.map(|it| (it.address, it.port)).collect();
    if endpoints.is_empty() { Err(none()) } else { Ok(endpoints) }
}

/// Returns the ends of an endpoint: its first address of each family.
fn ends(world: &World, endpoint: &Endpoint) -> Result<Vec<End>, Answer> {
    let closed = || Answer::deny(dataplane::Outcome::Closed.name());
    match endpoint {
        Endpoint::Address(address) => {
            Ok(vec![End { location: world.location(*address), address: *address }])
        }
        Endpoint::Node(name) => {
            let node = world.node(name).ok_or_else(closed)?;
            Ok(one_a_family(&Location::Node(Arc::clone(name)), &node.addresses))
        }
        Endpoint::Pod(key) => {
            let pod = world.pod(key).ok_or_else(closed)?;
            if pod.finished {
                return Err(Answer::deny(reason::POD_FINISHED));
            }
            if pod.host_network {
                return host_network_ends(world, pod).ok_or_else(closed);
            }
            Ok(one_a_family(&Location::Pod(key.clone()), &pod.addresses))
        }
        Endpoint::Service(_) | Endpoint::Name(_) => Err(closed()),
    }
}

/// A host-network pod behaves as its node does, with those of the node's addresses that
/// are the pod's too, where there are any.
fn host_network_ends(world: &World, pod: &Pod) -> Option<Vec<End>> {
    let node = world.node(pod.node.as_ref()?)?;
    let common: Vec<IpAddr> =
        pod.addresses.iter().filter(|it| node.addresses.contains(it)).copied().collect();
    let addresses = if common.is_empty() { &node.addresses } else { &common };
    Some(one_a_family(&Location::Node(Arc::clone(&node.name)), addresses))
}

fn one_a_family(location: &Location, addresses: &[IpAddr]) -> Vec<End> {
    let first = |v4: bool| addresses.iter().find(|address| address.is_ipv4() == v4);
    let found = [true, false].into_iter().filter_map(first);
    found.map(|address| End { location: location.clone(), address: *address }).collect()
}

/// Returns the port's numbers at the target. A name means each number that a container of the target pod gives it;
/// ICMP has port 0.
fn target_ports(world: &World, question: &Question<'_>, to: &[End]) -> Result<Vec<u16>, Answer> {
    let (Some(protocol), Some(port)) = (question.protocol.with_ports(), question.port) else {
        return Ok(vec![0]);
    };
    let name = match port {
        Port::Number(number) => return Ok(vec![*number]),
        Port::Name(name) => name,
    };
    let pod = match (question.to, to) {
        (Endpoint::Pod(key), _) | (_, [End { location: Location::Pod(key), .. }, ..]) => {
            world.pod(key)
        }
        _ => None,
    };
    let numbers: Vec<u16> = pod.iter().flat_map(|pod| pod.named_ports(name, protocol)).collect();
    if numbers.is_empty() { Err(Answer::deny(reason::UNKNOWN_PORT_NAME)) } else { Ok(numbers) }
}

fn service_port<'a>(
    question: &Question<'_>,
    service: &'a Service,
) -> Result<&'a ServicePort, Answer> {
    // Services have no port for ICMP.
    let unknown = Answer::deny(reason::UNKNOWN_PORT);
    let (Some(protocol), Some(port)) = (question.protocol.with_ports(), question.port) else {
        return Err(unknown);
    };
    let mut ports = service.ports.iter().filter(|it| it.protocol == protocol);
    match port {
        Port::Number(number) => ports.find(|it| it.port == *number).ok_or(unknown),
        Port::Name(name) => {
            ports.find(|it| it.name == *name).ok_or_else(|| Answer::deny(reason::UNKNOWN_PORT_NAME))
        }
    }
}
