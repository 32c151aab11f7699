//! The connections that two versions of manifests decide differently.
//!
//! Both versions have the same pods, namespaces, cluster nodes and services: an object beside the
//! policies that one of them lacks is copied from the other, so that only what the policies say
//! differs. Pods that the same tables and networks concern are compared once, and ports between
//! which no rule distinguishes once for each range. Pods that are in no file are compared too, one
//! for each class of them that the selectors of both versions tell apart, each with every pod of
//! the files.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use acl::Table;
use control::model::Pod;
use control::{Object, PodKey};
use ipnet::IpNet;
use serde::Serialize;

use super::matrix::{self, Decision, Matrix};
use super::representatives::{self, Selectors};
use crate::input::Manifests;
use crate::probe::Protocol;
use crate::probe::complete::complete;

/// A difference between the versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// Denied before, allowed now.
    Opened,
    /// Allowed before, denied now.
    Closed,
    /// The verdict is the same, by other rules.
    OtherRule,
}

/// Connections that changed in the same way, to one workload.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Difference {
    /// Their change.
    pub change: Change,
    /// The workload that they are opened to, `internet`, a network or `node/NAME`.
    pub to: String,
    /// The protocol.
    pub protocol: &'static str,
    /// The first and the last port; `None` for ICMP.
    pub ports: Option<(u16, u16)>,
    /// The workloads, networks and cluster nodes that open them.
    pub from: BTreeSet<String>,
    /// The rules that decided before.
    pub before: Vec<Arc<str>>,
    /// The rules that decide now.
    pub after: Vec<Arc<str>>,
}

/// The differences, and the work behind them.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// The differences, in order.
    pub differences: Vec<Difference>,
    /// Classes of pods that are in no file.
    pub classes: usize,
}

/// One end of connections, in both versions.
#[derive(Clone, Debug)]
struct End {
    /// The workload or other name that stands for it.
    name: String,
    pod: Option<PodKey>,
    /// Whether it stands for pods that are in no file.
    stands: bool,
    /// The cluster node that it is, or is on.
    node: Option<Arc<str>>,
    old: IpAddr,
    new: IpAddr,
}

/// Ends that all tables and networks treat alike.
#[derive(Debug)]
struct Class {
    ends: Vec<End>,
    /// The egress and ingress tables of the old and of the new version.
    tables: [[Option<Arc<Table>>; 2]; 2],
}

/// Compares two versions.
///
/// # Errors
/// When there are more pods than addresses or ports for them.
pub fn compare(mut old: Manifests, mut new: Manifests) -> Result<Comparison, String> {
    complement(&old.clone(), &mut new);
    complement(&new, &mut old);
    let policies: Vec<Object> = old.objects.iter().chain(&new.objects).cloned().collect();
    let own = new.objects.len();
    representatives::add(&mut new, &Selectors::of(&policies))?;
    old.objects.extend_from_slice(&new.objects[own..]);
    let names = new.clone();
    let (old, new) = (matrix(old)?, matrix(new)?);
    let mut found: BTreeMap<Difference, BTreeSet<String>> = BTreeMap::new();
    for v4 in [true, false] {
        let classes = classes(&old, &new, &names, &policies, v4);
        for from in &classes {
            for to in &classes {
                compare_classes(&old, &new, from, to, &mut found);
            }
        }
    }
    let general = General::new(&names, &policies);
    let differences = found.into_iter().map(|(difference, from)| {
        let from = general.least(from);
        Difference { from, ..difference }
    });
    Ok(Comparison { differences: differences.collect(), classes: names.representatives.len() })
}

fn matrix(mut manifests: Manifests) -> Result<Matrix, String> {
    complete(&mut manifests, [])?;
    Matrix::new(manifests.control().view())
}

