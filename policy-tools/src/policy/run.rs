//! Runs the cases of a suite.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use acl::Origin;
use control::Object;
use control::PodKey;
use control::model::{Pod, PortSpec};

use super::explain::explain;
use super::labels::Cluster;
use super::matrix::{self, Matrix};
use super::possible::Possible;
use super::representatives::{self, Kinds, Selectors};
use super::suite::{Expectation, Side, Suite};
use crate::input::Manifests;
use crate::probe::{
    Answer, DomainAddresses, Endpoint, Expected, Judgement, Port, Prober, Protocol, Question,
};

/// The result of one case.
#[derive(Clone, Debug)]
pub struct CaseOutcome {
    /// The case's name.
    pub name: String,
    /// The file it is in.
    pub file: String,
    /// Its line there.
    pub line: u64,
    /// Number of connections.
    pub connections: usize,
    /// Those that are not as expected, in words.
    pub failures: Vec<String>,
    /// Those that nothing decides about, in words: the case neither holds nor fails.
    pub undecided: Vec<String>,
}

impl CaseOutcome {
    /// Returns whether the case holds.
    pub fn holds(&self) -> bool {
        self.failures.is_empty() && self.undecided.is_empty()
    }
}

/// A cluster that suites are run against.
pub struct Runner {
    prober: Prober,
    matrix: Matrix,
    /// Addresses of the internet: one of the pods' own family first, then one of the other family and those that
    /// stand for names. What must be allowed has to be so at the first, what must be denied at each.
    internet: Vec<IpAddr>,
    /// Addresses that stand for names and the API server, in words.
    of_peers: BTreeMap<IpAddr, String>,
    /// Ports that policies name.
    ports: BTreeSet<(Protocol, u16)>,
}

impl Runner {
    /// The cluster of these manifests, with domain names; `suites` name addresses that invented ones
    /// must not take.
    ///
    /// # Errors
    /// Fails if there are more pods than addresses.
    pub fn new(
        mut manifests: Manifests,
        suites: &[(String, Suite)],
        names: DomainAddresses,
    ) -> Result<Self, String> {
        // A name may open its addresses.
        let is_named = |address| names.addresses().any(|it| it == address);
        let internet = matrix::internet(&manifests.objects, is_named);
        let first = internet.ok_or("no address is left for the internet")?;
        let others = matrix::outside(&manifests.objects, !first.is_ipv4()).into_iter();
        let mut others: Vec<(IpAddr, String)> =
            others.filter(|(address, _)| !is_named(*address)).collect();
        others.sort_by_key(|(_, name)| name != "internet");
        let other = others.first().map(|(address, _)| *address);
        let narrowed = manifests.families.only();
        let possible = Possible::of(manifests.objects.iter(), &names);
        manifests.objects.extend(possible.objects);
        let internet = [Some(first), other].into_iter().flatten();
        let internet = internet.chain(possible.names.addresses());
        let internet: Vec<IpAddr> =
            internet.filter(|it| narrowed.is_none_or(|v4| it.is_ipv4() == v4)).collect();
        let ports = policy_ports(&manifests.objects);
        let cases = suites.iter().flat_map(|(_, suite)| &suite.cases);
        let sides = cases.flat_map(|case| [&case.from, &case.to]);
        if sides.clone().any(|side| side.could_exist()) {
            let selectors = Selectors::of(&manifests.objects);
            let mut kinds = Kinds::by_port(&manifests.objects);
            representatives::add(&mut manifests, &selectors, &mut kinds)?;
        }
        let named = sides.filter_map(|side| match side {
            Side::One(end) => end.address(),
            _ => None,
        });
        let named: Vec<IpAddr> = named.chain(internet.iter().copied()).collect();
        let prober = Prober::with_possible(manifests, named, names, &possible.names)?;
        let matrix = Matrix::new(prober.control().view())?;
        Ok(Self { prober, matrix, internet, of_peers: possible.words, ports })
    }

