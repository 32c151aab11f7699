//! The connections that a question is about.
//!
//! A question about two pods is one about every family that both have; a question about a
//! service is one about every ready endpoint. All of them must be allowed.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use control::model::{Endpoint as Backend, Pod, Service, ServicePort, TargetPort};

use super::answer::reason;
use super::cluster::{Connection, End};
use super::world::{Spot, World};
use super::{Answer, Endpoint, Port, Protocol};

/// Whether a connection may be opened from somewhere to somewhere.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// Who opens it.
    pub from: &'a Endpoint,
    /// Whom it is for.
    pub to: &'a Endpoint,
    /// The protocol.
    pub protocol: Protocol,
    /// The port; `None` for ICMP.
    pub port: Option<&'a Port>,
}

/// What has to be found out to answer a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Nothing.
    Settled(Answer),
    /// Whether all of these labelled connections may be opened; they may differ by this.
    Ask(&'static str, Vec<(String, Connection)>),
}

/// Plans how to answer a question.
pub fn plan(world: &World, question: &Question<'_>) -> Plan {
    connections(world, question).unwrap_or_else(Plan::Settled)
}

fn connections(world: &World, question: &Question<'_>) -> Result<Plan, Answer> {
    let from = ends(world, question.from)?;
    let asked_for = match question.to {
        Endpoint::Service(key) => {
            let service = world.service(key).ok_or_else(|| Answer::deny(reason::NO_ENDPOINTS))?;
            Some((service, service_port(question, service)?, Way::Cluster))
        }
        Endpoint::Address(address) => match world.service_at(*address) {
            Some(service) => {
                let is_cluster = service.cluster_ips.contains(address);
                let way = if is_cluster { Way::Cluster } else { Way::External };
                Some((service, service_port(question, service)?, way))
            }
            None => match world.owner(*address) {
                Spot::Node(node) => node_port(world, question, node),
                _ => None,
            },
        },
        Endpoint::Node(name) => node_port(world, question, Arc::clone(name)),
        Endpoint::Pod(_) => None,
    };
    let Some((service, port, way)) = asked_for else { return directly(world, question, &from) };
    let is_wanted = |other: IpAddr| match question.to {
        Endpoint::Address(address) => other.is_ipv4() == address.is_ipv4(),
        Endpoint::Node(name) => {
            let addresses = world.node(name).map_or(&[][..], |node| &node.addresses);
            addresses.iter().any(|own| own.is_ipv4() == other.is_ipv4())
        }
        _ => true,
    };
    backends(world, question, &from, &Asked { service, port, way }, is_wanted)
}

/// A port of a service, and how the client gets to it.
struct Asked<'a> {
    service: &'a Service,
    port: &'a ServicePort,
    way: Way,
}

/// How a client gets to a service.
enum Way {
    /// By its cluster address, or by name.
    Cluster,
    /// By an external address, or a load balancer's: at whichever cluster node has endpoints.
    External,
    /// At a port of this cluster node.
    Node(Arc<str>),
}

/// The service that the port asked for leads to at a cluster node's addresses.
fn node_port<'a>(
    world: &'a World,
    question: &Question<'_>,
    node: Arc<str>,
) -> Option<(&'a Service, &'a ServicePort, Way)> {
    let Some(Port::Number(number)) = question.port else { return None };
    let (service, port) = world.node_port(question.protocol.with_ports()?, *number)?;
    Some((service, port, Way::Node(node)))
}

fn directly(world: &World, question: &Question<'_>, from: &[End]) -> Result<Plan, Answer> {
    let to = ends(world, question.to)?;
    let (protocol, port) = (question.protocol, target_port(world, question, &to)?);
    let mut asked = Vec::new();
    for to in to {
        let v4 = to.address.is_ipv4();
        if let Some(from) = from.iter().find(|from| from.address.is_ipv4() == v4).cloned() {
            let family = if v4 { "IPv4" } else { "IPv6" };
            asked.push((family.to_owned(), Connection { from, to, protocol, port }));
        }
    }
    match asked.is_empty() {
        true => Err(Answer::deny(reason::NO_COMMON_FAMILY)),
        false => Ok(Plan::Ask("families-differ", asked)),
    }
}

/// Where an endpoint is: one end for each family, its first address.
fn ends(world: &World, endpoint: &Endpoint) -> Result<Vec<End>, Answer> {
    let closed = || Answer::deny(dataplane::Outcome::Closed.name());
    match endpoint {
        Endpoint::Address(address) => {
            Ok(vec![End { spot: world.owner(*address), address: *address }])
        }
        Endpoint::Node(name) => {
            let node = world.node(name).ok_or_else(closed)?;
            Ok(one_a_family(&Spot::Node(Arc::clone(name)), &node.addresses))
        }
        Endpoint::Pod(key) => {
            let pod = world.pod(key).ok_or_else(closed)?;
            if pod.finished {
                return Err(Answer::deny(reason::POD_FINISHED));
            }
            if pod.host_network {
                return host_network_ends(world, pod).ok_or_else(closed);
            }
            Ok(one_a_family(&Spot::Pod(key.clone()), &pod.addresses))
        }
        Endpoint::Service(_) => Err(closed()),
    }
}