/// Gives a version the objects beside policies that only the other one has.
fn complement(from: &Manifests, to: &mut Manifests) {
    let known: HashSet<_> = to.objects.iter().map(Object::reference).collect();
    let missing = from.objects.iter().filter(|object| {
        let reference = object.reference();
        !reference.kind.closes() && !known.contains(&reference)
    });
    to.objects.extend(missing.cloned());
    for (key, selector) in &from.selectors {
        to.selectors.entry(key.clone()).or_insert_with(|| selector.clone());
    }
    to.without_address.extend(from.without_address.iter().cloned());
    for (key, workload) in &from.workloads {
        to.workloads.entry(key.clone()).or_insert_with(|| workload.clone());
    }
}

/// All ends of one family, in classes that all tables and networks treat alike.
fn classes(
    old: &Matrix,
    new: &Matrix,
    names: &Manifests,
    policies: &[Object],
    v4: bool,
) -> Vec<Class> {
    let (old, new) = (old.view(), new.view());
    let first = |addresses: &[IpAddr]| addresses.iter().find(|it| it.is_ipv4() == v4).copied();
    let mut ends = Vec::new();
    for (key, pod) in old.pods.iter() {
        let Some(other) = new.pods.get(key) else { continue };
        if let (Some(old), Some(new)) = (first(&pod.addresses), first(&other.addresses)) {
            let (name, node) = (names.workload(key), Some(Arc::clone(&pod.node)));
            let stands = names.representatives.contains_key(key);
            ends.push(End { name, pod: Some(key.clone()), stands, node, old, new });
        }
    }
    // Where no pod is of a family, nothing of the family matters.
    if ends.is_empty() {
        return Vec::new();
    }
    for (name, node) in old.nodes.iter() {
        let Some(other) = new.nodes.get(name) else { continue };
        if let (Some(old), Some(new)) = (first(&node.addresses), first(&other.addresses)) {
            let node = Some(Arc::clone(name));
            ends.push(End {
                name: format!("node/{name}"),
                pod: None,
                stands: false,
                node,
                old,
                new,
            });
        }
    }
    let outside = matrix::outside(policies, v4);
    let taken: HashSet<IpAddr> = ends.iter().flat_map(|end| [end.old, end.new]).collect();
    let apart = outside.iter().filter(|(address, _)| !taken.contains(*address));
    ends.extend(apart.map(|(address, name)| End {
        name: name.clone(),
        pod: None,
        stands: false,
        node: None,
        old: *address,
        new: *address,
    }));
    let nets: Vec<IpNet> = matrix::networks(policies).into_iter().collect();
    let mut classes: HashMap<_, Class> = HashMap::new();
    for end in ends {
        let tables = match &end.pod {
            Some(pod) => [matrix::tables(old, pod), matrix::tables(new, pod)],
            None => Default::default(),
        };
        let address = |table: &Option<Arc<Table>>| table.as_ref().map(Arc::as_ptr);
        let of_tables = tables.each_ref().map(|pair| pair.each_ref().map(address));
        let networks = |address: IpAddr| -> Vec<usize> {
            let inside = nets.iter().enumerate().filter(|(_, net)| net.contains(&address));
            inside.map(|(n, _)| n).collect()
        };
        let identities =
            (old.addresses.lookup(end.old.into()), new.addresses.lookup(end.new.into()));
        let key = (
            of_tables,
            identities,
            networks(end.old),
            networks(end.new),
            end.pod.is_some(),
            end.stands,
        );
        let class = classes.entry(key).or_insert_with(|| Class { ends: Vec::new(), tables });
        class.ends.push(end);
    }
    let mut classes: Vec<Class> = classes.into_values().collect();
    classes.sort_by(|a, b| a.ends[0].name.cmp(&b.ends[0].name));
    classes
}

