//! Statements about every pod that could exist, on every port: proved, or refuted by a connection.
//!
//! The pods are those of the manifests and a representative of each class that the selectors of
//! policies and statements tell apart. Decisions are those of [`Matrix`].

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use acl::Origin;
use control::model::{Labels, Namespace};
use control::{Object, PodKey};
use ipnet::IpNet;
use serde::Serialize;
use serde_json::Value;

use super::matrix::{self, Matrix};
use super::representatives::{self, Selectors};
use super::suite::Side;
use crate::input::Manifests;
use crate::input::located::{self, Located, Tree};
use crate::probe::world::Location;
use crate::probe::{Endpoint, Names, Port, Prober, Protocol, Verdict, case};

/// One statement.
#[derive(Clone, Debug)]
pub struct Statement {
    /// Its name; made of its fields where it has none.
    pub name: String,
    /// Its line in the file.
    pub line: u64,
    from: From,
    to: Side,
    /// `None`: each of them.
    protocol: Option<Protocol>,
    /// `None`: each of them.
    port: Option<Port>,
    expect: Verdict,
}

/// The ends that open connections.
#[derive(Clone, Debug)]
enum From {
    These(Side),
    /// All pods and addresses but these.
    AllBut(Vec<Side>),
}

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

const FIELDS: [&str; 7] = ["name", "from", "only", "to", "protocol", "port", "expect"];

/// Reads a file of statements.
///
/// # Errors
/// Everything that is wrong, each with its place.
pub fn read(text: &[u8]) -> Result<Vec<Statement>, Vec<String>> {
    let documents = located::documents(text).map_err(|problem| vec![problem])?;
    let (mut found, mut faults) = (Vec::new(), Vec::new());
    let entries = documents.iter().flat_map(|document| match &document.tree {
        Tree::List(list) => list.iter().collect(),
        Tree::Scalar(Value::Null) => Vec::new(),
        _ => vec![document],
    });
    for (n, entry) in entries.enumerate() {
        let at = format!("statement {} (line {})", n + 1, entry.line);
        match Statement::read(entry) {
            Ok(statement) => found.push(statement),
            Err(problems) => faults.extend(problems.iter().map(|it| format!("{at}: {it}"))),
        }
    }
    if found.is_empty() && faults.is_empty() {
        faults.push("holds no statement".into());
    }
    if faults.is_empty() { Ok(found) } else { Err(faults) }
}

impl Statement {
    fn read(entry: &Located) -> Result<Self, Vec<String>> {
        if !matches!(entry.tree, Tree::Map(_)) {
            return Err(vec![format!("{} is no statement", entry.value())]);
        }
        let mut faults = Vec::new();
        for (field, _) in entry.fields().iter().filter(|(it, _)| !FIELDS.contains(&it.as_str())) {
            let known = FIELDS.join(", ");
            faults.push(format!("{field}: unknown field; a statement has {known}"));
        }
        let mut keep = |field: &str, problem: String| faults.push(format!("{field}: {problem}"));
        let text = |field: &str| match entry.get(field) {
            None => Ok(None),
            Some(it) => it.text().map(Some).ok_or_else(|| format!("{} is no text", it.value())),
        };
        let mut of = |field: &str| {
            text(field).unwrap_or_else(|problem| {
                keep(field, problem);
                None
            })
        };
        let [name, from, to, protocol, expect] =
            ["name", "from", "to", "protocol", "expect"].map(&mut of);
        let mut side = |field: &str, text: &str| match Side::read(text, field == "to") {
            Ok(side) => Some(side),
            Err(problem) => {
                keep(field, problem);
                None
            }
        };
        let to_side = to.and_then(|text| side("to", text));
        let from_side = from.and_then(|text| side("from", text));
        let only = entry.get("only").map(|only| {
            let elements =
                if only.is_list() { only.elements() } else { std::slice::from_ref(only) };
            let texts = elements.iter().map(|it| it.text().unwrap_or_default());
            texts.filter_map(|text| side("only", text)).collect::<Vec<Side>>()
        });
        if to.is_none() && entry.get("to").is_none() {
            keep("to", "is missing".into());
        }
        if entry.get("from").is_some() == only.is_some() {
            keep("from", "a statement has either from or only".into());
        }
        let expect = match (expect, only.is_some()) {
            (Some("allow"), false) => Some(Verdict::Allow),
            (Some("deny"), false) => Some(Verdict::Deny),
            (None, true) => Some(Verdict::Deny),
            (Some(_), true) => {
                keep("expect", "goes with from, not with only".into());
                None
            }
            (Some(other), false) => {
                keep("expect", format!("{other:?} is neither \"allow\" nor \"deny\""));
                None
            }
            (None, false) => {
                keep("expect", "is missing".into());
                None
            }
        };
        let named = protocol.map(|text| Protocol::from_name(text).ok_or(text));
        let protocol = match named {
            Some(Err(text)) => {
                keep("protocol", format!("{text:?} is none of TCP, UDP, SCTP, ICMP"));
                None
            }
            Some(Ok(protocol)) => Some(protocol),
            None => None,
        };
        let is_icmp = protocol == Some(Protocol::Icmp);
        let is_every = entry.get("port").and_then(Located::text) == Some("*");
        let port = match entry.get("port").map(Located::value) {
            Some(_) if is_every => None,
            Some(_) if is_icmp => {
                keep("port", "ICMP has no ports".into());
                None
            }
            Some(value) => match case::port(&value) {
                Ok(port) => Some(port),
                Err(problem) => {
                    keep("port", problem);
                    None
                }
            },
            None => {
                if !is_icmp {
                    keep("port", "is missing; \"*\" is every port".into());
                }
                None
            }
        };
        let protocol = protocol.or((!is_every).then_some(Protocol::Tcp));
        let from_side = match (from_side, only) {
            (Some(side), _) => Some(From::These(side)),
            (None, only) => only.map(From::AllBut),
        };
        match (from_side, to_side, expect, faults.is_empty()) {
            (Some(from), Some(to), Some(expect), true) => {
                let made = || format!("line {}", entry.line);
                let name = name.map_or_else(made, str::to_owned);
                Ok(Self { name, line: entry.line, from, to, protocol, port, expect })
            }
            _ => Err(faults),
        }
    }

