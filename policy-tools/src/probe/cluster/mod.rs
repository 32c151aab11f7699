//! All nodes of the manifests, each with a switch, and the packets between them.
//!
//! Every switch has the snapshot that a running one would have: tables, services, and the other
//! nodes, so that it knows which clients are outside. What leaves by an uplink enters the
//! node that has the destination, as a router would deliver it.

mod services;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use control::model::Direction;
use control::{PodKey, View};
use dataplane::wire::{self, Flow};
use dataplane::{Outcome, Peer, PortId, Routes, SWITCH_MAC, Underlay};
use ipnet::IpNet;
use snapshot::{NodeContext, NodePort, ServiceMaker};

use super::answer::{Passage, Reply, distinct, drop_default, reason};
use super::host::{self, HostDecision};
use super::opening::Opening;
use super::switch::{self, BATCH, HOST, Step, Switch, UPLINK};
use super::world::{Location, World};
use super::{Answer, ProbeVerdict, Protocol};

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// Its location.
    pub location: Location,
    /// The address it uses.
    pub address: IpAddr,
}

/// A connection in question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The end that opens it.
    pub from: End,
    /// The address it is opened to, of the same family: an end's or a service's.
    pub to: IpAddr,
    /// The protocol.
    pub protocol: Protocol,
    /// The port at that address; ignored for ICMP.
    pub port: u16,
    /// The node whose uplink the packet enters by, where it comes from outside.
    pub entry: Option<Arc<str>>,
    /// The endpoint that a service chooses, by its place in the list that it chooses from.
    pub backend: usize,
}

/// The switches of all nodes.
pub struct Cluster {
    view: Arc<View>,
    routes: Arc<Routes>,
    sites: Vec<Site>,
    nodes: HashMap<Arc<str>, usize>,
    pods: HashMap<PodKey, (usize, PortId)>,
    /// That of the last snapshot.
    generation: u64,
    source_port: u16,
}

/// One node.
struct Site {
    name: Arc<str>,
    ports: Vec<NodePort>,
    /// Made with the first packet that comes here.
    switch: Option<Switch>,
    /// Makes the services, and what the kernel redirects to the switch for its own processes.
    services: ServiceMaker,
}

/// A connection in question that a switch gave no verdict about.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("node {node}: the switch gave no verdict about a connection from {from} to {to}")]
pub struct Unended {
    /// The node.
    pub node: Arc<str>,
    /// The address that opens it.
    pub from: IpAddr,
    /// The address it is opened to.
    pub to: IpAddr,
}

/// Source ports that openings take turns with (RFC 6335, section 6: the dynamic ports).
const SOURCE_PORTS: std::ops::RangeInclusive<u16> = 49_152..=u16::MAX;
/// Connections under way together, fewer than there are source ports: each has one of its own, and by it a flow.
const UNDER_WAY: usize = 8_192;

impl Cluster {
    /// A switch for every node that `view` knows or has a pod on.
    ///
    /// # Errors
    /// Fails if there are more pods on a node than a switch has ports.
    pub fn new(view: Arc<View>) -> Result<Self, String> {
        let mut nodes: HashMap<Arc<str>, usize> = HashMap::new();
        let mut pods_of: Vec<Vec<(&PodKey, Vec<IpAddr>)>> = Vec::new();
        let mut names: Vec<Arc<str>> = Vec::new();
        for name in view.nodes.keys().chain(view.pods.values().map(|pod| &pod.node)) {
            if !nodes.contains_key(name) {
                nodes.insert(Arc::clone(name), names.len());
                names.push(Arc::clone(name));
                pods_of.push(Vec::new());
            }
        }
        for (key, pod) in view.pods.iter() {
            pods_of[nodes[&pod.node]].push((key, pod.addresses.clone()));
        }
        let routes = Arc::new(routes(&view, &names, &pods_of));
        let (mut sites, mut pods) = (Vec::new(), HashMap::new());
        for (n, (name, on_it)) in names.into_iter().zip(pods_of).enumerate() {
            let keys: Vec<PodKey> = on_it.iter().map(|(key, _)| (*key).clone()).collect();
            let ports = switch::ports(on_it)
                .ok_or_else(|| format!("Node {name}: has more pods than a switch has ports"))?;
            let pod_ports =
                ports.iter().map(|port| port.id).filter(|id| ![HOST, UPLINK].contains(id));
            pods.extend(keys.into_iter().zip(pod_ports.map(|id| (n, id))));
            let services = ServiceMaker::with_own_processes();
            sites.push(Site { name, ports, switch: None, services });
        }
        let (generation, source_port) = (view.generation, *SOURCE_PORTS.start());
        Ok(Self { view, routes, sites, nodes, pods, generation, source_port })
    }

