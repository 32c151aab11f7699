//! Values that many objects have in common, each once in memory.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use acl::PeerSetId;
use ahash::RandomState;

use crate::model::{Labels, PodPorts, Topology};

type Known<T> = HashMap<Arc<T>, (), RandomState>;
type Pool<T> = LazyLock<Mutex<Known<T>>>;

static NAMES: Pool<str> = LazyLock::new(Mutex::default);
static PORTS: Pool<PodPorts> = LazyLock::new(Mutex::default);
static TOPOLOGIES: Pool<Topology> = LazyLock::new(Mutex::default);
static SETS: Pool<[PeerSetId]> = LazyLock::new(Mutex::default);
static LABELS: LazyLock<Mutex<LabelSets>> = LazyLock::new(Mutex::default);

/// The shared form of a name: of nodes every pod and every endpoint has one, of namespaces and ports many objects.
pub(crate) fn shared_name(name: &str) -> Arc<str> {
    let names = &mut NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    shared(names, name, || Arc::from(name))
}

/// The shared form of ports: pods of one template have the same.
pub(crate) fn shared_ports(ports: PodPorts) -> Arc<PodPorts> {
    let known = &mut PORTS.lock().unwrap_or_else(PoisonError::into_inner);
    shared(known, &ports, || Arc::new(ports.clone()))
}

/// The shared form of a topology: endpoints of one node have the same, but for hints.
pub(crate) fn shared_topology(topology: Topology) -> Arc<Topology> {
    let known = &mut TOPOLOGIES.lock().unwrap_or_else(PoisonError::into_inner);
    shared(known, &topology, || Arc::new(topology.clone()))
}

/// The shared form of a list of peer sets: many addresses are in the same ones.
pub(crate) fn shared_sets(sets: &[PeerSetId]) -> Arc<[PeerSetId]> {
    let known = &mut SETS.lock().unwrap_or_else(PoisonError::into_inner);
    shared(known, sets, || Arc::from(sets))
}

/// The shared form of the label set with these labels; the later of two equal keys counts.
pub(crate) fn shared_labels(mut labels: Vec<(&str, &str)>) -> Arc<Labels> {
    labels.sort_by_key(|(key, _)| *key);
    labels.dedup_by(|later, earlier| {
        let is_again = later.0 == earlier.0;
        if is_again {
            *earlier = *later;
        }
        is_again
    });
    let labels = labels.iter().copied();
    let of_names = labels.clone().map(|(key, value)| (shared_name(key), shared_name(value)));
    LABELS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .shared(labels, || Arc::new(of_names.collect()))
}

/// The shared form of a label set.
pub(crate) fn shared_set(labels: &Arc<Labels>) -> Arc<Labels> {
    let all = labels.iter().map(|(key, value)| (&**key, &**value));
    LABELS.lock().unwrap_or_else(PoisonError::into_inner).shared(all, || Arc::clone(labels))
}

fn shared<T: Hash + Eq + ?Sized>(
    known: &mut Known<T>,
    it: &T,
    make: impl FnOnce() -> Arc<T>,
) -> Arc<T> {
    if let Some((known, ())) = known.get_key_value(it) {
        return Arc::clone(known);
    }
    sweep(known, |it, ()| Arc::strong_count(it) > 1);
    let it = make();
    known.insert(Arc::clone(&it), ());
    it
}

/// Removes unused values whenever the table would have to grow.
fn sweep<K: Hash + Eq, V>(
    known: &mut HashMap<K, V, RandomState>,
    is_used: impl Fn(&K, &V) -> bool,
) {
    if known.len() == known.capacity() {
        known.retain(|key, value| is_used(key, value));
        // The next sweep is as far off as there are values to look at: amortised constant.
        known.reserve(known.len());
    }
}

/// Label sets by their hash, so that one is found without being made.
#[derive(Default)]
struct LabelSets {
    hasher: RandomState,
    known: HashMap<u64, Arc<Labels>, RandomState>,
}

impl LabelSets {
    fn shared<'l>(
        &mut self,
        labels: impl Iterator<Item = (&'l str, &'l str)> + Clone,
        make: impl FnOnce() -> Arc<Labels>,
    ) -> Arc<Labels> {
        let mut hasher = self.hasher.build_hasher();
        labels.clone().for_each(|label| label.hash(&mut hasher));
        let hash = hasher.finish();
        if let Some(known) = self.known.get(&hash) {
            // Another set of the same hash is not shared.
            let mut labels = labels;
            let is_next = |(key, value): (&Arc<str>, &Arc<str>)| {
                labels.next().is_some_and(|it| it == (&**key, &**value))
            };
            let is_same = known.iter().all(is_next) && labels.next().is_none();
            return if is_same { Arc::clone(known) } else { make() };
        }
        sweep(&mut self.known, |_, labels| Arc::strong_count(labels) > 1);
        Arc::clone(self.known.entry(hash).or_insert_with(make))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shared_while_they_are_used() {
        let mut names = Known::<str>::default();
        let mut get = |name: &str| {
            let shared = shared(&mut names, name, || Arc::from(name));
            (shared, names.len())
        };
        let (kept, _) = get("kept");
        for n in 0..10_000 {
            assert!(get(&n.to_string()).1 <= 64);
        }
        assert!(Arc::ptr_eq(&kept, &get("kept").0));
    }

    /// One that frees a single place would be followed by the next one at once.
    #[test]
    fn a_sweep_makes_room_for_as_many_names_as_it_has_looked_at() {
        let mut names = Known::<str>::default();
        let mut used = Vec::new();
        while used.len() < 100 || names.len() < names.capacity() {
            let name = used.len().to_string();
            used.push(shared(&mut names, &name, || Arc::from(&*name)));
        }
        used.pop();
        let other = shared(&mut names, "other", || Arc::from("other"));
        assert!(names.capacity() >= 2 * used.len() && names.contains_key(&other));
    }

    #[test]
    fn label_sets_are_shared_while_they_are_used() {
        let mut sets = LabelSets::default();
        let mut get = |labels: &[(&'static str, &'static str)]| {
            let made = || Arc::new(labels.iter().copied().collect());
            let set = sets.shared(labels.iter().copied(), made);
            (set, sets.known.len())
        };
        let (kept, _) = get(&[("app", "web"), ("tier", "front")]);
        let other = [("app", "web"), ("tier", "back")];
        assert_eq!(get(&other).0.value("tier"), Some("back"));
        for n in 0..10_000 {
            let value: &'static str = n.to_string().leak();
            assert!(get(&[("n", value)]).1 <= 64);
        }
        let (again, _) = get(&[("app", "web"), ("tier", "front")]);
        assert!(Arc::ptr_eq(&kept, &again));
    }

    #[test]
    fn label_sets_of_one_hash_are_told_apart() {
        let mut sets = LabelSets::default();
        let pairs = [("app", "web")];
        let web = sets.shared(pairs.into_iter(), || Arc::new(pairs.into_iter().collect()));
        let hash = *sets.known.keys().next().unwrap();
        let db: Arc<Labels> = Arc::new([("app", "db")].into_iter().collect());
        sets.known.insert(hash, Arc::clone(&db));
        let again = sets.shared(pairs.into_iter(), || Arc::new(pairs.into_iter().collect()));
        assert_eq!(again, web);
    }
}