    fn sides(&self) -> impl Iterator<Item = &Side> {
        let from = match &self.from {
            From::These(side) => std::slice::from_ref(side),
            From::AllBut(sides) => sides,
        };
        from.iter().chain([&self.to])
    }
}

/// One end of connections.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct End {
    pod: Option<PodKey>,
    node: Option<Arc<str>>,
    address: IpAddr,
    /// The only port, where a service leads to it.
    port: Option<(Protocol, u16)>,
}

/// A cluster of every pod that could exist.
pub struct Prover {
    prober: Prober,
    matrix: Matrix,
    internet: Vec<IpAddr>,
    nets: Vec<IpNet>,
    namespaces: HashMap<Arc<str>, Arc<Labels>>,
}

impl Prover {
    /// The cluster of these manifests, for these statements.
    ///
    /// # Errors
    /// When there are more pods or classes than can be compared.
    pub fn new<'a>(
        mut manifests: Manifests,
        statements: impl Iterator<Item = &'a Statement> + Clone,
        names: Names,
    ) -> Result<Self, String> {
        let mut selectors = Selectors::of(&manifests.objects);
        let mut mentioned = Vec::new();
        for side in statements.flat_map(Statement::sides) {
            match side {
                Side::Pods(namespace, labels) => selectors.add(namespace.as_deref(), labels),
                Side::One(Endpoint::Address(address)) => mentioned.push(*address),
                _ => {}
            }
        }
        representatives::add(&mut manifests, &selectors)?;
        let parts = [true, false].map(|v4| matrix::outside(&manifests.objects, v4));
        let is_named = |it: &IpAddr| names.addresses().any(|other| other == *it);
        let internet = parts.into_iter().flat_map(std::collections::BTreeMap::into_keys);
        let mut internet: Vec<IpAddr> = internet.filter(|it| !is_named(it)).collect();
        let nets = matrix::networks(&manifests.objects).into_iter().collect();
        mentioned.extend(&internet);
        let prober = Prober::with_names(manifests, mentioned, names)?;
        internet.retain(|it| prober.world().location(*it) == Location::Outside);
        let matrix = Matrix::new(prober.control().view())?;
        let namespaces = prober.manifests().objects.iter().filter_map(|object| match object {
            Object::Namespace(it) => Some((Arc::clone(&it.name), Arc::clone(&it.labels))),
            _ => None,
        });
        let namespaces = namespaces.collect();
        Ok(Self { prober, matrix, internet, nets, namespaces })
    }

    /// The manifests, with the representatives.
    pub fn manifests(&self) -> &Manifests {
        self.prober.manifests()
    }

    /// The cluster node of an address of a pod.
    pub fn node_of(&self, address: IpAddr) -> Option<&control::model::Node> {
        let world = self.prober.world();
        world.node_of(address).and_then(|name| world.node(name))
    }

    /// A connection that refutes a statement.
    ///
    /// # Errors
    /// A side that names what does not exist.
    pub fn refute(&self, statement: &Statement) -> Result<Option<Counterexample>, String> {
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
        let (from, to) = (self.grouped(from), self.grouped(to));
        let pairs = from.iter().flat_map(|from| to.iter().map(move |to| (from, to)));
        Ok(pairs
            .filter(|(from, to)| self.is_pair(from, to))
            .find_map(|(from, to)| self.check(statement, from, to)))
    }

    fn ends(&self, side: &Side, statement: &Statement) -> Result<Vec<End>, String> {
        let world = self.prober.world();
        let of_pod = |pod: &control::model::Pod| -> Vec<End> {
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
                            let protocol = super::run::of_model(port.protocol);
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
            Side::AnyPod => all().flat_map(of_pod).collect(),
            Side::Any => {
                let internet = self.internet.iter().copied().map(of_address);
                all().flat_map(of_pod).chain(internet).collect()
            }
            Side::Pods(namespace, labels) => {
                let pods = all().filter(|pod| {
                    namespace.as_ref().is_none_or(|it| **it == *self.named(&pod.key.namespace))
                        && labels.iter().all(|(key, value)| pod.labels.value(key) == Some(value))
                });
                pods.flat_map(of_pod).collect()
            }
        };
        if found.is_empty() { Err("stands for nothing that could exist".into()) } else { Ok(found) }
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

    /// Two ends of each class that tables and networks treat alike.
    fn grouped(&self, ends: Vec<End>) -> Vec<End> {
        let view = self.matrix.view();
        let mut counts: HashMap<_, usize> = HashMap::new();
        let mut kept = Vec::new();
        for end in ends {
            let tables = end.pod.as_ref().map(|pod| matrix::tables(view, pod));
            let tables = tables.map(|pair| pair.map(|table| table.as_ref().map(Arc::as_ptr)));
            let nets: Vec<bool> = self.nets.iter().map(|it| it.contains(&end.address)).collect();
            let identity = view.addresses.lookup(end.address.into());
            let node = end.pod.is_none().then(|| end.node.clone());
            let named = end.pod.as_ref().and_then(|pod| match &self.port_names(pod)[..] {
                [] => None,
                _ => Some(pod.clone()),
            });
            let v4 = end.address.is_ipv4();
            let count =
                counts.entry((tables, nets, identity, node, named, end.port, v4)).or_default();
            *count += 1;
            if *count <= 2 {
                kept.push(end);
            }
        }
        kept
    }

    fn port_names(&self, pod: &PodKey) -> Vec<Arc<str>> {
        let pod = self.prober.world().pod(pod);
        pod.iter().flat_map(|it| it.ports.iter()).map(|it| Arc::clone(&it.name)).collect()
    }

    /// Whether both ends can be there at once, and are two.
    fn is_pair(&self, from: &End, to: &End) -> bool {
        let apart = match (&from.pod, &to.pod) {
            (Some(a), Some(b)) => {
                a != b
                    && (a.namespace == b.namespace
                        || self.named(&a.namespace) != self.named(&b.namespace))
            }
            // What two hosts outside do is nothing that a rule decides about.
            (None, None) => from.node != to.node,
            _ => true,
        };
        apart && from.address != to.address && from.address.is_ipv4() == to.address.is_ipv4()
    }

    fn check(&self, statement: &Statement, from: &End, to: &End) -> Option<Counterexample> {
        let ends = [from, to].map(|end| (end.pod.as_ref(), end.node.as_ref()));
        let tables = matrix::tables_between(self.matrix.view(), ends);
        for protocol in Protocol::ALL {
            if statement.protocol.is_some_and(|it| it != protocol) {
                continue;
            }
            let ports = match (&to.port, &statement.port) {
                (Some((of, port)), _) if *of == protocol => BTreeSet::from([*port]),
                (Some(_), _) => BTreeSet::new(),
                (None, Some(Port::Number(number))) => BTreeSet::from([*number]),
                (None, Some(Port::Name(name))) => {
                    let pod = to.pod.as_ref().and_then(|pod| self.prober.world().pod(pod));
                    let number = pod.and_then(|pod| pod.named_port(name, protocol.with_ports()?));
                    number.into_iter().collect()
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
                    ends: [from, to].map(|end| (end.pod.clone(), end.address)),
                });
            }
        }
        None
    }
}