    fn node_of(&self, world: &World, address: IpAddr) -> Option<usize> {
        world.node_of(address).and_then(|name| self.nodes.get(name)).copied()
    }

    /// The switch of a node, with the services that these frames are for, each choosing one
    /// backend. The snapshot has no others: all of them, once for each node, would take too much memory.
    fn switch(&mut self, node: usize, backend: usize, frames: &[Vec<u8>]) -> &mut Switch {
        let parsed = frames.iter().filter_map(|frame| wire::parse(frame).ok());
        let flows: Vec<Flow> = parsed.map(|headers| headers.flow).collect();
        let services = self.services(node).narrowed(&flows, backend);
        let site = &mut self.sites[node];
        if site.switch.is_none() || !services.is_empty() {
            let node_context = NodeContext {
                services: Arc::new(services),
                routes: Arc::clone(&self.routes),
                // Its verdicts are those of tunnels too; packets on the uplink are the same as in
                // them.
                underlay: Underlay::Routed,
                link_local_destinations: vec![snapshot::METADATA_SERVICE.into()],
                ..NodeContext::default()
            };
            self.generation += 1;
            let generation = self.generation;
            let snapshot =
                snapshot::snapshot(&self.view, &site.name, node_context, generation, &site.ports);
            match &site.switch {
                Some(switch) => switch.publish(snapshot),
                None => site.switch = Some(Switch::new(snapshot, site.ports.len())),
            }
        }
        site.switch.as_mut().expect("made above")
    }

    /// Opens every connection and returns the replies in order.
    ///
    /// # Errors
    /// A connection that a switch gave no verdict about.
    pub fn open(
        &mut self,
        world: &World,
        connections: &[Connection],
    ) -> Result<Vec<Reply>, Unended> {
        let mut replies = Vec::with_capacity(connections.len());
        for some in connections.chunks(UNDER_WAY) {
            replies.extend(self.open_some(world, some)?);
        }
        Ok(replies)
    }

    fn open_some(
        &mut self,
        world: &World,
        connections: &[Connection],
    ) -> Result<Vec<Reply>, Unended> {
        let mut replies: Vec<Option<Reply>> = vec![None; connections.len()];
        let mut under_way = Vec::new();
        for (n, connection) in connections.iter().enumerate() {
            match self.first_hop(world, connection) {
                Ok(packet) => under_way.push(InFlight { n, ..packet }),
                Err(reply) => replies[n] = Some(reply),
            }
        }
        while !under_way.is_empty() {
            let mut going_on = Vec::new();
            let place = |packet: &InFlight| (packet.node, packet.backend, packet.port);
            under_way.sort_by_key(place);
            for together in under_way.chunk_by_mut(|a, b| place(a) == place(b)) {
                let (node, backend, port) = place(&together[0]);
                for batch in together.chunks_mut(BATCH) {
                    let frames = batch.iter_mut().map(|packet| std::mem::take(&mut packet.frame));
                    let frames: Vec<Vec<u8>> = frames.collect();
                    let steps = self.switch(node, backend, &frames).send(port, frames);
                    for (packet, step) in batch.iter_mut().zip(steps) {
                        let connection = &connections[packet.n];
                        let step = step.ok_or_else(|| Unended {
                            node: Arc::clone(&self.sites[node].name),
                            from: connection.from.address,
                            to: connection.to,
                        })?;
                        match self.next_hop(world, packet, step, connection) {
                            Ok(next) => going_on.push(next),
                            Err(reply) => replies[packet.n] = Some(reply),
                        }
                    }
                }
            }
            under_way = going_on;
        }
        // Each is answered: the loop ends when none is under way.
        Ok(replies.into_iter().flatten().collect())
    }