/// A host-network pod behaves as its cluster node does, with those of the node's addresses that
/// are the pod's too, where there are any.
fn host_network_ends(world: &World, pod: &Pod) -> Option<Vec<End>> {
    let node = world.node(pod.node.as_ref()?)?;
    let common: Vec<IpAddr> =
        pod.addresses.iter().filter(|it| node.addresses.contains(it)).copied().collect();
    let addresses = if common.is_empty() { &node.addresses } else { &common };
    Some(one_a_family(&Spot::Node(Arc::clone(&node.name)), addresses))
}

fn one_a_family(spot: &Spot, addresses: &[IpAddr]) -> Vec<End> {
    let first = |v4: bool| addresses.iter().find(|address| address.is_ipv4() == v4);
    let found = [true, false].into_iter().filter_map(first);
    found.map(|address| End { spot: spot.clone(), address: *address }).collect()
}

/// The port's number at the target. A name is looked up among the target pod's container
/// ports; 0 stands for the port that ICMP has not.
fn target_port(world: &World, question: &Question<'_>, to: &[End]) -> Result<u16, Answer> {
    let (Some(protocol), Some(port)) = (question.protocol.with_ports(), question.port) else {
        return Ok(0);
    };
    let name = match port {
        Port::Number(number) => return Ok(*number),
        Port::Name(name) => name,
    };
    let pod = match (question.to, to) {
        (Endpoint::Pod(key), _) | (_, [End { spot: Spot::Pod(key), .. }, ..]) => world.pod(key),
        _ => None,
    };
    let number = pod.and_then(|pod| pod.named_port(name, protocol));
    number.ok_or_else(|| Answer::deny(reason::UNKNOWN_PORT_NAME))
}

/// The endpoints that are ready; where none is, those that still serve while they end.
fn backends(
    world: &World,
    question: &Question<'_>,
    from: &[End],
    asked_for: &Asked<'_>,
    is_wanted: impl Fn(IpAddr) -> bool,
) -> Result<Plan, Answer> {
    let ready = |it: &Backend| it.ready;
    let ending = |it: &Backend| it.serving && it.terminating;
    backends_that(world, question, from, asked_for, &is_wanted, ready)
        .or_else(|| backends_that(world, question, from, asked_for, &is_wanted, ending))
        .unwrap_or_else(|| Err(Answer::deny(reason::NO_ENDPOINTS)))
}

/// `None` if there are none of this kind.
fn backends_that(
    world: &World,
    question: &Question<'_>,
    from: &[End],
    Asked { service, port, way }: &Asked<'_>,
    is_wanted: impl Fn(IpAddr) -> bool,
    counts: impl Fn(&Backend) -> bool,
) -> Option<Result<Plan, Answer>> {
    let (mut asked, mut seen, mut found) = (Vec::new(), HashSet::new(), false);
    for slice in world.slices(&service.key) {
        let Some(target) = control::slice_target(slice, port) else { continue };
        for endpoint in slice.endpoints.iter().filter(|it| counts(it)) {
            // The addresses of one endpoint all mean the same; the API wants the first used.
            let Some(address) = endpoint.addresses.first().copied().filter(|it| is_wanted(*it))
            else {
                continue;
            };
            let is_outside = from.iter().all(|end| end.spot == Spot::Elsewhere);
            let node = || endpoint.node.as_ref().or_else(|| world.node_of(address));
            let may_be = match way {
                Way::Cluster if service.internal_local => is_near(world, from, node()),
                Way::Node(asked) if service.external_local && is_outside => node() == Some(asked),
                Way::Cluster | Way::External | Way::Node(_) => true,
            };
            if !may_be {
                continue;
            }
            let to = End { spot: world.owner(address), address };
            // A pod without a port of that name is no endpoint for it.
            let Some(port) = number_at(world, &to, &target, port) else { continue };
            found = true;
            let family = |end: &&End| end.address.is_ipv4() == address.is_ipv4();
            let Some(from) = from.iter().find(family).cloned() else { continue };
            if seen.insert((address, port)) {
                let label = match &to.spot {
                    Spot::Pod(key) => key.to_string(),
                    _ => address.to_string(),
                };
                let protocol = question.protocol;
                asked.push((label, Connection { from, to, protocol, port }));
            }
        }
    }
    found.then(|| match asked.is_empty() {
        true => Err(Answer::deny(reason::NO_COMMON_FAMILY)),
        false => Ok(Plan::Ask("backends-differ", asked)),
    })
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

fn number_at(
    world: &World,
    end: &End,
    target: &TargetPort,
    service_port: &ServicePort,
) -> Option<u16> {
    match (target, &end.spot) {
        (TargetPort::Number(number), _) => Some(*number),
        (TargetPort::Name(name), Spot::Pod(key)) => {
            world.pod(key)?.named_port(name, service_port.protocol)
        }
        (TargetPort::Name(_), _) => None,
    }
}

/// Whether an endpoint on this cluster node is on the one that the connection comes from.
fn is_near(world: &World, from: &[End], there: Option<&Arc<str>>) -> bool {
    let here = from.iter().find(|end| end.spot != Spot::Elsewhere);
    let here = here.and_then(|end| world.node_of(end.address));
    here.is_none() || here == there
}
