//! Statements about every pod that could exist, on every port: proved, or refuted by a connection.
//!
//! The pods are those of the manifests and a representative of each class that the selectors of
//! policies and statements tell apart. Decisions are those of [`Matrix`].

//!
//! - `read` and `statement`: what is said,
//! - `ends`: the ends of connections, and their classes,
//! - `hops`: ends that are reached over a pod between them.

mod ends;
mod hops;
mod read;
mod statement;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use acl::Origin;
use control::PodKey;
use control::model::{Labels, Namespace, PortSpec, Ports};
use ipnet::IpNet;
use serde::Serialize;

use super::matrix::{self, Matrix, PairDecision};
use super::possible::Possible;
use super::representatives::{self, Kinds, Parts, PortRule, Selectors};
use super::suite::Side;
use crate::admission::LATE;
use crate::input::{self, Manifests};
use crate::probe::world::Location;
use crate::probe::{DomainAddresses, Endpoint, Port, ProbeVerdict, Prober, Protocol};

use ends::End;
pub(crate) use read::{is_statement, read_entry};
pub use read::{read, read_any};
pub use statement::Statement;
use statement::{Expect, From};

/// A connection that refutes a statement.
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
    /// Earlier connections, if it is the last of a chain from pod to pod.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub via: Vec<Hop>,
    /// True if the connection may be opened.
    #[serde(skip)]
    pub permits: bool,
    /// All of them, in order.
    #[serde(skip)]
    pub connections: Vec<Connection>,
}

/// A connection to a pod on the way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hop {
    /// The pod.
    pub to: String,
    /// The protocol.
    pub protocol: &'static str,
    /// The port; `None` for ICMP.
    pub port: Option<u16>,
    /// The rules that allow it.
    pub by: Vec<Origin>,
}

/// A connection between two addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Its ends: the pods, if they are pods, and the addresses.
    pub ends: [(Option<PodKey>, IpAddr); 2],
    /// The protocol.
    pub protocol: Protocol,
    /// The port; ignored for ICMP.
    pub port: u16,
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, protocol, port, by, via, permits, .. } = self;
        let number = |port: &Option<u16>| port.map_or_else(String::new, |port| format!(" {port}"));
        f.write_str(from)?;
        for Hop { to, protocol, port, by } in via {
            write!(
                f,
                " to {to} {protocol}{}: allow, by {}; from there",
                number(port),
                Origin::list(by)
            )?;
        }
        let verdict = if *permits { "allow" } else { "deny" };
        write!(f, " to {to} {protocol}{}: {verdict}, by {}", number(port), Origin::list(by))
    }
}

/// A cluster of every pod that could exist.
pub struct Prover {
    prober: Prober,
    matrix: Matrix,
    internet: Vec<IpAddr>,
    /// Addresses that stand for names and the API server, in words.
    of_peers: BTreeMap<IpAddr, String>,
    parts: Parts,
    namespaces: BTreeMap<Arc<str>, Namespace>,
    /// Names that several classes of namespaces have.
    shared: HashSet<String>,
    deadline: Option<Instant>,
}