    /// A connection's first packet before the switch that it enters, or the answer where none leaves its
    /// network namespace.
    #[allow(clippy::result_large_err, reason = "the answer of a connection, made once")]
    fn first_hop(&mut self, world: &World, connection: &Connection) -> Result<InFlight, Reply> {
        let Connection { from, to, protocol, .. } = connection;
        match (&from.location, world.location(*to)) {
            (Location::Pod(a), Location::Pod(b)) if *a == b => {
                return Err(Answer::allow(reason::SAME_POD).into());
            }
            (Location::Node(a), Location::Node(b)) if *a == b => {
                let node = self.nodes.get(a).copied();
                if node.and_then(|node| self.backends(node, connection, false)).is_none() {
                    return Err(Answer::allow(reason::SAME_NODE).into());
                }
            }
            _ => {}
        }
        if world.is_contested(from.address) || world.is_contested(*to) {
            return Err(Answer::deny(reason::ADDRESS_CONFLICT).into());
        }
        let closed = || Answer::deny(Outcome::Closed.name());
        let (node, port) = match &from.location {
            Location::Pod(key) => *self.pods.get(key).ok_or_else(closed)?,
            Location::Node(name) => (*self.nodes.get(name).ok_or_else(closed)?, HOST),
            Location::Outside => {
                let node = connection.entry.as_ref().and_then(|name| self.nodes.get(name));
                (*node.ok_or_else(|| Answer::allow(reason::NO_POLICY))?, UPLINK)
            }
        };
        let (destination, destination_port) = match port {
            HOST => self.redirected(node, connection),
            _ => (*to, connection.port),
        };
        let opening = Opening {
            source: from.address,
            destination,
            protocol: *protocol,
            source_port: self.next_source_port(),
            destination_port,
        };
        let at_source = match &from.location {
            Location::Node(name) => {
                host::decide(&self.view, name, Direction::Egress, &opening.flow()).map(Arc::new)
            }
            _ => None,
        };
        if let Some(denial) = at_source.as_deref().filter(|it| !it.permits) {
            return Err(Reply { at_source: at_source.clone(), ..denied(denial).into() });
        }
        let is_kernels = port == HOST
            && world.location(destination) == Location::Outside
            && world.service_at(destination).is_none();
        // The kernel sends what its processes say to the world, and no switch sees it.
        if is_kernels && destination == *to {
            let answer = allowed(&[], at_source.iter());
            return Err(Reply { at_source: at_source.clone(), ..answer.into() });
        }
        let frame = opening.frame().ok_or_else(|| Answer::deny(reason::NO_COMMON_FAMILY))?;
        let (backend, path) = (connection.backend, Vec::new());
        Ok(InFlight { n: 0, node, backend, port, frame, path, at_source })
    }

    fn next_source_port(&mut self) -> u16 {
        let port = self.source_port;
        self.source_port = port.checked_add(1).unwrap_or(*SOURCE_PORTS.start());
        port
    }

    /// The switch that a packet enters next, or the answer.
    ///
    /// Only an outcome that opens a connection lets a packet on: passing as part of an earlier connection says nothing
    /// about the policies.
    #[allow(clippy::result_large_err, reason = "the answer of a connection, made once")]
    fn next_hop(
        &self,
        world: &World,
        packet: &mut InFlight,
        step: Step,
        connection: &Connection,
    ) -> Result<InFlight, Reply> {
        let lost = || Answer::deny(reason::MISDELIVERED);
        let (mut path, at_source) = (std::mem::take(&mut packet.path), packet.at_source.take());
        let ends =
            |answer, path, at_source, at_target| Err(Reply { answer, path, at_source, at_target });
        let Step { passage, out_port, frame, denied_by_host } = step;
        let node = Arc::clone(&self.sites[packet.node].name);
        let (outcome, by) = (passage.outcome, passage.by.clone());
        path.push(Passage { node: Arc::clone(&node), ..passage });
        if let Some(direction) = denied_by_host {
            let denial = Arc::new(HostDecision { node, permits: false, by });
            let answer = denied(&denial);
            return match direction {
                Direction::Egress => ends(answer, path, Some(denial), None),
                Direction::Ingress => ends(answer, path, at_source, Some(denial)),
            };
        }
        if !matches!(outcome, Outcome::PolicyAllowed | Outcome::OwnNode | Outcome::NoPolicy) {
            let answer = Answer { verdict: ProbeVerdict::Deny, reason: outcome.name().into(), by };
            return ends(answer, path, at_source, None);
        }
        let left = frame.and_then(|frame| Some((wire::parse(&frame).ok()?, frame)));
        let Some((headers, frame)) = left else { return ends(lost(), path, at_source, None) };
        let destination = headers.flow.destination.to_ip();
        let location = world.location(destination);
        if world.is_contested(destination) {
            return ends(Answer::deny(reason::ADDRESS_CONFLICT), path, at_source, None);
        }
        let next = self.node_of(world, destination);
        let arrived = match (&location, out_port == UPLINK) {
            (Location::Pod(key), false) => self.pods.get(key) == Some(&(packet.node, out_port)),
            (Location::Node(_), false) => out_port == HOST && next == Some(packet.node),
            // A link-local destination: the kernel sends it on.
            (Location::Outside, false) => out_port == HOST,
            (_, true) => match next {
                None => location == Location::Outside,
                Some(node) if node != packet.node => {
                    let InFlight { n, backend, .. } = *packet;
                    let port = UPLINK;
                    return Ok(InFlight { n, node, backend, port, frame, path, at_source });
                }
                Some(_) => false,
            },
        };
        let at_target = match &location {
            Location::Node(name) if arrived => {
                host::decide(&self.view, name, Direction::Ingress, &headers.flow).map(Arc::new)
            }
            _ => None,
        };
        let answer = match arrived {
            true if matches!(location, Location::Pod(_))
                && location == connection.from.location =>
            {
                Answer::allow(reason::SAME_POD)
            }
            true => match at_target.as_deref().filter(|it| !it.permits) {
                Some(denial) => denied(denial),
                None => allowed(&path, at_source.iter().chain(&at_target)),
            },
            false => lost(),
        };
        ends(answer, path, at_source, at_target)
    }
}

