//! The connections that two versions of manifests decide differently.
//!
//! Both versions have the same pods, namespaces, nodes and services: an object beside the policies that one of them
//! lacks is copied from the other, so that only the policies differ. Pods with the same tables and networks are
//! compared once, and so is each range of ports that no rule splits. Pairs of unchanged ends are skipped. Pods that are
//! in no file are compared too, one for each class that the selectors of both versions distinguish, each with every pod
//! of the files.
//!
//! - `ends`: the ends of connections, and their classes,
//! - `parts`: the parts of the cluster in which they are compared.

mod ends;
mod parts;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use acl::Origin;
use control::{Control, Object, Scope};
use serde::Serialize;

use super::changed::{Changed, Differing};
use super::matrix::{self, Matrix, PairDecision};
use super::possible::Possible;
use super::representatives::{self, General, Kinds, Selectors};
use crate::input::{self, Manifests};
use crate::probe::complete::complete;
use crate::probe::{DomainAddresses, Protocol};

use ends::{Class, End, Outside};
use parts::{Part, Versions};

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

/// Compares two versions.
///
/// # Errors
/// Fails if there are more pods than addresses or ports for them.
pub fn compare(old: Manifests, new: Manifests) -> Result<Comparison, String> {
    compare_by(old, new, Changed::between, following, None)
}

/// Compares as [`compare`] does, in parts of `pods` pods.
///
/// # Errors
/// As [`compare`].
pub fn compare_in_parts(old: Manifests, new: Manifests, pods: usize) -> Result<Comparison, String> {
    compare_by(old, new, Changed::between, following, Some(pods))
}

/// Compares every pair of ends, with the tables of each version compiled separately: the definition.
///
/// # Errors
/// As [`compare`].
pub fn compare_every_pair(old: Manifests, new: Manifests) -> Result<Comparison, String> {
    compare_by(old, new, |_| Changed::everything(), separate, None)
}

/// Connections that differ, without the ends that open them, each with the names of these.
type Found = BTreeMap<Difference, BTreeSet<String>>;

/// Makes the tables of both versions, of the pods of a part.
type Matrices = fn(&Versions<'_>, &Part<'_>) -> Result<[Matrix; 2], String>;

fn compare_by(
    mut old: Manifests,
    mut new: Manifests,
    changed: fn(&Differing<'_>) -> Changed,
    matrices: Matrices,
    pods_of_part: Option<usize>,
) -> Result<Comparison, String> {
    complement(&old, &mut new);
    complement(&new, &mut old);
    for version in [&mut old, &mut new] {
        version.families = version.families.widened();
    }
    let families = new.families;
    let both = old.objects.iter().chain(&new.objects);
    let possible = Possible::of(both, &DomainAddresses::default());
    for version in [&mut old, &mut new] {
        version.objects.extend(possible.objects.iter().cloned());
    }
    let own = new.objects.len();
    let selectors = Selectors::of(Differing::new(&old, &new).all());
    representatives::add(&mut new, &selectors, &mut Kinds::default())?;
    old.objects.extend_from_slice(&new.objects[own..]);
    complete(&mut old, [])?;
    complete(&mut new, [])?;
    let differing = Differing::new(&old, &new);
    let changed = changed(&differing);
    let of_families = [true, false].into_iter().filter(|v4| families.has(*v4));
    let outside: Vec<Outside> =
        of_families.map(|v4| Outside::new(&differing, &possible, v4)).collect();
    let versions = Versions::new(&new, &differing, &changed, &possible.names);
    let parts = versions.parts(pods_of_part);
    let next = AtomicUsize::new(0);
    let work = || -> Result<Found, String> {
        let mut found = Found::new();
        while let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
            compare_part(&versions, part, &outside, matrices, &mut found)?;
        }
        Ok(found)
    };
    let mut found = Found::new();
    for of_thread in on_every_core(parts.len(), work) {
        for (difference, from) in of_thread? {
            found.entry(difference).or_default().extend(from);
        }
    }
    let general = General::new(&new, &selectors);
    let differences = found.into_iter().map(|(difference, from)| {
        let from = general.least(from);
        Difference { from, ..difference }
    });
    Ok(Comparison { differences: differences.collect(), classes: new.representatives.len() })
}

