//! A cluster that can be asked.

use std::net::IpAddr;

use control::{Control, Object, PodKey, Scope};

use super::case::Fault;
use super::cluster::Cluster;
use super::complete::complete;
use super::plan::{Plan, Question, plan};
use super::world::{Spot, World};
use super::{Answer, Case, Endpoint};

/// The switches of a cluster, with what is needed to ask them.
pub struct Prober {
    world: World,
    cluster: Cluster,
}

impl Prober {
    /// The cluster that these objects, each of which is there once, describe. `mentioned` are
    /// the addresses that cases will name.
    ///
    /// # Errors
    /// When there are more pods than addresses or ports for them.
    pub fn new(
        mut objects: Vec<Object>,
        mentioned: impl IntoIterator<Item = IpAddr>,
    ) -> Result<Self, String> {
        complete(&mut objects, mentioned)?;
        let world = World::new(&objects);
        let mut control = Control::new(Scope::All);
        control.resync(objects);
        control.commit();
        let cluster = Cluster::new(&control.view())?;
        Ok(Self { world, cluster })
    }

    /// What case `number` names that does not exist.
    pub fn check(&self, number: usize, case: &Case) -> Vec<Fault> {
        let unknown = |field, endpoint: &Endpoint| {
            let problem = match endpoint {
                Endpoint::Pod(key) if self.world.pod(key).is_none() => format!("Pod {key}"),
                Endpoint::Node(name) if self.world.node(name).is_none() => format!("Node {name}"),
                Endpoint::Service(key) if self.world.service(key).is_none() => {
                    format!("Service {key}")
                }
                _ => return None,
            };
            let problem = format!("{problem} is not in the manifests");
            Some(Fault { case: Some(number), field, problem })
        };
        [unknown("from", &case.from), unknown("to", &case.to)].into_iter().flatten().collect()
    }

    /// The pods that have not finished, in order.
    pub fn pods(&self) -> Vec<PodKey> {
        self.world.pods().filter(|pod| !pod.finished).map(|pod| pod.key.clone()).collect()
    }

    /// Addresses that more than one object claims, as a line each; connections from or to them
    /// are denied.
    pub fn contested(&self) -> Vec<String> {
        let name = |spot: &Spot| match spot {
            Spot::Pod(key) => format!("Pod {key}"),
            Spot::Node(name) => format!("Node {name}"),
            Spot::Elsewhere => "others".to_owned(),
        };
        let line = |(address, spots): (IpAddr, &std::collections::BTreeSet<Spot>)| {
            let claimants: Vec<String> = spots.iter().map(name).collect();
            format!("{address} is claimed by {}", claimants.join(" and "))
        };
        self.world.contested().into_iter().map(line).collect()
    }

    /// Answers questions, in order.
    pub fn ask<'a>(&mut self, questions: impl IntoIterator<Item = Question<'a>>) -> Vec<Answer> {
        let plans: Vec<Plan> =
            questions.into_iter().map(|question| plan(&self.world, &question)).collect();
        let connections: Vec<_> = plans
            .iter()
            .filter_map(|plan| match plan {
                Plan::Ask(_, asked) => Some(asked.iter().map(|(_, connection)| connection.clone())),
                Plan::Settled(_) => None,
            })
            .flatten()
            .collect();
        let mut answers = self.cluster.open(&self.world, &connections).into_iter();
        plans
            .into_iter()
            .map(|plan| match plan {
                Plan::Settled(answer) => answer,
                Plan::Ask(difference, asked) => {
                    let labels = asked.into_iter().map(|(label, _)| label);
                    let labelled = labels.zip(answers.by_ref()).collect();
                    let nothing = || Answer::deny(super::answer::reason::NO_ENDPOINTS);
                    Answer::all(difference, labelled).unwrap_or_else(nothing)
                }
            })
            .collect()
    }
}

impl Case {
    /// What it asks.
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
        [&self.from, &self.to].into_iter().filter_map(|endpoint| match endpoint {
            Endpoint::Address(address) => Some(*address),
            _ => None,
        })
    }
}