/// All nodes with the networks and pods behind them.
fn routes(view: &View, names: &[Arc<str>], pods_of: &[Vec<(&PodKey, Vec<IpAddr>)>]) -> Routes {
    let peer = |(name, pods): (&Arc<str>, &Vec<(&PodKey, Vec<IpAddr>)>)| {
        let node = view.nodes.get(name)?;
        let pods = pods.iter().flat_map(|(_, addresses)| addresses);
        // The manifests may have given one to a pod.
        let is_free = |gateway: &IpAddr| !pods.clone().any(|address| address == gateway);
        let gateways = snapshot::gateways(&node.pod_cidrs).filter(is_free);
        let apart = pods.clone().filter(|it| !node.pod_cidrs.iter().any(|net| net.contains(*it)));
        Some(Peer {
            name: name.to_string(),
            addresses: node.addresses.iter().map(|address| (*address).into()).collect(),
            networks: node
                .pod_cidrs
                .iter()
                .copied()
                .chain(apart.map(|it| IpNet::from(*it)))
                .collect(),
            more_addresses: gateways.map(Into::into).collect(),
            endpoint: (*node.addresses.first()?).into(),
            next_hop: Some(SWITCH_MAC),
            ..Peer::default()
        })
    };
    Routes::new(names.iter().zip(pods_of).filter_map(peer).collect())
}

/// A packet about to enter a switch.
struct InFlight {
    /// The connection's place in the list.
    n: usize,
    node: usize,
    backend: usize,
    port: PortId,
    frame: Vec<u8>,
    /// The decisions of the switches before.
    path: Vec<Passage>,
    /// The decision at the node whose process sent it.
    at_source: Option<Arc<HostDecision>>,
}

/// The answer about a packet that a host firewall drops.
fn denied(decision: &HostDecision) -> Answer {
    let reason = Outcome::PolicyDenied.name().into();
    Answer { verdict: ProbeVerdict::Deny, reason, by: decision.by.clone() }
}

/// The answer about a packet that every switch on its way forwarded, and every host firewall permitted.
fn allowed<'a>(
    path: &[Passage],
    hosts: impl Iterator<Item = &'a Arc<HostDecision>> + Clone,
) -> Answer {
    let outcomes = [Outcome::PolicyAllowed, Outcome::OwnNode];
    let decided = outcomes.into_iter().find(|it| path.iter().any(|step| step.outcome == *it));
    let by_host = hosts.clone().next().map(|_| Outcome::PolicyAllowed);
    let steps = path.iter().flat_map(|step| &step.by);
    let mut by = distinct(steps.chain(hosts.flat_map(|it| &it.by)));
    drop_default(&mut by);
    let reason = decided.or(by_host).unwrap_or(Outcome::NoPolicy).name().into();
    Answer { verdict: ProbeVerdict::Allow, reason, by }
}
