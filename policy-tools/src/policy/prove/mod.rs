//! Statements about every pod that could exist, on every port: proved, or refuted by a connection.
//!
//! The pods are those of the manifests and a representative of each class that the selectors of
//! policies and statements tell apart. Decisions are those of [`Matrix`].

mod ends;
mod statement;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use acl::Origin;
use control::model::{Labels, Namespace, PortSpec, Ports};
use control::{Object, PodKey};
use ipnet::IpNet;
use serde::Serialize;

use super::matrix::{self, Matrix};
use super::representatives::{self, Kinds, Parts, PortRule, Selectors};
use super::suite::Side;
use crate::input::Manifests;
use crate::probe::world::Location;
use crate::probe::{Endpoint, Names, Port, Prober, Protocol, Verdict};

use ends::End;
pub use statement::{Statement, read, read_any};

/// A connection that is not decided as a statement says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Counterexample {
    /// The end that opens it.
    pub from: String,
    /// The end that it is opened to.
    pub to: String,
    /// The protocol.
    pub protocol: &'static str,
    /// The port; `None` for ICMP.
    pub port: Option<u16>,
    /// The rules that decide.
    pub by: Vec<Origin>,
    /// Whether it may be opened.
    #[serde(skip)]
    pub permits: bool,
    /// Its ends: the pods, if they are pods, and the addresses.
    #[serde(skip)]
    pub ends: [(Option<PodKey>, IpAddr); 2],
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, protocol, port, by, permits, .. } = self;
        let port: String = port.iter().map(|port| format!(" {port}")).collect();
        let verdict = if *permits { "allow" } else { "deny" };
        write!(f, "{from} to {to} {protocol}{port}: {verdict}, by {}", Origin::list(by))
    }
}

/// A cluster of every pod that could exist.
pub struct Prover {
    prober: Prober,
    matrix: Matrix,
    internet: Vec<IpAddr>,
    parts: Parts,
    namespaces: HashMap<Arc<str>, Arc<Labels>>,
    /// Names that several classes of namespaces have.
    shared: HashSet<String>,
}

