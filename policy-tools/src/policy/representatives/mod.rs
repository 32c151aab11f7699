//! Pods and nodes that could exist, one for each class that selectors can tell apart.
//!
//! ```text
//! selectors ─▶ classes of namespaces ─▶ in each, classes of pods ─▶ a pod and its words for each
//! ```
//!
//! A class is the set of selectors that match. Keys are taken one by one: a label is absent, has a
//! value that a selector names, or another one; choices that rule out the same selectors are one.
//! A class that a pod of the manifests is in needs no representative. Nodes have classes where host
//! firewalls or peers select them by labels, or where firewalls are there and no node is. Where an egress firewall is about
//! the pods of some nodes, pods have the classes of their nodes too.
//!
//! - `classes`: the labels of each class,
//! - `general`: the most general of several classes,
//! - `nodes`: nodes of each class,
//! - `ports`: numbers of named ports, where rules have names,
//! - `addresses`: parts of pods' networks, where policies name networks.

mod addresses;
mod classes;
mod general;
mod nodes;
mod ports;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use control::model::{
    ContainerPort, Labels, Namespace, Namespaces, Peer, Pod, PodPorts, PolicyRule, Selector,
};
use control::{Object, PodKey};
use ipnet::IpNet;

use super::matrix;
use super::suite::{Pods, Side};
use crate::input::{self, Manifests};
use crate::probe::Endpoint;

pub use addresses::Parts;
use classes::classes;
pub use general::General;
use nodes::{add_nodes, homes};
pub use ports::PortRule;

/// Maximum number of classes.
pub const MOST: usize = 20_000;

/// A pod selector with the namespaces that it is about.
type Atom = (Namespaces, Selector);

/// The selectors that tell pods and nodes apart.
#[derive(Clone, Debug, Default)]
pub struct Selectors {
    pods: BTreeSet<Atom>,
    nodes: BTreeSet<Selector>,
    /// Selectors of nodes whose pods an egress firewall is about.
    nodes_of_pods: BTreeSet<Selector>,
}

impl Selectors {
    /// Those of policies.
    pub fn of<'a>(objects: impl IntoIterator<Item = &'a Object>) -> Self {
        let (mut found, mut nodes) = (BTreeSet::new(), BTreeSet::new());
        let mut nodes_of_pods = BTreeSet::new();
        for object in objects {
            match object {
                Object::NetworkPolicy(policy) => {
                    let own = Namespaces::Own(Arc::clone(&policy.key.namespace));
                    found.insert((own, policy.selector.clone()));
                    let rules = policy.ingress.iter().chain(&policy.egress).flatten();
                    rules.for_each(|rule| peers(rule, &mut found, &mut nodes));
                }
                Object::ClusterNetworkPolicy(policy) => {
                    let namespaces = Namespaces::Selected(policy.namespaces.clone());
                    found.insert((namespaces, policy.pods.clone()));
                    let rules = policy.ingress.iter().chain(&policy.egress);
                    rules.for_each(|it| peers(&it.rule, &mut found, &mut nodes));
                }
                Object::ClusterEgressFirewall(policy) => {
                    let namespaces = Namespaces::Selected(policy.namespaces.clone());
                    found.insert((namespaces, policy.pods.clone()));
                    if !policy.nodes.is_everything() {
                        nodes_of_pods.insert(policy.nodes.clone());
                    }
                    let rules = policy.egress.iter();
                    rules.for_each(|it| peers(&it.rule, &mut found, &mut nodes));
                }
                Object::ClusterHostFirewall(policy) => {
                    nodes.insert(policy.nodes.clone());
                    let rules = policy.ingress.iter().chain(&policy.egress);
                    rules.for_each(|it| peers(&it.rule, &mut found, &mut nodes));
                }
                _ => {}
            }
        }
        nodes.extend(nodes_of_pods.iter().cloned());
        Self { pods: found, nodes, nodes_of_pods }
    }

    /// The keys of pods' labels that they name.
    pub(super) fn keys(&self) -> BTreeSet<Arc<str>> {
        let requirements = self.pods.iter().flat_map(|(_, pods)| pods.requirements());
        requirements.map(|it| Arc::clone(&it.key)).collect()
    }

    /// Adds those of a statement.
    pub fn add(&mut self, pods: &Pods) {
        self.pods.insert(atom(pods));
    }
}

