//! Pods and nodes that could exist, one for each class that selectors can tell apart.
//!
//! ```text
//! selectors ─▶ classes of namespaces ─▶ in each, classes of pods ─▶ a pod and its words for each
//! ```
//!
//! A class is the set of selectors that match. Keys are taken one by one: a label is absent, has a
//! value that a selector names, or another one; choices that rule out the same selectors are one.
//! A class that a pod of the manifests is in needs no representative. Nodes have classes where host
//! firewalls select them by labels, or where firewalls are there and no node is.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use control::model::{
    Labels, Namespace, Namespaces, Node, Peer, Pod, PolicyRule, Requirement, Selector, Test,
};
use control::{Object, PodKey};

use crate::input::Manifests;

/// Classes of which more than this many are too many.
pub const MOST: usize = 20_000;

/// A pod selector with the namespaces that it is about.
type Atom = (Namespaces, Selector);

/// The selectors that tell pods and nodes apart.
#[derive(Clone, Debug, Default)]
pub struct Selectors {
    pods: BTreeSet<Atom>,
    nodes: BTreeSet<Selector>,
}

impl Selectors {
    /// Those of policies.
    pub fn of(objects: &[Object]) -> Self {
        let (mut found, mut nodes) = (BTreeSet::new(), BTreeSet::new());
        for object in objects {
            match object {
                Object::NetworkPolicy(policy) => {
                    let own = Namespaces::Own(Arc::clone(&policy.key.namespace));
                    found.insert((own, policy.selector.clone()));
                    let rules = policy.ingress.iter().chain(&policy.egress).flatten();
                    rules.for_each(|rule| peers(rule, &mut found));
                }
                Object::ClusterNetworkPolicy(policy) => {
                    let namespaces = Namespaces::Selected(policy.namespaces.clone());
                    found.insert((namespaces, policy.pods.clone()));
                    let rules = policy.ingress.iter().chain(&policy.egress);
                    rules.for_each(|it| peers(&it.rule, &mut found));
                }
                Object::ClusterEgressFirewall(policy) => {
                    let namespaces = Namespaces::Selected(policy.namespaces.clone());
                    found.insert((namespaces, policy.pods.clone()));
                    policy.egress.iter().for_each(|it| peers(&it.rule, &mut found));
                }
                Object::ClusterHostFirewall(policy) => {
                    nodes.insert(policy.nodes.clone());
                    let rules = policy.ingress.iter().chain(&policy.egress);
                    rules.for_each(|it| peers(&it.rule, &mut found));
                }
                _ => {}
            }
        }
        Self { pods: found, nodes }
    }

    /// The keys of pods' labels that they name.
    pub(super) fn keys(&self) -> BTreeSet<Arc<str>> {
        let requirements = self.pods.iter().flat_map(|(_, pods)| pods.requirements());
        requirements.map(|it| Arc::clone(&it.key)).collect()
    }

    /// Adds pods of a namespace (`None`: of any) that have these labels.
    pub fn add(&mut self, namespace: Option<&str>, labels: &[(String, String)]) {
        let is = |key: &str, value: &str| Requirement {
            key: key.into(),
            test: Test::In(BTreeSet::from([value.into()])),
        };
        let namespaces = namespace.map(|name| is(Namespace::NAME_LABEL, name));
        let pods = labels.iter().map(|(key, value)| is(key, value));
        self.pods.insert((Namespaces::Selected(namespaces.into_iter().collect()), pods.collect()));
    }
}

fn peers(rule: &PolicyRule, found: &mut BTreeSet<Atom>) {
    for peer in rule.peers.iter().flatten() {
        if let Peer::Pods { namespaces, pods } = peer {
            found.insert((namespaces.clone(), pods.clone()));
        }
    }
}