    /// Runs one file's cases.
    ///
    /// # Errors
    /// Every end that does not exist, and every selector that selects nothing.
    pub fn run(&mut self, file: &str, suite: &Suite) -> Result<Vec<CaseOutcome>, Vec<String>> {
        let mut faults = Vec::new();
        let mut pairs: Vec<Vec<(Endpoint, Endpoint)>> = Vec::new();
        for case in &suite.cases {
            let mut ends = |field: &str, side: &Side| {
                let found = self.ends(side);
                found.unwrap_or_else(|problem| {
                    faults.push(format!("{file}: line {}: {field}: {problem}", case.line));
                    Vec::new()
                })
            };
            let (from, to) = (ends("from", &case.from), ends("to", &case.to));
            let alone = from.len() == 1 && to.len() == 1;
            let each = from.iter().flat_map(|from| to.iter().map(move |to| (from, to)));
            // A pod that both selectors match does not connect to itself.
            let each = each.filter(|(from, to)| alone || from != to);
            let is_internet = |end: &&Endpoint| {
                end.address().is_some_and(|address| self.internet.contains(&address))
            };
            // Nor do two addresses of the internet, beside other ends.
            let is_about_it = [&case.from, &case.to].iter().all(|it| **it == Side::Internet);
            let each = each.filter(|(from, to)| {
                alone || is_about_it || !(is_internet(from) && is_internet(to))
            });
            pairs.push(each.map(|(from, to)| (from.clone(), to.clone())).collect());
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        let questions = suite.cases.iter().zip(&pairs).flat_map(|(case, pairs)| {
            pairs.iter().map(|(from, to)| Question {
                from,
                to,
                protocol: case.protocol,
                port: case.port.as_ref(),
            })
        });
        let questions: Vec<Question<'_>> = questions.collect();
        let answers = self.prober.answer(questions).map_err(|it| vec![format!("{file}: {it}")])?;
        let mut answers = answers.into_iter();
        let mut outcomes = Vec::new();
        for (case, pairs) in suite.cases.iter().zip(&pairs) {
            let (mut failures, mut undecided) = (Vec::new(), Vec::new());
            for (pair, answer) in pairs.iter().zip(answers.by_ref()) {
                if case.expect == Expected::Allow && self.is_further_internet(pair) {
                    continue;
                }
                match answer.compare(case.expect) {
                    Judgement::Holds => {}
                    Judgement::Undecided => undecided.push(self.failure(case, pair, &answer)),
                    Judgement::Fails => {
                        let hint = match failures.len() {
                            0 => self.hint(case, pair),
                            _ => String::new(),
                        };
                        failures.push(self.failure(case, pair, &answer) + &hint);
                    }
                }
            }
            if undecided.len() < pairs.len() && case.is_of_families() {
                // An end that stands for addresses of both families: the other one decides.
                undecided.clear();
            }
            outcomes.push(CaseOutcome {
                name: case.name.clone(),
                file: file.to_owned(),
                line: case.line,
                connections: pairs.len(),
                failures,
                undecided,
            });
        }
        if let Some(line) = suite.everything_else {
            outcomes.push(self.everything_else(file, line, suite, &pairs));
        }
        Ok(outcomes)
    }

    /// Returns whether an end is the internet at an address beside the first.
    fn is_further_internet(&self, (from, to): &(Endpoint, Endpoint)) -> bool {
        let others = self.internet.iter().skip(1);
        others.copied().any(|it| [from, to].into_iter().any(|end| end.address() == Some(it)))
    }

    /// The rule that nearly allowed a connection.
    fn hint(&mut self, case: &Expectation, (from, to): &(Endpoint, Endpoint)) -> String {
        let question = Question { from, to, protocol: case.protocol, port: case.port.as_ref() };
        let Ok(why) = explain(&mut self.prober, question) else { return String::new() };
        let closest = [why.egress, why.ingress].into_iter().flatten().find_map(|it| it.closest);
        closest.map_or_else(String::new, |closest| format!("; closest: {closest}"))
    }

    fn ends(&self, side: &Side) -> Result<Vec<Endpoint>, String> {
        let world = self.prober.world();
        let internet = || self.internet.iter().map(|address| Endpoint::Address(*address));
        let found: Vec<Endpoint> = match side {
            Side::One(endpoint) => match self.prober.unknown(endpoint) {
                Some(problem) => return Err(problem),
                None => vec![endpoint.clone()],
            },
            Side::Internet => internet().collect(),
            Side::Nodes => {
                let could_exist = &self.prober.manifests().representative_nodes;
                let nodes = world.nodes().filter(|node| !could_exist.contains_key(&node.name));
                nodes.map(|node| Endpoint::Node(Arc::clone(&node.name))).collect()
            }
            pods => {
                let manifests = self.prober.manifests();
                let cluster = Cluster::new(&manifests.objects);
                let is_of_files = matches!(pods, Side::Any | Side::Pods(_));
                let has = |pod: &&Pod| {
                    !(pod.finished || is_of_files && self.stands(&pod.key))
                        && pods.has(pod, manifests, cluster.namespace(&pod.key.namespace))
                };
                let found = world.pods().filter(has).map(|pod| Endpoint::Pod(pod.key.clone()));
                found.chain(internet().filter(|_| *pods == Side::Any)).collect()
            }
        };
        if found.is_empty() { Err("selects nothing in the manifests".into()) } else { Ok(found) }
    }

    /// Every connection between two pods, or a pod and the internet, that no case is about must be
    /// denied: on every port that a case, a policy or a container names, and one that none does.
    fn everything_else(
        &self,
        file: &str,
        line: u64,
        suite: &Suite,
        pairs: &[Vec<(Endpoint, Endpoint)>],
    ) -> CaseOutcome {
        let world = self.prober.world();
        let mut ports = self.ports.clone();
        ports.insert((Protocol::Icmp, 0));
        let container_ports = world.pods().flat_map(|pod| pod.ports.named.iter());
        ports.extend(container_ports.map(|port| (of_model(port.protocol), port.number)));
        let mut covered: HashSet<(IpAddr, IpAddr, Protocol, u16)> = HashSet::new();
        for (case, pairs) in suite.cases.iter().zip(pairs) {
            for (from, to) in pairs {
                for (source, target, port) in self.connections(case, from, to) {
                    ports.insert((case.protocol, port));
                    covered.insert((source, target, case.protocol, port));
                }
            }
        }
        let unnamed = (1..=u16::MAX).rev().find(|port| !ports.contains(&(Protocol::Tcp, *port)));
        ports.extend(unnamed.map(|port| (Protocol::Tcp, port)));

        let pods: BTreeMap<&PodKey, &[IpAddr]> =
            self.matrix.view().pods.iter().map(|(key, pod)| (key, &*pod.addresses)).collect();
        let pods = pods.into_iter().filter(|(pod, _)| !self.stands(pod));
        let mut ends: Vec<(String, &[IpAddr])> =
            pods.map(|(key, addresses)| (key.to_string(), addresses)).collect();
        // No case can say which addresses names have.
        let is_of_peers = |it: &IpAddr| self.of_peers.contains_key(it);
        let internet = self.internet.iter().copied().filter(|it| !is_of_peers(it));
        let internet: Vec<IpAddr> = internet.collect();
        ends.push(("internet".into(), &internet));
        let (mut connections, mut failures) = (0, Vec::new());
        let mut told = HashSet::new();
        for (from, sources) in &ends {
            for (to, targets) in ends.iter().filter(|(to, _)| to != from) {
                let family = |source: &IpAddr| {
                    let target = targets.iter().find(|it| it.is_ipv4() == source.is_ipv4())?;
                    Some((*source, *target))
                };
                for (source, target) in sources.iter().filter_map(family) {
                    for (protocol, port) in &ports {
                        if covered.contains(&(source, target, *protocol, *port)) {
                            continue;
                        }
                        connections += 1;
                        let decision = self.matrix.decide(source, target, *protocol, *port);
                        if decision.permits {
                            let by = Origin::list(&decision.by);
                            let port = if *protocol == Protocol::Icmp {
                                String::new()
                            } else {
                                format!(" {port}")
                            };
                            let failure =
                                format!("{from} to {to} {}{port}: allow, by {by}", protocol.name());
                            // It may open in both families.
                            if told.insert(failure.clone()) {
                                failures.push(failure);
                            }
                        }
                    }
                }
            }
        }
        let name = "everything else: deny".to_owned();
        let undecided = Vec::new();
        CaseOutcome { name, file: file.to_owned(), line, connections, failures, undecided }
    }

    fn failure(
        &self,
        case: &Expectation,
        (from, to): &(Endpoint, Endpoint),
        answer: &Answer,
    ) -> String {
        let port: String = case.port.iter().map(|port| format!(" {port}")).collect();
        let by = match answer.by.is_empty() {
            true => String::new(),
            false => format!(", by {}", Origin::list(&answer.by)),
        };
        let words = |end: &Endpoint| match end {
            Endpoint::Pod(key) => self.prober.manifests().representatives.get(key).cloned(),
            Endpoint::Address(address) => self.of_peers.get(address).cloned(),
            _ => None,
        };
        let [from, to] = [from, to].map(|end| words(end).unwrap_or_else(|| end.to_string()));
        let (protocol, Answer { verdict, reason, .. }) = (case.protocol.name(), answer);
        format!("{from} to {to} {protocol}{port}: {verdict}, {reason}{by}")
    }

    /// Returns whether a pod represents those that could exist.
    fn stands(&self, pod: &PodKey) -> bool {
        self.prober.manifests().representatives.contains_key(pod)
    }

    /// The connections between pods that a case's pair of ends comes to.
    fn connections(
        &self,
        case: &Expectation,
        from: &Endpoint,
        to: &Endpoint,
    ) -> Vec<(IpAddr, IpAddr, u16)> {
        let (world, view) = (self.prober.world(), self.matrix.view());
        let protocol = case.protocol.with_ports();
        let sources = self.addresses(from);
        let numbers = |pod: &PodKey| -> Vec<u16> {
            match (&case.port, protocol) {
                (None, _) => vec![0],
                (Some(Port::Number(number)), _) => vec![*number],
                (Some(Port::Name(name)), Some(protocol)) => {
                    let pod = world.pod(pod).into_iter();
                    pod.flat_map(|pod| pod.named_ports(name, protocol)).collect()
                }
                (Some(Port::Name(_)), None) => Vec::new(),
            }
        };
        let targets: Vec<(IpAddr, u16)> = match to {
            Endpoint::Pod(key) => {
                let ports = numbers(key);
                let addresses = self.addresses(to).into_iter();
                addresses.flat_map(|it| ports.iter().map(move |port| (it, *port))).collect()
            }
            Endpoint::Service(key) => {
                let service = view.services.get(key);
                let ports =
                    service.iter().flat_map(|it| it.service.ports.iter().zip(&it.endpoints));
                let wanted = ports.filter(|(port, _)| {
                    Some(port.protocol) == protocol
                        && case.port.as_ref().is_some_and(|it| it.is(port))
                });
                wanted.flat_map(|(_, list)| list).map(|it| (it.address, it.port)).collect()
            }
            Endpoint::Address(_) | Endpoint::Node(_) | Endpoint::Name(_) => match &case.port {
                Some(Port::Name(_)) => Vec::new(),
                Some(Port::Number(port)) => {
                    self.addresses(to).into_iter().map(|it| (it, *port)).collect()
                }
                None => self.addresses(to).into_iter().map(|it| (it, 0)).collect(),
            },
        };
        let pairs =
            sources.iter().flat_map(|from| targets.iter().map(|(to, port)| (*from, *to, *port)));
        pairs.collect()
    }

    fn addresses(&self, end: &Endpoint) -> Vec<IpAddr> {
        let world = self.prober.world();
        match end {
            Endpoint::Address(address) => vec![*address],
            Endpoint::Pod(key) => {
                world.pod(key).map_or_else(Vec::new, |pod| pod.addresses.to_vec())
            }
            Endpoint::Node(name) => {
                world.node(name).map_or_else(Vec::new, |it| it.addresses.clone())
            }
            Endpoint::Name(name) => world.addresses_of(name).collect(),
            Endpoint::Service(_) => Vec::new(),
        }
    }

    /// Addresses of names that open nothing, as a line each.
    pub fn ignored(&self) -> impl Iterator<Item = String> + '_ {
        self.prober.ignored()
    }
}

pub(super) fn of_model(protocol: control::model::Protocol) -> Protocol {
    match protocol {
        control::model::Protocol::Tcp => Protocol::Tcp,
        control::model::Protocol::Udp => Protocol::Udp,
        control::model::Protocol::Sctp => Protocol::Sctp,
    }
}

/// The numbers of ports that policies name, of ranges the ends.
fn policy_ports(objects: &[Object]) -> BTreeSet<(Protocol, u16)> {
    let mut found = BTreeSet::new();
    matrix::each_rule(objects, |rule| {
        for ports in rule.ports.iter().flatten() {
            if let PortSpec::Range(range) = &ports.port {
                let protocol = of_model(ports.protocol);
                found.extend([range.first, range.last].map(|port| (protocol, port)));
            }
        }
    });
    found
}
