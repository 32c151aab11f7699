//! The ends of a statement's connections, reduced to those that have to be evaluated.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use control::PodKey;
use control::model::Pod;

use super::{From, Prover, Statement};
use crate::policy::matrix;
use crate::policy::run::of_model;
use crate::policy::suite::Side;
use crate::probe::world::Location;
use crate::probe::{Endpoint, Port, Protocol};

/// One end of connections.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct End {
    /// The pod, if the end is one.
    pub(super) pod: Option<PodKey>,
    /// Its node.
    pub(super) node: Option<Arc<str>>,
    /// Its address.
    pub(super) address: IpAddr,
    /// The only port, where a service leads to it.
    pub(super) port: Option<(Protocol, u16)>,
}

impl Prover {
    /// The ends at both sides of a statement.
    pub(super) fn sides(&self, statement: &Statement) -> Result<[Vec<End>; 2], String> {
        let to = self.ends(&statement.to, statement).map_err(|it| format!("to: {it}"))?;
        let from = match &statement.from {
            From::These(side) => self.ends(side, statement).map_err(|it| format!("from: {it}"))?,
            From::AllBut(sides) => {
                let mut excepted = HashSet::new();
                for side in sides {
                    let ends = self.ends(side, statement).map_err(|it| format!("only: {it}"))?;
                    excepted.extend(ends.into_iter().map(|end| end.address));
                }
                let everything = [Side::AnyPod, Side::Internet];
                let all = everything.iter().map(|side| self.ends(side, statement));
                let all: Vec<Vec<End>> = all.collect::<Result<_, _>>()?;
                let all = all.into_iter().flatten();
                all.filter(|end| !excepted.contains(&end.address)).collect()
            }
        };
        Ok([from, to])
    }

    fn ends(&self, side: &Side, statement: &Statement) -> Result<Vec<End>, String> {
        let world = self.prober.world();
        let of_pod = |pod: &Pod| -> Vec<End> {
            let is_own = pod.is_on_pod_network();
            let key = is_own.then(|| pod.key.clone());
            let of_node = pod.node.as_ref().and_then(|node| world.node(node));
            let addresses = match is_own {
                true => &pod.addresses[..],
                false => of_node.map_or(&[][..], |node| &node.addresses),
            };
            let end = |address: &IpAddr| End {
                pod: key.clone(),
                node: pod.node.clone(),
                address: *address,
                port: None,
            };
            addresses.iter().map(end).collect()
        };
        let of_address = |address: IpAddr| match world.location(address) {
            Location::Pod(key) => {
                let node = world.pod(&key).and_then(|pod| pod.node.clone());
                End { pod: Some(key), node, address, port: None }
            }
            Location::Node(name) => End { pod: None, node: Some(name), address, port: None },
            Location::Outside => End { pod: None, node: None, address, port: None },
        };
        let all = || world.pods().filter(|pod| !pod.finished);
        let found: Vec<End> = match side {
            Side::One(endpoint) => {
                if let Some(problem) = self.prober.unknown(endpoint) {
                    return Err(problem);
                }
                match endpoint {
                    Endpoint::Pod(key) => world.pod(key).map(of_pod).unwrap_or_default(),
                    Endpoint::Address(address) => vec![of_address(*address)],
                    Endpoint::Node(name) => {
                        let addresses = world.node(name).map(|node| node.addresses.clone());
                        addresses.unwrap_or_default().into_iter().map(of_address).collect()
                    }
                    Endpoint::Name(name) => world.addresses_of(name).map(of_address).collect(),
                    Endpoint::Service(key) => {
                        let service = self.matrix.view().services.get(key);
                        let ports = service
                            .iter()
                            .flat_map(|it| it.service.ports.iter().zip(&it.endpoints));
                        let meant = ports.filter(|(port, _)| {
                            statement.port.as_ref().is_none_or(|it| it.is(port))
                        });
                        let ends = meant.flat_map(|(port, endpoints)| {
                            let protocol = of_model(port.protocol);
                            endpoints.iter().map(move |it| (protocol, it.address, it.port))
                        });
                        ends.map(|(protocol, address, port)| End {
                            port: Some((protocol, port)),
                            ..of_address(address)
                        })
                        .collect()
                    }
                }
            }
            Side::Internet => self.internet.iter().copied().map(of_address).collect(),
            Side::Nodes => {
                let addresses = world.nodes().flat_map(|node| node.addresses.clone());
                addresses.map(of_address).collect()
            }
            pods => {
                let has =
                    |pod: &&Pod| pods.has(pod, self.manifests(), self.labels(&pod.key.namespace));
                let internet = self.internet.iter().filter(|_| *pods == Side::Any);
                let internet = internet.copied().map(of_address);
                all().filter(has).flat_map(of_pod).chain(internet).collect()
            }
        };
        if found.is_empty() { Err("stands for nothing that could exist".into()) } else { Ok(found) }
    }

