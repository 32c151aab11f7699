//! The numbers that port names have on pods that could exist.
//!
//! A rule tells two pods apart by the numbers that its port names have there. What it decides at a port
//! depends on which names have that number, and on the range of ports, between those that rules
//! number, that the port is in. So a class of pods has a pod for each set of names and each range in which
//! they could meet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use control::Object;
use control::model::{
    ContainerPort, Labels, Namespace, Namespaces, Peer, PortSpec, Ports, Protocol, Selector,
};

use super::{Atom, MOST, is_about, too_many};
use crate::policy::matrix::each_policy;

/// Ports that a rule or a statement names, and the pods that are connected to.
pub struct PortRule {
    /// `None`: any pod.
    pub pods: Option<Vec<(Namespaces, Selector)>>,
    /// The ports.
    pub ports: Vec<Ports>,
}

/// The ports of rules, each with the pods at which they count.
pub(super) fn of_policies(objects: &[Object]) -> Vec<PortRule> {
    let mut found = Vec::new();
    each_policy(objects, |policy| {
        for rule in policy.subject.iter().flat_map(|_| &policy.ingress) {
            let pods = policy.subject.clone().map(|(of, pods)| vec![(of, pods.clone())]);
            found.extend(rule.ports.as_ref().map(|ports| PortRule { pods, ports: ports.clone() }));
        }
        for rule in &policy.egress {
            let pods = rule
                .peers
                .as_ref()
                .filter(|peers| !peers.iter().any(|it| matches!(it, Peer::Block(..))));
            let pods: Option<Vec<Atom>> = pods.map(|peers| {
                let of_pods = peers.iter().filter_map(|peer| match peer {
                    Peer::Pods { namespaces, pods } => Some((namespaces.clone(), pods.clone())),
                    _ => None,
                });
                of_pods.collect()
            });
            found.extend(rule.ports.as_ref().map(|ports| PortRule { pods, ports: ports.clone() }));
        }
    });
    found
}

/// The named ports that pods of a class could have, as far as rules tell them apart; the first has none.
///
/// # Errors
/// Fails if there are more than [`MOST`].
pub(super) fn variants(
    rules: &[PortRule],
    namespace: &Namespace,
    labels: &Labels,
) -> Result<Vec<Arc<[ContainerPort]>>, String> {
    let mut names: BTreeMap<Protocol, BTreeSet<&Arc<str>>> = BTreeMap::new();
    let mut firsts: BTreeMap<Protocol, BTreeSet<u16>> = BTreeMap::new();
    let counts = |rule: &&PortRule| {
        rule.pods.as_ref().is_none_or(|atoms| {
            atoms.iter().any(|(of, pods)| is_about(of, namespace) && pods.matches(labels))
        })
    };
    for ports in rules.iter().filter(counts).flat_map(|rule| &rule.ports) {
        match &ports.port {
            PortSpec::Name(name) => {
                names.entry(ports.protocol).or_default().insert(name);
            }
            PortSpec::Range(range) => {
                let firsts = firsts.entry(ports.protocol).or_default();
                firsts.insert(range.first.max(1));
                firsts.extend(range.last.checked_add(1));
            }
            PortSpec::All => {}
        }
    }
    let mut found: Vec<Arc<[ContainerPort]>> = vec![[].into()];
    for (protocol, names) in names {
        let mut firsts = firsts.remove(&protocol).unwrap_or_default();
        firsts.insert(1);
        too_many(if names.len() < 15 { (1 << names.len()) * firsts.len() } else { MOST + 1 })?;
        for subset in 1..1_u32 << names.len() {
            let meant = names.iter().enumerate().filter(|(n, _)| subset >> n & 1 == 1);
            let meant: Vec<&Arc<str>> = meant.map(|(_, name)| *name).collect();
            for number in &firsts {
                let port = |name: &&Arc<str>| ContainerPort {
                    name: Arc::clone(name),
                    protocol,
                    number: *number,
                };
                found.push(meant.iter().map(port).collect());
            }
        }
    }
    Ok(found)
}