/// Adds a pod for each class that no pod of the manifests is in, and its namespace.
///
/// # Errors
/// When there are more than [`MOST`] classes.
pub fn add(manifests: &mut Manifests, selectors: &Selectors) -> Result<(), String> {
    let mut namespaces = namespaces(manifests, selectors)?;
    namespaces.extend(invented(&namespaces, selectors)?);
    let mut pods: HashMap<Arc<str>, Vec<&Pod>> = HashMap::new();
    for pod in manifests.pods().filter(|pod| !pod.finished && pod.is_on_pod_network()) {
        pods.entry(Arc::clone(&pod.key.namespace)).or_default().push(pod);
    }
    let (mut objects, mut words) = (Vec::new(), BTreeMap::new());
    for Place { namespace, exists, place } in namespaces {
        let relevant = selectors.pods.iter().filter(|(of, _)| is_about(of, &namespace));
        let relevant: BTreeSet<&Selector> = relevant.map(|(_, pods)| pods).collect();
        let relevant: Vec<&Selector> = relevant.into_iter().collect();
        let matching = |labels: &Labels| -> Vec<bool> {
            relevant.iter().map(|selector| selector.matches(labels)).collect()
        };
        let here = pods.get(&namespace.name).into_iter().flatten();
        let here: HashSet<Vec<bool>> = here.map(|pod| matching(&pod.labels)).collect();
        for (n, labels) in classes(&relevant, &[])?.into_iter().enumerate() {
            if here.contains(&matching(&labels)) {
                continue;
            }
            let name = format!("any-pod-{n}").into();
            let key = PodKey { namespace: Arc::clone(&namespace.name), name };
            let with = with_labels(&labels);
            words.insert(key.clone(), format!("any pod{with} of {place} (none in these files)"));
            objects.push(Object::Pod(pod(key, labels)));
            too_many(words.len())?;
        }
        if !exists {
            objects.push(Object::Namespace(namespace));
        }
    }
    manifests.objects.extend(objects);
    manifests.representatives.extend(words);
    add_nodes(manifests, selectors)
}

/// Adds a node for each class that no node of the manifests is in.
fn add_nodes(manifests: &mut Manifests, selectors: &Selectors) -> Result<(), String> {
    if selectors.nodes.is_empty() {
        return Ok(());
    }
    let relevant: Vec<&Selector> = selectors.nodes.iter().collect();
    let matching = |labels: &Labels| -> Vec<bool> {
        relevant.iter().map(|selector| selector.matches(labels)).collect()
    };
    let here: HashSet<Vec<bool>> = { &manifests.objects }
        .iter()
        .filter_map(|object| match object {
            Object::Node(node) => Some(matching(&node.labels)),
            _ => None,
        })
        .collect();
    for (n, labels) in classes(&relevant, &[])?.into_iter().enumerate() {
        if here.contains(&matching(&labels)) {
            continue;
        }
        let name: Arc<str> = format!("(any node {n})").into();
        let words = format!("any node{} (none in these files)", with_labels(&labels));
        manifests.representative_nodes.insert(Arc::clone(&name), words);
        manifests.objects.push(Object::Node(Node {
            name,
            labels: Arc::new(labels),
            addresses: Vec::new(),
            pod_cidrs: Vec::new(),
            complete: true,
        }));
    }
    Ok(())
}

/// A namespace, and its words.
struct Place {
    namespace: Namespace,
    exists: bool,
    place: String,
}

/// The namespaces of the manifests, those that are only mentioned too.
fn namespaces(manifests: &Manifests, selectors: &Selectors) -> Result<Vec<Place>, String> {
    let mut found: BTreeMap<Arc<str>, Namespace> = BTreeMap::new();
    let mentioned = manifests.pods().map(|pod| &pod.key.namespace);
    let own = selectors.pods.iter().filter_map(|(of, _)| match of {
        Namespaces::Own(name) => Some(name),
        Namespaces::Selected(_) => None,
    });
    for name in mentioned.chain(own) {
        let made = || Namespace::new(Arc::clone(name), &Labels::default());
        found.entry(Arc::clone(name)).or_insert_with(made);
    }
    for object in &manifests.objects {
        if let Object::Namespace(namespace) = object {
            found.insert(Arc::clone(&namespace.name), namespace.clone());
        }
    }
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
    let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    if labels.is_empty() { String::new() } else { format!(" with {}", labels.join(",")) }
}

