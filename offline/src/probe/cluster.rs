//! All cluster nodes of the manifests, each with a switch, and the packets between them.

use std::collections::HashMap;
use std::iter;
use std::net::IpAddr;
use std::sync::Arc;

use control::{PodKey, View};
use dataplane::{DEFAULT_ALLOW, Memory, Outcome, PortId};

use super::answer::reason;
use super::opening::{LARGEST, Opening};
use super::switch::{self, BATCH, HOST, Step, Switch, UPLINK};
use super::world::{Spot, World};
use super::{Answer, Protocol, Verdict};
use renderer::Surroundings;

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// Who it is.
    pub spot: Spot,
    /// The address it uses.
    pub address: IpAddr,
}

/// A connection in question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Who opens it.
    pub from: End,
    /// Whom it is for; an address of the same family.
    pub to: End,
    /// The protocol.
    pub protocol: Protocol,
    /// The port at the target; of no meaning for ICMP.
    pub port: u16,
}

/// The switches of all cluster nodes.
pub struct Cluster {
    switches: Vec<Switch>,
    nodes: HashMap<Arc<str>, usize>,
    pods: HashMap<PodKey, (usize, PortId)>,
    source_port: u16,
}

/// Source ports that openings take turns with (RFC 6335, section 6: the dynamic ports).
const SOURCE_PORTS: std::ops::RangeInclusive<u16> = 49_152..=u16::MAX;
/// Connections under way together, fewer than there are source ports: no two of them are alike.
const UNDER_WAY: usize = 8_192;

impl Cluster {
    /// A switch for every cluster node that `view` knows or has a pod on.
    ///
    /// # Errors
    /// When there are more pods on a cluster node than a switch has ports.
    pub fn new(view: &View) -> Result<Self, String> {
        let mut nodes: HashMap<Arc<str>, usize> = HashMap::new();
        let mut pods_of: Vec<Vec<(&PodKey, Vec<IpAddr>)>> = Vec::new();
        for name in view.nodes.keys().chain(view.pods.values().map(|pod| &pod.node)) {
            if !nodes.contains_key(name) {
                nodes.insert(Arc::clone(name), pods_of.len());
                pods_of.push(Vec::new());
            }
        }
        for (key, pod) in view.pods.iter() {
            pods_of[nodes[&pod.node]].push((key, pod.addresses.clone()));
        }
        let mut names = vec![""; pods_of.len()];
        nodes.iter().for_each(|(name, n)| names[*n] = name);
        let frame_size = dataplane::frame::XDP_HEADROOM + LARGEST;
        let (memory, mut frames) = Memory::heap(frame_size, (BATCH * names.len().max(1)) as u32);
        let (mut switches, mut pods) = (Vec::new(), HashMap::new());
        for (n, (name, on_it)) in names.iter().zip(pods_of).enumerate() {
            let keys: Vec<PodKey> = on_it.iter().map(|(key, _)| (*key).clone()).collect();
            let ports = switch::ports(on_it)
                .ok_or_else(|| format!("Node {name}: has more pods than a switch has ports"))?;
            // Which endpoint of a service is asked about is the question's business.
            let alone = Surroundings::default();
            let generation = view.generation.max(1);
            let snapshot = renderer::snapshot(view, name, alone, generation, &ports);
            let pod_ports =
                ports.iter().map(|port| port.id).filter(|id| ![HOST, UPLINK].contains(id));
            pods.extend(keys.into_iter().zip(pod_ports.map(|id| (n, id))));
            let mine = frames.split_off(frames.len() - BATCH);
            switches.push(Switch::new(snapshot, ports.len(), &memory, mine));
        }
        Ok(Self { switches, nodes, pods, source_port: *SOURCE_PORTS.start() })
    }

    /// Opens every connection and tells what came of it, in order.
    pub fn open(&mut self, world: &World, connections: &[Connection]) -> Vec<Answer> {
        connections.chunks(UNDER_WAY).flat_map(|some| self.open_some(world, some)).collect()
    }

    fn open_some(&mut self, world: &World, connections: &[Connection]) -> Vec<Answer> {
        let mut answers: Vec<Option<Answer>> = vec![None; connections.len()];
        let mut under_way = Vec::new();
        for (n, connection) in connections.iter().enumerate() {
            match self.set_out(world, connection) {
                Ok((node, port, frame)) => {
                    under_way.push(Trip { n, node, port, frame, so_far: Vec::new() });
                }
                Err(answer) => answers[n] = Some(answer),
            }
        }
        while !under_way.is_empty() {
            let mut going_on = Vec::new();
            under_way.sort_by_key(|trip| (trip.node, trip.port));
            for together in under_way.chunk_by(|a, b| (a.node, a.port) == (b.node, b.port)) {
                for batch in together.chunks(BATCH) {
                    let frames = batch.iter().map(|trip| trip.frame.clone()).collect();
                    let steps = self.switches[batch[0].node].send(batch[0].port, frames);
                    let steps = steps.into_iter().map(Some).chain(iter::repeat(None));
                    for (trip, step) in batch.iter().zip(steps) {
                        match self.follow(world, trip, step, &connections[trip.n]) {
                            Ok(further) => going_on.push(further),
                            Err(answer) => answers[trip.n] = Some(answer),
                        }
                    }
                }
            }
            under_way = going_on;
        }
        let lost = || Answer::deny(reason::MISDELIVERED);
        answers.into_iter().map(|answer| answer.unwrap_or_else(lost)).collect()
    }

