//! The connections that two versions of manifests decide differently.
//!
//! Both versions have the same pods, namespaces, nodes and services: an object beside the
//! policies that one of them lacks is copied from the other, so that only what the policies say
//! differs. Pods that the same tables and networks concern are compared once, and ports between
//! which no rule distinguishes once for each range; pairs of which neither end may have changed not at
//! all. Pods that are in no file are compared too, one
//! for each class of them that the selectors of both versions tell apart, each with every pod of
//! the files.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use acl::Origin;
use acl::Table;
use control::model::Direction;
use control::{Object, PodKey, Scope};
use ipnet::IpNet;
use serde::Serialize;

use super::changed::Changed;
use super::matrix::{self, Decision, Matrix};
use super::representatives::{self, General, Kinds, Selectors};
use crate::input::{self, Manifests};
use crate::probe::Protocol;
use crate::probe::complete::complete;
use crate::probe::host;

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
    /// The workloads, networks and nodes that open them.
    pub from: BTreeSet<String>,
    /// The rules that decided before.
    pub before: Vec<Origin>,
    /// The rules that decide now.
    pub after: Vec<Origin>,
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
    /// The node that it is, or is on.
    node: Option<Arc<str>>,
    /// Whether it is a node that a host firewall selects.
    guarded: bool,
    /// Whether decisions about it may have changed, as those about either end of a connection.
    changed: bool,
    old: IpAddr,
    new: IpAddr,
}

/// Ends that all tables and networks treat alike.
type Class = Vec<End>;

/// Compares two versions.
///
/// # Errors
/// When there are more pods than addresses or ports for them.
pub fn compare(old: Manifests, new: Manifests) -> Result<Comparison, String> {
    compare_by(old, new, Changed::between, matrices)
}

/// The same by every pair of ends, and tables of each version by itself: the definition.
///
/// # Errors
/// As of [`compare`].
pub fn compare_every_pair(old: Manifests, new: Manifests) -> Result<Comparison, String> {
    let matrix = |mut manifests: Manifests| {
        complete(&mut manifests, [])?;
        Matrix::new(manifests.control().view())
    };
    let matrices = |old, new| Ok([matrix(old)?, matrix(new)?]);
    compare_by(old, new, |_, _| Changed::everything(), matrices)
}