impl Prover {
    /// The cluster of these manifests, for these statements. Pods that could exist have addresses of
    /// `pod_networks`, or without any of the nodes' networks, or of private ones.
    ///
    /// # Errors
    /// When there are more pods or classes than can be compared.
    pub fn new<'a>(
        mut manifests: Manifests,
        statements: impl Iterator<Item = &'a Statement> + Clone,
        names: Names,
        pod_networks: &[IpNet],
    ) -> Result<Self, String> {
        let mut selectors = Selectors::of(&manifests.objects);
        let mut mentioned = Vec::new();
        for side in statements.clone().flat_map(Statement::sides) {
            match side {
                Side::Pods(namespace, labels) => selectors.add(namespace.as_deref(), labels),
                Side::One(Endpoint::Address(address)) => mentioned.push(*address),
                _ => {}
            }
        }
        let parts = [true, false].map(|v4| matrix::outside(&manifests.objects, v4));
        let ports = statements.filter_map(port_rule).collect();
        let mut kinds = Kinds::of(&mut manifests.objects, ports, pod_networks)?;
        representatives::add(&mut manifests, &selectors, &mut kinds)?;
        let is_named = |it: &IpAddr| names.addresses().any(|other| other == *it);
        let internet = parts.into_iter().flat_map(std::collections::BTreeMap::into_keys);
        let mut internet: Vec<IpAddr> = internet.filter(|it| !is_named(it)).collect();
        mentioned.extend(&internet);
        let prober = Prober::with_names(manifests, mentioned, names)?;
        internet.retain(|it| prober.world().location(*it) == Location::Outside);
        let matrix = Matrix::new(prober.control().view())?;
        let namespaces = prober.manifests().objects.iter().filter_map(|object| match object {
            Object::Namespace(it) => Some((Arc::clone(&it.name), Arc::clone(&it.labels))),
            _ => None,
        });
        let namespaces: HashMap<Arc<str>, Arc<Labels>> = namespaces.collect();
        let (mut names, mut shared) = (HashSet::new(), HashSet::new());
        for name in namespaces.values().filter_map(|it| it.value(Namespace::NAME_LABEL)) {
            if !names.insert(name) {
                shared.insert(name.to_owned());
            }
        }
        Ok(Self { prober, matrix, internet, parts: kinds.parts, namespaces, shared })
    }

    /// The manifests, with the representatives.
    pub fn manifests(&self) -> &Manifests {
        self.prober.manifests()
    }

    /// The node of an address of a pod.
    pub fn node_of(&self, address: IpAddr) -> Option<&control::model::Node> {
        let world = self.prober.world();
        world.node_of(address).and_then(|name| world.node(name))
    }

    /// A connection that refutes a statement.
    ///
    /// # Errors
    /// A side that names what does not exist.
    pub fn refute(&self, statement: &Statement) -> Result<Option<Counterexample>, String> {
        self.refute_among(statement, [&|_| true; 2])
    }

    /// A connection that refutes a statement, between pods of namespaces for which `are_meant` holds, and what is no pod.
    ///
    /// # Errors
    /// As of [`refute`](Self::refute).
    pub fn refute_among(
        &self,
        statement: &Statement,
        are_meant: [&dyn Fn(&str) -> bool; 2],
    ) -> Result<Option<Counterexample>, String> {
        let [mut from, mut to] = self.sides(statement)?;
        for (ends, is_meant) in [&mut from, &mut to].into_iter().zip(are_meant) {
            ends.retain(|end| {
                end.pod.as_ref().is_none_or(|pod| is_meant(self.named(&pod.namespace)))
            });
        }
        let [from, to] = [from, to].map(|ends| self.grouped(ends, statement));
        let pairs = from.iter().flat_map(|from| to.iter().map(move |to| (from, to)));
        Ok(pairs
            .filter(|(from, to)| self.is_pair(from, to))
            .find_map(|(from, to)| self.check(statement, from, to)))
    }

    /// Addresses of names that open nothing, as a line each.
    pub fn ignored(&self) -> impl Iterator<Item = String> + '_ {
        self.prober.ignored()
    }

    /// The labels of a namespace.
    pub fn labels(&self, namespace: &str) -> Option<&Labels> {
        self.namespaces.get(namespace).map(|labels| &**labels)
    }

    /// The name that a namespace's label says it has.
    pub fn named<'a>(&'a self, namespace: &'a str) -> &'a str {
        let labels = self.namespaces.get(namespace);
        labels.and_then(|it| it.value(Namespace::NAME_LABEL)).unwrap_or(namespace)
    }

    fn check(&self, statement: &Statement, from: &End, to: &End) -> Option<Counterexample> {
        let ends = [from, to].map(|end| (end.pod.as_ref(), end.node.as_ref()));
        let tables = matrix::tables_between(self.matrix.view(), ends);
        // Two pods that have to have the same address are not there at once.
        let addresses = self.parts.real([from.address, to.address])?;
        for protocol in Protocol::ALL {
            if statement.protocol.is_some_and(|it| it != protocol) {
                continue;
            }
            let ports = match (&to.port, &statement.port) {
                (Some((of, port)), _) if *of == protocol => BTreeSet::from([*port]),
                (Some(_), _) => BTreeSet::new(),
                (None, Some(Port::Number(number))) => BTreeSet::from([*number]),
                (None, Some(Port::Name(_))) => {
                    self.named_port(to, statement, protocol).into_iter().collect()
                }
                (None, None) => matrix::port_ranges(&tables, protocol),
            };
            for port in ports {
                let decision = self.matrix.decide(from.address, to.address, protocol, port);
                let permits = decision.permits;
                if permits == (statement.expect == Verdict::Allow) {
                    continue;
                }
                let words = |end: &End| match &end.pod {
                    Some(pod) => {
                        let stands = self.manifests().representatives.get(pod);
                        stands.cloned().unwrap_or_else(|| pod.to_string())
                    }
                    None => match &end.node {
                        Some(node) => self.manifests().node(node),
                        None => end.address.to_string(),
                    },
                };
                return Some(Counterexample {
                    from: words(from),
                    to: words(to),
                    protocol: protocol.name(),
                    port: (protocol != Protocol::Icmp).then_some(port),
                    by: decision.by,
                    permits,
                    ends: [(from.pod.clone(), addresses[0]), (to.pod.clone(), addresses[1])],
                });
            }
        }
        None
    }
}

/// The port of a statement, at the pods that could exist that it is about.
fn port_rule(statement: &Statement) -> Option<PortRule> {
    let port = match statement.port.as_ref()? {
        Port::Number(number) => PortSpec::Range(acl::PortRange { first: *number, last: *number }),
        Port::Name(name) => PortSpec::Name(Arc::clone(name)),
    };
    let pods = match &statement.to {
        Side::Pods(namespace, labels) => {
            Some(vec![representatives::atom(namespace.as_deref(), labels)])
        }
        Side::AnyPod | Side::AnyNamespace | Side::Any => None,
        Side::One(_) | Side::Internet | Side::Nodes => return None,
    };
    let protocols = Protocol::ALL.into_iter().filter_map(Protocol::with_ports);
    let own = statement.protocol.map(Protocol::with_ports);
    let meant = protocols.filter(|it| own.is_none_or(|own| own == Some(*it)));
    let ports = meant.map(|protocol| Ports { protocol, port: port.clone() }).collect();
    Some(PortRule { pods, ports })
}
