//! Faults in the source's objects.

use std::collections::BTreeMap;

use control::{Fault, Kind, ObjectRef};

/// Logs a fault, with its object as fields.
pub(super) fn log(fault: &Fault) {
    let object = fault.object.as_ref();
    let (policy, name) = object.map(|it| &*it.name).map_or((None, None), |name| {
        let is_policy = object.is_some_and(|it| it.kind.closes());
        if is_policy { (Some(name), None) } else { (None, Some(name)) }
    });
    let namespace = object.and_then(|it| it.namespace.as_deref());
    tracing::warn!(kind = object.map(|it| it.kind.name()), namespace, policy, name, "{fault}");
}

/// Faults in the source's objects.
#[derive(Default)]
pub(super) struct Faults {
    /// Faults of the manifests as read last.
    pub(super) manifests: Vec<Fault>,
    /// Faults of the API server's objects.
    pub(super) objects: BTreeMap<ObjectRef, Vec<Fault>>,
}

impl Faults {
    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Fault> {
        self.manifests.iter().chain(self.objects.values().flatten())
    }

    /// Those of the API server's objects.
    pub(super) fn by_object(&self) -> impl Iterator<Item = (&ObjectRef, &[Fault])> {
        self.objects.iter().map(|(object, faults)| (object, faults.as_slice()))
    }

    /// Those of one object of the API server.
    pub(super) fn of(&self, object: &ObjectRef) -> &[Fault] {
        self.objects.get(object).map_or(&[], Vec::as_slice)
    }

    /// Replaces the faults of one object; logs new ones.
    pub(super) fn set(&mut self, object: ObjectRef, faults: Vec<Fault>) {
        let known = self.objects.get(&object);
        let is_new = |fault: &&Fault| known.is_none_or(|known| !known.contains(fault));
        faults.iter().filter(is_new).for_each(log);
        match faults.is_empty() {
            true => drop(self.objects.remove(&object)),
            false => drop(self.objects.insert(object, faults)),
        }
    }

    /// Replaces the faults of all objects of a kind.
    pub(super) fn set_kind(&mut self, kind: Kind, faults: Vec<Fault>) {
        let mut by_object: BTreeMap<ObjectRef, Vec<Fault>> = BTreeMap::new();
        for fault in faults {
            if let Some(object) = fault.object.clone() {
                by_object.entry(object).or_default().push(fault);
            }
        }
        self.objects.retain(|object, _| object.kind != kind || by_object.contains_key(object));
        by_object.into_iter().for_each(|(object, faults)| self.set(object, faults));
    }
}
