//! A cluster in memory that answers questions.

use std::collections::BTreeSet;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;

use control::model::Pod;
use control::{Control, PodAcl, PodKey, View};

use super::answer::{Reply, reason};
use super::case::Fault;
use super::cluster::{Cluster, Connection, Unended};
use super::complete::complete;
use super::plan::{Question, plan};
use super::world::{Location, World};
use super::{Answer, Case, DomainAddresses, Endpoint, Port, Protocol};
use crate::input::Manifests;

/// The switches of a cluster, and the objects that they come from.
pub struct Prober {
    world: World,
    control: Control,
    view: Arc<View>,
    cluster: Cluster,
    manifests: Manifests,
    /// Addresses of names that open nothing: the cluster's own, and special ones.
    ignored: BTreeSet<IpAddr>,
}

/// What distinguishes the connections of a question, and the reply about each, by name.
pub(super) type NamedReplies = (&'static str, Vec<(String, Reply)>);

impl Prober {
    /// The cluster that these objects, each of which is there once, describe. `mentioned` are
    /// the addresses that cases name.
    ///
    /// # Errors
    /// Fails if there are more pods than addresses or ports for them.
    pub fn new(
        manifests: impl Into<Manifests>,
        mentioned: impl IntoIterator<Item = IpAddr>,
    ) -> Result<Self, String> {
        Self::with_names(manifests, mentioned, DomainAddresses::default())
    }

    /// The same where DNS gives these addresses for names to every pod that asks.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn with_names(
        manifests: impl Into<Manifests>,
        mentioned: impl IntoIterator<Item = IpAddr>,
        names: DomainAddresses,
    ) -> Result<Self, String> {
        Self::with_possible(manifests, mentioned, names, &DomainAddresses::default())
    }

    /// As [`with_names`](Self::with_names), where DNS gives further addresses for names that no question can name.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub(crate) fn with_possible(
        manifests: impl Into<Manifests>,
        mentioned: impl IntoIterator<Item = IpAddr>,
        names: DomainAddresses,
        possible: &DomainAddresses,
    ) -> Result<Self, String> {
        let mut manifests = manifests.into();
        let of_names = names.addresses().chain(possible.addresses());
        complete(&mut manifests, mentioned.into_iter().chain(of_names))?;
        let mut control = manifests.control();
        let mut all = names.clone();
        all.extend(possible);
        let ignored = control.set_names(&all.changes(&control.view()));
        control.commit();
        let world = World::new(&manifests, names);
        let view = control.view();
        let cluster = Cluster::new(Arc::clone(&view))?;
        Ok(Self {
            world,
            control,
            view,
            cluster,
            manifests,
            ignored: ignored.into_iter().collect(),
        })
    }

    /// The policies behind the tables.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// The manifests, completed.
    pub fn manifests(&self) -> &Manifests {
        &self.manifests
    }

    /// The objects by name and by address.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Returns the names in case `number` that do not exist.
    pub fn check(&self, number: usize, case: &Case) -> Vec<Fault> {
        let unknown = |field, endpoint: &Endpoint| {
            let problem = self.unknown(endpoint)?;
            Some(Fault { case: Some(number), field, problem })
        };
        [unknown("from", &case.from), unknown("to", &case.to)].into_iter().flatten().collect()
    }

    /// The object that an endpoint names, in words, if it does not exist.
    pub fn unknown(&self, endpoint: &Endpoint) -> Option<String> {
        let object = match endpoint {
            Endpoint::Pod(key) if self.world.pod(key).is_none() => format!("Pod {key}"),
            Endpoint::Node(name) if self.world.node(name).is_none() => format!("Node {name}"),
            Endpoint::Service(key) if self.world.service(key).is_none() => format!("Service {key}"),
            Endpoint::Name(name) if self.world.addresses_of(name).next().is_none() => {
                return Some(format!("{name} has no address; --resolve {name}=ADDRESS gives one"));
            }
            _ => return None,
        };
        Some(format!("{object} is not in the manifests"))
    }

    /// What answers about a pod depend on, beside the other end, for questions about a port. Two pods that
    /// are equal in it have the same answers.
    pub(super) fn class(
        &self,
        key: &PodKey,
        protocol: Protocol,
        port: Option<&Port>,
    ) -> impl Eq + Hash + use<> {
        let pod = self.world.pod(key);
        let view = self.view.pods.get(key).filter(|_| pod.is_some_and(Pod::is_on_pod_network));
        let table = |acl: &PodAcl| match acl {
            PodAcl::Open => std::ptr::null(),
            PodAcl::Table(table) => Arc::as_ptr(table),
        };
        let of_view = view.map(|view| {
            let address = |it: &IpAddr| {
                let identity = self.view.addresses.lookup((*it).into());
                let is_odd = self.world.is_contested(*it);
                (it.is_ipv4(), identity, self.world.could_have(*it), is_odd)
            };
            let addresses: Vec<_> = view.addresses.iter().map(address).collect();
            (table(&view.from_pod), table(&view.to_pod), addresses)
        });
        let numbers: Vec<u16> = match (pod, port, protocol.with_ports()) {
            (Some(pod), Some(Port::Name(name)), Some(protocol)) => {
                pod.named_ports(name, protocol).collect()
            }
            _ => Vec::new(),
        };
        // One without tables of its own is like no other.
        let alone = of_view.is_none().then(|| key.clone());
        (of_view, numbers, alone)
    }

    /// The pods that have not finished, in order.
    pub fn pods(&self) -> Vec<PodKey> {
        self.world.pods().filter(|pod| !pod.finished).map(|pod| pod.key.clone()).collect()
    }

    /// Addresses that more than one object claims, as a line each; connections from or to them
    /// are denied.
    pub fn contested(&self) -> Vec<String> {
        let name = |location: &Location| match location {
            Location::Pod(key) => format!("Pod {key}"),
            Location::Node(name) => format!("Node {name}"),
            Location::Outside => "others".to_owned(),
        };
        let line = |(address, locations): (IpAddr, &std::collections::BTreeSet<Location>)| {
            let claimants: Vec<String> = locations.iter().map(name).collect();
            format!("{address} is claimed by {}", claimants.join(" and "))
        };
        self.world.contested().into_iter().map(line).collect()
    }

    /// Addresses of names that open nothing, as a line each.
    pub fn ignored(&self) -> impl Iterator<Item = String> + '_ {
        let line =
            |it| format!("{it}: an address of the cluster or a special one, no name opens it");
        self.ignored.iter().map(line)
    }

    /// Answers questions, in order.
    ///
    /// # Errors
    /// A connection that a switch gave no verdict about.
    pub fn answer<'a>(
        &mut self,
        questions: impl IntoIterator<Item = Question<'a>>,
    ) -> Result<Vec<Answer>, Unended> {
        let combined = |(difference, replies): (&'static str, Vec<(String, Reply)>)| {
            let answers = replies.into_iter().map(|(label, reply)| (label, reply.answer)).collect();
            Answer::all(difference, answers).unwrap_or_else(|| Answer::deny(reason::NO_ENDPOINT))
        };
        Ok(self.replies(questions)?.into_iter().map(combined).collect())
    }

    /// Opens the connections of questions; for each question returns what distinguishes its connections, and the named
    /// reply about each.
    ///
    /// # Errors
    /// A connection that a switch gave no verdict about.
    pub fn replies<'a>(
        &mut self,
        questions: impl IntoIterator<Item = Question<'a>>,
    ) -> Result<Vec<NamedReplies>, Unended> {
        let mut connections = Vec::new();
        let mut plans = Vec::new();
        for question in questions {
            plans.push(self.connections(&question).map(|(difference, named)| {
                let (labels, found): (Vec<String>, Vec<Connection>) = named.into_iter().unzip();
                connections.extend(found);
                (difference, labels)
            }));
        }
        let mut replies = self.cluster.open(&self.world, &connections)?.into_iter();
        let mut reply = |plan| match plan {
            Err(answer) => ("", vec![(String::new(), Reply::from(answer))]),
            Ok((difference, labels)) => {
                let labels: Vec<String> = labels;
                (difference, labels.into_iter().zip(replies.by_ref()).collect())
            }
        };
        Ok(plans.into_iter().map(&mut reply).collect())
    }

    /// Returns the connections of a question, each with a name, and what distinguishes them.
    #[allow(clippy::type_complexity, reason = "used once")]
    fn connections(
        &mut self,
        question: &Question<'_>,
    ) -> Result<(&'static str, Vec<(String, Connection)>), Answer> {
        let planned = plan(&self.world, &self.view.services, question)?;
        let to_endpoints = matches!(question.to, Endpoint::Service(_) | Endpoint::Name(_));
        let mut found = Vec::new();
        for connection in planned {
            found.extend(self.cluster.alternatives(&self.world, &connection));
        }
        let chooses = found.iter().any(|(label, _)| label.is_some());
        if chooses {
            // An address of a family without endpoints does not lead to the service.
            found.retain(|(label, _)| label.is_some());
        }
        // A port name that several containers have.
        let by_port = found.iter().enumerate().any(|(n, (_, one))| {
            found[..n].iter().any(|(_, other)| other.to == one.to && other.port != one.port)
        });
        let name = |(label, connection): (Option<String>, Connection)| {
            let label = label.unwrap_or_else(|| match self.world.location(connection.to) {
                Location::Pod(key) if to_endpoints => key.to_string(),
                _ if to_endpoints => connection.to.to_string(),
                _ if by_port => format!("port {}", connection.port),
                _ if connection.to.is_ipv4() => "IPv4".to_owned(),
                _ => "IPv6".to_owned(),
            });
            (label, connection)
        };
        let difference = match question.to {
            Endpoint::Name(_) if !chooses => "addresses-differ",
            _ if chooses || to_endpoints => "backends-differ",
            _ if by_port => "ports-differ",
            _ => "families-differ",
        };
        Ok((difference, found.into_iter().map(name).collect()))
    }
}

impl Case {
    /// The question it stands for.
    pub fn question(&self) -> Question<'_> {
        Question {
            from: &self.from,
            to: &self.to,
            protocol: self.protocol,
            port: self.port.as_ref(),
        }
    }

    /// The addresses it names.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        [&self.from, &self.to].into_iter().filter_map(Endpoint::address)
    }
}