pub(super) fn atom(of: &Pods) -> Atom {
    (Namespaces::Selected(of.namespaces.clone()), of.pods.clone())
}

fn peers(rule: &PolicyRule, found: &mut BTreeSet<Atom>, nodes: &mut BTreeSet<Selector>) {
    for peer in rule.peers.iter().flatten() {
        match peer {
            Peer::Pods { namespaces, pods } => {
                found.insert((namespaces.clone(), pods.clone()));
            }
            Peer::Nodes(selector) => {
                nodes.insert(selector.clone());
            }
            Peer::Block(..) | Peer::ApiServer | Peer::Name(_) => {}
        }
    }
}

/// Properties that tell pods with the same labels apart.
#[derive(Default)]
pub struct Kinds {
    /// The parts of their addresses; without any, a pod has an address as others have.
    pub parts: Parts,
    /// Rules and statements with ports; without any, a pod has no named port.
    pub ports: Vec<PortRule>,
}

impl Kinds {
    /// The kinds that port names of policies tell apart.
    pub fn by_port(objects: &[Object]) -> Self {
        Self { parts: Parts::default(), ports: ports::of_policies(objects) }
    }

    /// The kinds that the policies among the objects tell apart, and these rules too. The policies'
    /// networks are changed; see [`Parts::cut`].
    ///
    /// # Errors
    /// As of [`Parts::cut`].
    pub fn of(
        objects: &mut [Object],
        rules: Vec<PortRule>,
        pod_networks: &[IpNet],
        families: &[bool],
    ) -> Result<Self, String> {
        let parts = Parts::cut(objects, pod_networks, families)?;
        let ports = ports::of_policies(objects).into_iter().chain(rules).collect();
        Ok(Self { parts, ports })
    }
}

/// Adds a pod for each class that no pod of the manifests is in, and its namespace.
///
/// # Errors
/// Fails if there are more than [`MOST`] classes.
pub fn add(
    manifests: &mut Manifests,
    selectors: &Selectors,
    kinds: &mut Kinds,
) -> Result<(), String> {
    let mut namespaces = namespaces(manifests, selectors)?;
    namespaces.extend(invented(&namespaces, selectors)?);
    add_nodes(manifests, selectors)?;
    let homes = homes(manifests, selectors)?;
    let mut pods: HashMap<Arc<str>, Vec<&Pod>> = HashMap::new();
    for pod in manifests.pods().filter(|pod| !pod.finished && pod.is_on_pod_network()) {
        pods.entry(Arc::clone(&pod.key.namespace)).or_default().push(pod);
    }
    let parts = kinds.parts.combinations();
    let (mut objects, mut words, mut names) = (Vec::new(), BTreeMap::new(), BTreeSet::new());
    for Place { namespace, exists, place } in namespaces {
        let relevant = selectors.pods.iter().filter(|(of, _)| is_about(of, &namespace));
        let relevant: BTreeSet<&Selector> = relevant.map(|(_, pods)| pods).collect();
        let relevant: Vec<&Selector> = relevant.into_iter().collect();
        let matching = |labels: &Labels| -> Vec<bool> {
            relevant.iter().map(|selector| selector.matches(labels)).collect()
        };
        let here = pods.get(&namespace.name).into_iter().flatten();
        let here = here.flat_map(|pod| {
            let home = homes.iter().position(|home| home.has(pod));
            home.map(|home| (matching(&pod.labels), home))
        });
        let here: HashSet<(Vec<bool>, usize)> = here.collect();
        let mut count = 0;
        let all = classes(&relevant, &[])?;
        let both =
            { &all }.iter().flat_map(|it| homes.iter().enumerate().map(move |home| (it, home)));
        for (labels, (n, home)) in both {
            let is_here = here.contains(&(matching(labels), n));
            let variants = ports::variants(&kinds.ports, &namespace, labels)?;
            for named in &variants {
                for part in &parts {
                    count += 1;
                    if is_here && variants.len() == 1 && parts.len() == 1 {
                        continue;
                    }
                    let key = PodKey {
                        namespace: Arc::clone(&namespace.name),
                        name: format!("any-pod-{}", count - 1).into(),
                    };
                    let none = if is_here { "" } else { " (none in these files)" };
                    let (with, at) = (with(labels, named), kinds.parts.words(part));
                    let at = format!("{at}{}", home.words);
                    words.insert(key.clone(), format!("any pod{with} of {place}{at}{none}"));
                    let addresses = kinds.parts.give(part);
                    let pod = pod(key, labels.clone(), addresses, named);
                    let pod = Pod { node: home.node.clone(), ..pod };
                    objects.push(Object::Pod(pod.into()));
                    too_many(words.len())?;
                }
            }
        }
        if !exists {
            names.insert(Arc::clone(&namespace.name));
            objects.push(Object::Namespace(namespace.into()));
        }
    }
    manifests.objects.extend(objects);
    manifests.representatives.extend(words);
    manifests.representative_namespaces.extend(names);
    Ok(())
}