impl Prover {
    /// The cluster of these manifests, for these statements. Pods that could exist have addresses of
    /// `pod_networks`, or without any of the nodes' networks, or of private ones.
    ///
    /// # Errors
    /// Fails if there are more pods or classes than can be compared.
    pub fn new<'a>(
        mut manifests: Manifests,
        statements: impl Iterator<Item = &'a Statement> + Clone,
        names: DomainAddresses,
        pod_networks: &[IpNet],
    ) -> Result<Self, String> {
        let possible = Possible::of(manifests.objects.iter(), &names);
        manifests.objects.extend(possible.objects);
        let mut selectors = Selectors::of(&manifests.objects);
        let mut mentioned = Vec::new();
        for side in statements.clone().flat_map(Statement::sides) {
            match side {
                Side::Pods(pods) => selectors.add(pods),
                Side::One(Endpoint::Address(address)) => mentioned.push(*address),
                _ => {}
            }
        }
        manifests.families = manifests.families.widened();
        let families = manifests.families;
        let families = || [true, false].into_iter().filter(move |v4| families.has(*v4));
        let parts: Vec<_> = families().map(|v4| matrix::outside(&manifests.objects, v4)).collect();
        let ports = statements.flat_map(port_rules).collect();
        let families: Vec<bool> = families().collect();
        let mut kinds = Kinds::of(&mut manifests.objects, ports, pod_networks, &families)?;
        representatives::add(&mut manifests, &selectors, &mut kinds)?;
        let is_named = |it: &IpAddr| names.addresses().any(|other| other == *it);
        let internet = parts.into_iter().flat_map(std::collections::BTreeMap::into_keys);
        let mut internet: Vec<IpAddr> = internet.filter(|it| !is_named(it)).collect();
        // Names lead to the internet.
        let of_names = possible.names.addresses().filter(|it| families.contains(&it.is_ipv4()));
        internet.extend(of_names);
        mentioned.extend(&internet);
        let prober = Prober::with_possible(manifests, mentioned, names, &possible.names)?;
        internet.retain(|it| prober.world().location(*it) == Location::Outside);
        let matrix = Matrix::new(prober.control().view())?;
        let objects = &prober.manifests().objects;
        let namespaces = input::namespaces(objects, std::iter::empty());
        let (mut names, mut shared) = (HashSet::new(), HashSet::new());
        for name in namespaces.values().filter_map(|it| it.labels.value(Namespace::NAME_LABEL)) {
            if !names.insert(name) {
                shared.insert(name.to_owned());
            }
        }
        let (parts, of_peers, deadline) = (kinds.parts, possible.words, None);
        Ok(Self { prober, matrix, internet, of_peers, parts, namespaces, shared, deadline })
    }

    /// Ends with an error what takes longer.
    #[must_use]
    pub(crate) fn until(self, deadline: Instant) -> Self {
        Self { deadline: Some(deadline), ..self }
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
        self.refute_among(statement, [&|_| true; 3])
    }

    /// Finds a connection that refutes a statement. Of pods, only those of namespaces for which `are_meant` holds
    /// count: as initiators, on the way, and as targets.
    ///
    /// # Errors
    /// As of [`refute`](Self::refute).
    pub(crate) fn refute_among(
        &self,
        statement: &Statement,
        [opens, between, is_reached]: [&dyn Fn(&str) -> bool; 3],
    ) -> Result<Option<Counterexample>, String> {
        let [mut from, mut to] = self.sides(statement)?;
        self.have_port(statement, &to)?;
        for (ends, is_meant) in [(&mut from, opens), (&mut to, is_reached)] {
            ends.retain(|end| {
                end.pod.as_ref().is_none_or(|pod| is_meant(self.named(&pod.namespace)))
            });
        }
        let [from, to] = [from, to].map(|ends| self.grouped(ends, statement));
        let pairs = from.iter().flat_map(|from| to.iter().map(move |to| (from, to)));
        for (from, to) in pairs.filter(|(from, to)| self.is_pair(from, to)) {
            if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(LATE.to_owned());
            }
            if let Some(found) = self.check(statement, from, to) {
                return Ok(Some(found));
            }
        }
        if !statement.over_a_pod {
            return Ok(None);
        }
        Ok(self.over_a_pod(statement, &from, &to, between))
    }

    /// Addresses of names that open nothing, as a line each.
    pub fn ignored(&self) -> impl Iterator<Item = String> + '_ {
        self.prober.ignored()
    }

    /// The labels of a namespace.
    pub fn labels(&self, namespace: &str) -> Option<&Labels> {
        self.namespaces.get(namespace).map(|it| &*it.labels)
    }

    /// The name that a namespace's label says it has.
    pub fn named<'a>(&'a self, namespace: &'a str) -> &'a str {
        let labels = self.labels(namespace);
        labels.and_then(|it| it.value(Namespace::NAME_LABEL)).unwrap_or(namespace)
    }

    /// A connection between two ends that refutes a statement.
    fn check(&self, statement: &Statement, from: &End, to: &End) -> Option<Counterexample> {
        // Two pods that have to have the same address are not there at once.
        let addresses = self.parts.real(&[from.address, to.address])?;
        let Refuting { protocol, port, decision } = self.refuting(statement, from, to)?;
        let ends = [(from.pod.clone(), addresses[0]), (to.pod.clone(), addresses[1])];
        Some(Counterexample {
            from: self.words(from),
            to: self.words(to),
            protocol: protocol.name(),
            port: (protocol != Protocol::Icmp).then_some(port),
            by: decision.by,
            via: Vec::new(),
            permits: decision.permits,
            connections: vec![Connection { ends, protocol, port }],
        })
    }

    /// A protocol and a port with which a connection between two ends refutes a statement.
    fn refuting(&self, statement: &Statement, from: &End, to: &End) -> Option<Refuting> {
        let ends = [from, to].map(|end| (end.pod.as_ref(), end.node.as_ref()));
        let tables = matrix::tables_between(self.matrix.view(), ends);
        let is_about = |it: &Protocol| statement.protocol.is_none_or(|own| own == *it);
        for protocol in Protocol::ALL.into_iter().filter(is_about) {
            let ports = match (&to.port, &statement.port) {
                (Some((of, port)), _) if *of == protocol => BTreeSet::from([*port]),
                (Some(_), _) => BTreeSet::new(),
                (None, Some(Port::Number(number))) => BTreeSet::from([*number]),
                (None, Some(Port::Name(_))) => self.named_ports(to, statement, protocol),
                (None, None) => {
                    let mut firsts = matrix::port_ranges(&tables, protocol);
                    // What is left of a range without a port.
                    let left_out = statement.except.iter().filter(|(of, _)| *of == protocol);
                    firsts.extend(left_out.filter_map(|(_, port)| (*port)?.checked_add(1)));
                    firsts
                }
            };
            for port in ports.into_iter().filter(|it| !statement.excepts(protocol, *it)) {
                let decision = self.matrix.decide(from.address, to.address, protocol, port);
                if !statement.expect.is_met_by(&decision) {
                    return Some(Refuting { protocol, port, decision });
                }
            }
        }
        None
    }

    /// An end in words.
    fn words(&self, end: &End) -> String {
        match (&end.pod, &end.node) {
            (Some(pod), _) => {
                let stands = self.manifests().representatives.get(pod);
                stands.cloned().unwrap_or_else(|| pod.to_string())
            }
            (None, Some(node)) => self.manifests().node(node),
            (None, None) => match self.of_peers.get(&end.address) {
                Some(words) => words.clone(),
                None => end.address.to_string(),
            },
        }
    }
}