fn compare_by(
    mut old: Manifests,
    mut new: Manifests,
    changed: impl FnOnce(&Manifests, &Manifests) -> Changed,
    matrices: impl FnOnce(Manifests, Manifests) -> Result<[Matrix; 2], String>,
) -> Result<Comparison, String> {
    complement(&old.clone(), &mut new);
    complement(&new, &mut old);
    let policies: Vec<Object> = old.objects.iter().chain(&new.objects).cloned().collect();
    let own = new.objects.len();
    representatives::add(&mut new, &Selectors::of(&policies), &mut Kinds::default())?;
    old.objects.extend_from_slice(&new.objects[own..]);
    let changed = changed(&old, &new);
    let names = new.clone();
    let [old, new] = matrices(old, new)?;
    let mut found: BTreeMap<Difference, BTreeSet<String>> = BTreeMap::new();
    for v4 in [true, false] {
        let classes = classes(&old, &new, &names, &policies, &changed, v4);
        for from in &classes {
            for to in classes.iter().filter(|to| from[0].changed || to[0].changed) {
                // A pod's own node is let in by policies, others are not.
                for own in [false, true] {
                    let is_pair = |a: &End, b: &End| is_pair(a, b) && is_own_node(a, b) == own;
                    compare_classes(&old, &new, from, to, &is_pair, &mut found);
                }
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

/// Does the same for both versions at the same time.
pub(crate) fn both<T: Send>(old: impl FnOnce() -> T + Send, new: impl FnOnce() -> T) -> (T, T) {
    std::thread::scope(|scope| {
        let old = scope.spawn(old);
        let new = new();
        (old.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), new)
    })
}

/// The tables of both versions; those of the second come from those of the first by what changes, as in a running
/// switch.
fn matrices(mut old: Manifests, mut new: Manifests) -> Result<[Matrix; 2], String> {
    complete(&mut old, [])?;
    complete(&mut new, [])?;
    let mut control = input::control(Scope::All, old.objects);
    let before = control.view();
    let after = || {
        control.resync(new.objects);
        control.commit();
        Matrix::new(control.view())
    };
    let (before, after) = both(|| Matrix::new(before), after);
    Ok([before?, after?])
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
    changed: &Changed,
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
            let (pod, guarded) = (Some(key.clone()), false);
            let changed = changed.has(pod.as_ref()) || old != new;
            ends.push(End { name, pod, stands, node, guarded, changed, old, new });
        }
    }
    for (name, node) in old.nodes.iter() {
        let Some(other) = new.nodes.get(name) else { continue };
        let guarded = [old, new].iter().any(|view| view.host_acls.contains_key(name));
        if let (Some(old), Some(new)) = (first(&node.addresses), first(&other.addresses)) {
            let (pod, node, name) = (None, Some(Arc::clone(name)), names.node(name));
            let changed = changed.has(None) || old != new;
            ends.push(End { name, pod, stands: false, node, guarded, changed, old, new });
        }
    }
    // Without an end of the family that policies are about, nothing of the family matters.
    if !ends.iter().any(|end| end.pod.is_some() || end.guarded) {
        return Vec::new();
    }
    let outside = matrix::outside(policies, v4);
    let taken: HashSet<IpAddr> = ends.iter().flat_map(|end| [end.old, end.new]).collect();
    let apart = outside.iter().filter(|(address, _)| !taken.contains(*address));
    ends.extend(apart.map(|(address, name)| End {
        name: name.clone(),
        pod: None,
        stands: false,
        node: None,
        guarded: false,
        changed: false,
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
        let hosts = [old, new].map(|view| {
            let node = end.node.as_ref().filter(|_| end.guarded);
            let tables = Direction::BOTH.map(|it| host::tables(view, node, it).map(Arc::as_ptr));
            tables.map(Iterator::collect::<Vec<*const Table>>)
        });
        let key = (
            of_tables,
            hosts,
            identities,
            networks(end.old),
            networks(end.new),
            end.pod.is_some(),
            (end.stands, end.changed),
        );
        let class = classes.entry(key).or_default();
        class.push(end);
    }
    let mut classes: Vec<Class> = classes.into_values().collect();
    classes.sort_by(|a, b| a[0].name.cmp(&b[0].name));
    classes
}

fn compare_classes(
    old: &Matrix,
    new: &Matrix,
    from: &Class,
    to: &Class,
    is_pair: &dyn Fn(&End, &End) -> bool,
    found: &mut BTreeMap<Difference, BTreeSet<String>>,
) {
    let mut pairs = from.iter().flat_map(|a| to.iter().map(move |b| (a, b)));
    let Some((a, b)) = pairs.find(|(a, b)| is_pair(a, b)) else { return };
    let ends = [a, b].map(|end| (end.pod.as_ref(), end.node.as_ref()));
    let tables = [old, new].map(|matrix| matrix::tables_between(matrix.view(), ends));
    let tables = tables.concat();
    if tables.is_empty() {
        return;
    }
    for protocol in Protocol::ALL {
        let firsts: Vec<u16> = matrix::port_ranges(&tables, protocol).into_iter().collect();
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
                _ if rules(&before).eq(rules(&after)) => continue,
                _ => Change::OtherRule,
            };
            for target in to {
                let difference = Difference {
                    change,
                    to: target.name.clone(),
                    protocol: protocol.name(),
                    ports: (protocol != Protocol::Icmp).then_some((first, last)),
                    from: BTreeSet::new(),
                    before: before.by.clone(),
                    after: after.by.clone(),
                };
                let froms = from.iter().filter(|end| is_pair(end, target));
                let names: BTreeSet<String> = froms.map(|end| end.name.clone()).collect();
                if !names.is_empty() {
                    found.entry(difference).or_default().extend(names);
                }
            }
        }
    }
}

/// The rules among the origins of a decision.
fn rules(decision: &Decision) -> impl Iterator<Item = &Origin> {
    let is_rule = |origin: &&Origin| !matches!(origin, Origin::DefaultAllow | Origin::Other(_));
    decision.by.iter().filter(is_rule)
}

/// Whether rules decide about connections between two ends: one of them is a pod of the files or a node
/// with host firewalls, and they are not the same.
fn is_pair(from: &End, to: &End) -> bool {
    let is_decided = |end: &End| end.guarded || end.pod.is_some() && !end.stands;
    from.old != to.old && (is_decided(from) || is_decided(to))
}

/// Whether the first end is the node of the second.
fn is_own_node(from: &End, to: &End) -> bool {
    from.pod.is_none() && from.node.is_some() && from.node == to.node
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