/// The one end that a side stands for: where it is pods that could exist, one that is added.
///
/// # Errors
/// A side that is several ends.
pub fn end(manifests: &mut Manifests, side: &Side) -> Result<Endpoint, String> {
    let of = match side {
        Side::One(endpoint) => return Ok(endpoint.clone()),
        Side::Pods(of) => of.clone(),
        Side::AnyPod | Side::AnyNamespace => Pods::default(),
        Side::Internet => {
            let address = matrix::internet(&manifests.objects, |_| false);
            return address
                .map(Endpoint::Address)
                .ok_or("no address is left for the internet".into());
        }
        Side::ExistingNamespace | Side::Nodes | Side::Any => {
            let one = "NS/LABEL=VALUE[,…], any-pod and internet are one";
            return Err(format!("stands for several ends; {one}"));
        }
    };
    let [of_namespace, labels] = of.least_labels();
    let other = || match of_namespace.iter().next() {
        None => "(any other namespace)".to_owned(),
        Some(_) => format!("(any namespace{})", with_labels(&of_namespace)),
    };
    let namespace: Arc<str> = of.namespace().map_or_else(other, str::to_owned).into();
    let made = Object::Namespace(Namespace::new(Arc::clone(&namespace), &of_namespace).into());
    let is_new = of.namespace().is_none() && !manifests.objects.contains(&made);
    manifests.objects.extend(is_new.then_some(made));
    let names = ["any", "another"].map(|it| format!("({it} pod{})", with_labels(&labels)));
    let keys = names.map(|name| PodKey { namespace: Arc::clone(&namespace), name: name.into() });
    let is_free = |key: &&PodKey| !manifests.pods().any(|pod| pod.key == **key);
    let key = keys.iter().find(is_free).ok_or("is there twice")?.clone();
    let pod = pod(key.clone(), labels, Vec::new(), &[].into());
    manifests.objects.push(Object::Pod(pod.into()));
    Ok(Endpoint::Pod(key))
}

/// A namespace, and its words.
struct Place {
    namespace: Namespace,
    exists: bool,
    place: String,
}

/// The namespaces of the manifests, those that are only mentioned too.
fn namespaces(manifests: &Manifests, selectors: &Selectors) -> Result<Vec<Place>, String> {
    let own = selectors.pods.iter().filter_map(|(of, _)| match of {
        Namespaces::Own(name) => Some(name),
        Namespaces::Selected(_) => None,
    });
    let found = input::namespaces(&manifests.objects, own);
    too_many(found.len())?;
    let place = |namespace: Namespace| Place {
        place: format!("namespace {}", namespace.name),
        exists: true,
        namespace,
    };
    Ok(found.into_values().map(place).collect())
}