/// A connection that refutes a statement.
struct Refuting {
    protocol: Protocol,
    port: u16,
    decision: PairDecision,
}

impl Expect {
    fn is_met_by(self, decision: &PairDecision) -> bool {
        match self {
            Self::Verdict(verdict) => decision.permits == (verdict == ProbeVerdict::Allow),
            Self::DefaultDeny(direction) => {
                let is_rule = |it: &Origin| it.direction() == Some(direction);
                !decision.permits || decision.by.iter().any(is_rule)
            }
        }
    }
}

/// The ports of a statement, at the pods that could exist that it is about.
fn port_rules(statement: &Statement) -> Vec<PortRule> {
    let pods = match &statement.to {
        Side::Pods(pods) => Some(vec![representatives::atom(pods)]),
        Side::AnyPod | Side::AnyNamespace | Side::ExistingNamespace | Side::Any => None,
        Side::One(_) | Side::Internet | Side::Nodes => return Vec::new(),
    };
    let range = |number| PortSpec::Range(acl::PortRange { first: number, last: number });
    let port = statement.port.iter().map(|port| match port {
        Port::Number(number) => (statement.protocol, range(*number)),
        Port::Name(name) => (statement.protocol, PortSpec::Name(Arc::clone(name))),
    });
    let left_out = statement.except.iter();
    let left_out = left_out.filter_map(|(of, port)| Some((Some(*of), range((*port)?))));
    let rule = |(own, port): (Option<Protocol>, PortSpec)| {
        let protocols = Protocol::ALL.into_iter().filter(|it| own.is_none_or(|own| own == *it));
        let protocols = protocols.filter_map(Protocol::with_ports);
        let ports = protocols.map(|protocol| Ports { protocol, port: port.clone() }).collect();
        PortRule { pods: pods.clone(), ports }
    };
    port.chain(left_out).map(rule).collect()
}