fn compare_part(
    versions: &Versions<'_>,
    part: &Part<'_>,
    outside: &[Outside],
    matrices: Matrices,
    found: &mut Found,
) -> Result<(), String> {
    let [old, new] = matrices(versions, part)?;
    for outside in outside {
        let classes = ends::classes(versions, [&old, &new], outside);
        for from in &classes {
            let is_new =
                |to: &&Class| part.is_first || !(from[0].is_everywhere && to[0].is_everywhere);
            let may_differ = |to: &&Class| from[0].changed || to[0].changed;
            for to in classes.iter().filter(may_differ).filter(is_new) {
                // Policies always admit a pod's own node.
                for own in [false, true] {
                    let is_pair = |a: &End, b: &End| a.is_pair(b) && a.is_node_of(b) == own;
                    compare_classes([&old, &new], from, to, &is_pair, found);
                }
            }
        }
    }
    Ok(())
}

/// Runs `work` on every core, on at most as many as there are pieces.
fn on_every_core<T: Send>(pieces: usize, work: impl Fn() -> T + Sync) -> Vec<T> {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        let others: Vec<_> = (1..cores.min(pieces)).map(|_| scope.spawn(&work)).collect();
        let own = work();
        let joined = others
            .into_iter()
            .map(|it| it.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        std::iter::once(own).chain(joined).collect()
    })
}

/// Runs both at the same time.
pub(crate) fn both<T: Send>(old: impl FnOnce() -> T + Send, new: impl FnOnce() -> T) -> (T, T) {
    thread::scope(|scope| {
        let old = scope.spawn(old);
        let new = new();
        (old.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), new)
    })
}

/// Compiles the tables of the first version, and updates them to the second as a running switch does.
fn following(versions: &Versions<'_>, part: &Part<'_>) -> Result<[Matrix; 2], String> {
    let mut control = input::control(Scope::All, versions.old(part).cloned().collect());
    let names = |control: &mut Control| {
        control.set_names(&versions.addresses.changes(&control.view()));
        control.commit();
    };
    names(&mut control);
    let before = control.view();
    let after = || {
        versions.fresh(part).for_each(|object| control.apply(object.clone()));
        versions.gone(part).for_each(|object| control.delete(&object.reference()));
        control.commit();
        names(&mut control);
        Matrix::new(control.view())
    };
    let (before, after) = both(|| Matrix::new(before), after);
    Ok([before?, after?])
}

/// Compiles the tables of each version separately.
fn separate(versions: &Versions<'_>, part: &Part<'_>) -> Result<[Matrix; 2], String> {
    let matrix = |objects: Vec<Object>| {
        let mut control = input::control(Scope::All, objects);
        control.set_names(&versions.addresses.changes(&control.view()));
        control.commit();
        Matrix::new(control.view())
    };
    Ok([
        matrix(versions.old(part).cloned().collect())?,
        matrix(versions.new_ones(part).cloned().collect())?,
    ])
}

/// Gives a version the objects beside policies that only the other one has.
fn complement(from: &Manifests, to: &mut Manifests) {
    let known: std::collections::HashSet<_> = to.objects.iter().map(Object::reference).collect();
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

fn compare_classes(
    [old, new]: [&Matrix; 2],
    from: &Class,
    to: &Class,
    is_pair: &dyn Fn(&End, &End) -> bool,
    found: &mut Found,
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
        let mut ranges: Vec<(u16, u16, PairDecision, PairDecision)> = Vec::new();
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
fn rules(decision: &PairDecision) -> impl Iterator<Item = &Origin> {
    let is_rule = |origin: &&Origin| !matches!(origin, Origin::DefaultAllow | Origin::Other(_));
    decision.by.iter().filter(is_rule)
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