/// A namespace of each class beside those that exist.
fn invented(existing: &[Place], selectors: &Selectors) -> Result<Vec<Place>, String> {
    let names: BTreeSet<&str> = existing.iter().map(|it| &*it.namespace.name).collect();
    let of_namespaces: BTreeSet<&Selector> = selectors
        .pods
        .iter()
        .filter_map(|(of, _)| match of {
            Namespaces::Selected(selector) => Some(selector),
            Namespaces::Own(_) => None,
        })
        .collect();
    let of_namespaces: Vec<&Selector> = of_namespaces.into_iter().collect();
    let taken: Vec<&str> = names.iter().copied().collect();
    let (mut found, mut used) = (Vec::new(), BTreeSet::new());
    for (n, labels) in classes(&of_namespaces, &taken)?.into_iter().enumerate() {
        let named = labels.value(Namespace::NAME_LABEL).map(Arc::<str>::from);
        let others = labels.iter().filter(|(key, _)| &***key != Namespace::NAME_LABEL);
        let others: Labels =
            others.map(|(key, value)| (Arc::clone(key), Arc::clone(value))).collect();
        let place = match &named {
            Some(name) => format!("namespace {name}{}", with_labels(&others)),
            None if others.iter().next().is_none() => "any other namespace".to_owned(),
            None => format!("any namespace{}", with_labels(&others)),
        };
        let free = named.iter().cloned().chain((n..).map(|n| format!("any-namespace-{n}").into()));
        let name: Arc<str> =
            { free }.find(|it| !names.contains(&**it) && !used.contains(it)).unwrap_or_default();
        used.insert(Arc::clone(&name));
        // A name that several classes have is a label of all of them: only one has it as its name.
        let label = named.unwrap_or_else(|| Arc::clone(&name));
        let all = Arc::new(others.with(Namespace::NAME_LABEL, &label));
        let namespace = Namespace { labels: all, ..Namespace::new(name, &others) };
        found.push(Place { namespace, exists: false, place });
    }
    Ok(found)
}

fn is_about(of: &Namespaces, namespace: &Namespace) -> bool {
    match of {
        Namespaces::Own(name) => *name == namespace.name,
        Namespaces::Selected(selector) => selector.matches(&namespace.labels),
    }
}

fn with_labels(labels: &Labels) -> String {
    with(labels, &[])
}

/// Labels and named ports in words.
fn with(labels: &Labels, ports: &[ContainerPort]) -> String {
    let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let ports = ports.iter().map(|it| format!("port {}={}", it.name, it.number));
    let labels = Some(labels.join(",")).filter(|it| !it.is_empty());
    let all: Vec<String> = labels.into_iter().chain(ports).collect();
    if all.is_empty() { String::new() } else { format!(" with {}", all.join(" and ")) }
}

fn too_many(count: usize) -> Result<(), String> {
    match count > MOST {
        false => Ok(()),
        true => Err(format!(
            "the policies tell more than {MOST} classes of pods apart that could exist; fewer keys or \
             values in podSelector and namespaceSelector, port names, or networks inside those of pods \
             make fewer"
        )),
    }
}

fn pod(key: PodKey, labels: Labels, addresses: Vec<IpAddr>, named: &Arc<[ContainerPort]>) -> Pod {
    Pod {
        key,
        uid: None,
        labels: Arc::new(labels),
        node: None,
        addresses: addresses.into(),
        host_network: false,
        finished: false,
        is_static: false,
        is_terminating: false,
        created: 0,
        ports: Arc::new(PodPorts { named: Arc::clone(named), ..PodPorts::default() }),
        complete: true,
    }
}