/// The least labels of each class; `taken` are names that no other namespace can have.
fn classes(selectors: &[&Selector], taken: &[&str]) -> Result<Vec<Labels>, String> {
    let mut keys: BTreeMap<&Arc<str>, BTreeSet<&Arc<str>>> = BTreeMap::new();
    let mut by_key: HashMap<&Arc<str>, Vec<(usize, &Requirement)>> = HashMap::new();
    for (n, selector) in selectors.iter().enumerate() {
        for requirement in selector.requirements() {
            let values = keys.entry(&requirement.key).or_default();
            if let Test::In(named) | Test::NotIn(named) = &requirement.test {
                values.extend(named.iter().filter(|value| is_value(value)));
            }
            by_key.entry(&requirement.key).or_default().push((n, requirement));
        }
    }
    type Failed = Vec<u64>;
    type Label = (Arc<str>, Arc<str>);
    let mut states: Vec<(Failed, Vec<Label>)> =
        vec![(vec![0; selectors.len().div_ceil(64)], Vec::new())];
    for (key, values) in keys {
        let is_name = &**key == Namespace::NAME_LABEL;
        let other = (0..).map(|n| format!("other-{n}").into());
        let other: Option<Arc<str>> =
            { other }.find(|it: &Arc<str>| !values.contains(it) && !taken.contains(&&**it));
        // A namespace without the label of its name is one whose name no selector has.
        let free = if is_name { other.as_ref() } else { None };
        let named = values.into_iter().filter(|value| !(is_name && taken.contains(&&***value)));
        let mut options = vec![None];
        options.extend(named.map(Some));
        options.extend((!is_name).then_some(other.as_ref()));
        let mut masks: Vec<(Failed, Option<&Arc<str>>)> = Vec::new();
        let mut known = HashSet::new();
        for option in options {
            let labels: Labels = option
                .or(free)
                .into_iter()
                .map(|value| (Arc::clone(key), Arc::clone(value)))
                .collect();
            let mut mask = vec![0; selectors.len().div_ceil(64)];
            for (n, requirement) in by_key.get(key).into_iter().flatten() {
                let alone: Selector = [(*requirement).clone()].into_iter().collect();
                if !alone.matches(&labels) {
                    mask[n / 64] |= 1 << (n % 64);
                }
            }
            if known.insert(mask.clone()) {
                masks.push((mask, option));
            }
        }
        let mut next = Vec::new();
        let mut known: HashSet<Failed> = HashSet::new();
        // Fewer labels first.
        for (mask, option) in &masks {
            for (failed, labels) in &states {
                let union: Failed = failed.iter().zip(mask).map(|(a, b)| a | b).collect();
                if known.insert(union.clone()) {
                    let label = option.map(|value| (Arc::clone(key), Arc::clone(value)));
                    next.push((union, labels.iter().cloned().chain(label).collect()));
                    too_many(next.len())?;
                }
            }
        }
        states = next;
    }
    Ok(states.into_iter().map(|(_, labels)| labels.into_iter().collect()).collect())
}

fn too_many(count: usize) -> Result<(), String> {
    match count > MOST {
        false => Ok(()),
        true => Err(format!(
            "the selectors tell more than {MOST} classes of pods apart that could exist; fewer \
             keys or values in podSelector and namespaceSelector make fewer"
        )),
    }
}

/// Whether a label can have this value
/// (<https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/>).
fn is_value(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_end = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && bytes.iter().copied().all(is_inner)
        && is_end(bytes.first())
        && is_end(bytes.last())
}

fn pod(key: PodKey, labels: Labels) -> Pod {
    Pod {
        key,
        uid: None,
        labels: Arc::new(labels),
        node: None,
        addresses: Vec::new(),
        host_network: false,
        finished: false,
        created: 0,
        ports: [].into(),
        host_ports: [].into(),
        declared_ports: [].into(),
        complete: true,
    }
}