fn compare_classes(
    old: &Matrix,
    new: &Matrix,
    from: &Class,
    to: &Class,
    found: &mut BTreeMap<Difference, BTreeSet<String>>,
) {
    let mut pairs = from.ends.iter().flat_map(|a| to.ends.iter().map(move |b| (a, b)));
    let Some((a, b)) = pairs.find(|(a, b)| is_pair(a, b)) else { return };
    let sending = from.tables.iter().filter_map(|[egress, _]| egress.as_ref());
    let receiving = to.tables.iter().filter_map(|[_, ingress]| ingress.as_ref());
    let tables: Vec<&Arc<Table>> = sending.chain(receiving).collect();
    if tables.is_empty() {
        return;
    }
    for protocol in Protocol::ALL {
        let firsts: Vec<u16> =
            matrix::port_ranges(tables.iter().copied(), protocol).into_iter().collect();
        let mut ranges: Vec<(u16, u16, Decision, Decision)> = Vec::new();
        for (n, first) in firsts.iter().enumerate() {
            let last = firsts.get(n + 1).map_or(u16::MAX, |next| next - 1);
            let before = old.decide(a.old, b.old, protocol, *first);
            let after = new.decide(a.new, b.new, protocol, *first);
            match ranges.last_mut() {
                Some((_, end, its_before, its_after))
                    if (&*its_before, &*its_after) == (&before, &after) =>
                {
                    *end = last;
                }
                _ => ranges.push((*first, last, before, after)),
            }
        }
        for (first, last, before, after) in ranges {
            let change = match (before.permits, after.permits) {
                (false, true) => Change::Opened,
                (true, false) => Change::Closed,
                _ if before.by == after.by => continue,
                _ => Change::OtherRule,
            };
            for target in &to.ends {
                let difference = Difference {
                    change,
                    to: target.name.clone(),
                    protocol: protocol.name(),
                    ports: (protocol != Protocol::Icmp).then_some((first, last)),
                    from: BTreeSet::new(),
                    before: before.by.clone(),
                    after: after.by.clone(),
                };
                let froms = from.ends.iter().filter(|end| is_pair(end, target));
                let names: BTreeSet<String> = froms.map(|end| end.name.clone()).collect();
                if !names.is_empty() {
                    found.entry(difference).or_default().extend(names);
                }
            }
        }
    }
}

/// Whether policies decide about connections between two ends: one of them is a pod of the files, they are not
/// the same, and the first is not the cluster node of the second, which is always let in.
fn is_pair(from: &End, to: &End) -> bool {
    let is_own_node = from.pod.is_none() && from.node.is_some() && from.node == to.node;
    let is_in_files = |end: &End| end.pod.is_some() && !end.stands;
    from.old != to.old && (is_in_files(from) || is_in_files(to)) && !is_own_node
}

/// Whether an end stands for pods that are in no file, its namespace, and its labels.
type Selected = (bool, Arc<str>, BTreeSet<(Arc<str>, Arc<str>)>);

/// The labels behind the names of ends, as far as selectors name them.
struct General(HashMap<String, Selected>);

impl General {
    fn new(names: &Manifests, policies: &[Object]) -> Self {
        let keys = Selectors::of(policies).keys();
        let of_pod = |pod: &Pod| {
            let labels = pod.labels.iter().filter(|(key, _)| keys.contains(*key));
            let labels = labels.map(|(key, value)| (Arc::clone(key), Arc::clone(value))).collect();
            let stands = names.representatives.contains_key(&pod.key);
            (names.workload(&pod.key), (stands, Arc::clone(&pod.key.namespace), labels))
        };
        Self(names.pods().map(of_pod).collect())
    }

    /// The ends less those for which another one stands: pods of the same namespace that have all
    /// labels of that one and more.
    fn least(&self, from: BTreeSet<String>) -> BTreeSet<String> {
        let known: Vec<_> = from.iter().filter_map(|name| self.0.get(name)).collect();
        let is_special = |name: &&String| {
            self.0.get(*name).is_some_and(|(stands, namespace, labels)| {
                let is_more = |(_, other, fewer): &&&Selected| {
                    other == namespace && fewer.len() < labels.len() && fewer.is_subset(labels)
                };
                *stands && known.iter().any(|it| is_more(&it))
            })
        };
        from.iter().filter(|name| !is_special(name)).cloned().collect()
    }
}

impl Difference {
    /// The ports in words: `80`, `8000-8010`, or `all ports`.
    pub fn ports_in_words(&self) -> String {
        match self.ports {
            None => String::new(),
            Some((1, u16::MAX)) => "all ports".into(),
            Some((first, last)) if first == last => first.to_string(),
            Some((first, last)) => format!("{first}-{last}"),
        }
    }
}