    /// Where a connection's first packet enters which switch; or the answer, where none is
    /// needed.
    fn set_out(
        &mut self,
        world: &World,
        connection: &Connection,
    ) -> Result<(usize, PortId, Vec<u8>), Answer> {
        let Connection { from, to, protocol, port } = connection;
        match (&from.spot, &to.spot) {
            (Spot::Pod(a), Spot::Pod(b)) if a == b => return Err(Answer::allow(reason::SAME_POD)),
            (Spot::Node(a), Spot::Node(b)) if a == b => {
                return Err(Answer::allow(reason::SAME_NODE));
            }
            _ => {}
        }
        if world.is_contested(from.address) || world.is_contested(to.address) {
            return Err(Answer::deny(reason::ADDRESS_CONFLICT));
        }
        let closed = || Answer::deny(Outcome::Closed.name());
        let (node, entry) = match &from.spot {
            Spot::Pod(key) => *self.pods.get(key).ok_or_else(closed)?,
            Spot::Node(name) => (*self.nodes.get(name).ok_or_else(closed)?, HOST),
            Spot::Elsewhere => {
                let node = world.node_of(to.address).and_then(|name| self.nodes.get(name));
                (*node.ok_or_else(|| Answer::allow(reason::NO_POLICY))?, UPLINK)
            }
        };
        let opening = Opening {
            source: from.address,
            destination: to.address,
            protocol: *protocol,
            source_port: self.next_source_port(),
            destination_port: *port,
        };
        let frame = opening.frame().ok_or_else(|| Answer::deny(reason::NO_COMMON_FAMILY))?;
        Ok((node, entry, frame))
    }

    fn next_source_port(&mut self) -> u16 {
        let port = self.source_port;
        self.source_port = port.checked_add(1).unwrap_or(*SOURCE_PORTS.start());
        port
    }

    /// What a switch's step leads to: the next one, or the answer.
    ///
    /// Only an outcome that opens a connection lets a packet on; that it passed as part of a
    /// connection opened before would say nothing about the policies.
    fn follow(
        &self,
        world: &World,
        trip: &Trip,
        step: Option<Step>,
        connection: &Connection,
    ) -> Result<Trip, Answer> {
        let lost = || Answer::deny(reason::MISDELIVERED);
        let Step { outcome, out_port, by, frame } = step.ok_or_else(lost)?;
        if !matches!(outcome, Outcome::PolicyAllowed | Outcome::OwnNode | Outcome::NoPolicy) {
            let reason = outcome.name().into();
            return Err(Answer { verdict: Verdict::Deny, reason, by });
        }
        let frame = frame.ok_or_else(lost)?;
        let mut so_far = trip.so_far.clone();
        so_far.push((outcome, by));
        let arrived = |arrived: bool| if arrived { allowed(&so_far) } else { lost() };
        let to = &connection.to;
        if out_port != UPLINK {
            let expected = match &to.spot {
                Spot::Pod(key) => self.pods.get(key) == Some(&(trip.node, out_port)),
                Spot::Node(name) => (self.nodes.get(name), out_port) == (Some(&trip.node), HOST),
                Spot::Elsewhere => false,
            };
            return Err(arrived(expected));
        }
        match world.node_of(to.address).and_then(|name| self.nodes.get(name)) {
            None => Err(arrived(to.spot == Spot::Elsewhere)),
            Some(node) if *node == trip.node => Err(lost()),
            Some(node) => Ok(Trip { n: trip.n, node: *node, port: UPLINK, frame, so_far }),
        }
    }
}

/// A packet about to enter a switch.
struct Trip {
    /// The connection's place in the list.
    n: usize,
    node: usize,
    port: PortId,
    frame: Vec<u8>,
    /// What the switches before said.
    so_far: Vec<(Outcome, Vec<Arc<str>>)>,
}

/// The answer about a packet that every switch on its way let through.
fn allowed(steps: &[(Outcome, Vec<Arc<str>>)]) -> Answer {
    let outcomes = [Outcome::PolicyAllowed, Outcome::OwnNode];
    let said = outcomes.into_iter().find(|it| steps.iter().any(|(outcome, _)| outcome == it));
    let mut by: Vec<Arc<str>> = Vec::new();
    for origin in steps.iter().flat_map(|(_, by)| by) {
        if !by.contains(origin) {
            by.push(Arc::clone(origin));
        }
    }
    // That no rule stood at one end is only worth telling if none did at the other.
    if by.iter().any(|origin| &**origin != DEFAULT_ALLOW) {
        by.retain(|origin| &**origin != DEFAULT_ALLOW);
    }
    let reason = said.unwrap_or(Outcome::NoPolicy).name().into();
    Answer { verdict: Verdict::Allow, reason, by }
}