    /// Two ends of each class that tables and the statement treat alike.
    pub(super) fn grouped(&self, ends: Vec<End>, statement: &Statement) -> Vec<End> {
        let view = self.matrix.view();
        let mut counts: HashMap<_, usize> = HashMap::new();
        let mut kept = Vec::new();
        for end in ends {
            let tables = end.pod.as_ref().map(|pod| matrix::tables(view, pod));
            let tables = tables.map(|pair| pair.map(|table| table.as_ref().map(Arc::as_ptr)));
            // An identity stands for all peer sets that an address is in, networks too.
            let identity = view.addresses.lookup(end.address.into());
            let node = end.pod.is_none().then(|| end.node.clone());
            let named = Protocol::ALL.map(|it| self.named_ports(&end, statement, it));
            // Ends that may exclude each other.
            let name = end.pod.as_ref().map(|pod| self.named(&pod.namespace));
            let name = name.and_then(|it| self.shared.get(it));
            let place = (name, self.parts.of(end.address));
            let v4 = end.address.is_ipv4();
            let key = (tables, identity, node, named, end.port, place, v4);
            let count = counts.entry(key).or_default();
            *count += 1;
            if *count <= 2 {
                kept.push(end);
            }
        }
        kept
    }

    /// The numbers that the port name of a statement stands for at an end.
    pub(super) fn named_ports(
        &self,
        end: &End,
        statement: &Statement,
        protocol: Protocol,
    ) -> BTreeSet<u16> {
        let pod = end.pod.as_ref().and_then(|key| self.prober.world().pod(key));
        match (pod, &statement.port, protocol.with_ports()) {
            (Some(pod), Some(Port::Name(name)), Some(protocol)) => {
                pod.named_ports(name, protocol).collect()
            }
            _ => BTreeSet::new(),
        }
    }

    /// Returns whether some end has the port that a statement names.
    pub(super) fn have_port(&self, statement: &Statement, to: &[End]) -> Result<(), String> {
        let Some(Port::Name(name)) = &statement.port else { return Ok(()) };
        let has = |end: &End| {
            let of = |protocol| !self.named_ports(end, statement, protocol).is_empty();
            end.port.is_some() || Protocol::ALL.into_iter().any(of)
        };
        match to.iter().any(has) {
            true => Ok(()),
            false => Err(format!("port: nothing that `to` stands for has a port {name}")),
        }
    }

    /// Returns whether both ends can coexist, differ, and may be connected.
    pub(super) fn is_pair(&self, from: &End, to: &End) -> bool {
        // No rule decides about connections between two outside hosts.
        let is_decided = from.pod.is_some() || to.pod.is_some() || from.node != to.node;
        is_decided
            && self.are_apart(from, to)
            && from.address != to.address
            && from.address.is_ipv4() == to.address.is_ipv4()
    }

    /// Returns whether both ends can coexist, and differ if they are pods.
    pub(super) fn are_apart(&self, one: &End, other: &End) -> bool {
        let (Some(a), Some(b)) = (&one.pod, &other.pod) else { return true };
        let is_same = self.named(&a.namespace) == self.named(&b.namespace);
        a != b && (a.namespace == b.namespace || !is_same)
    }
}
