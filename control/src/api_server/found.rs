//! The objects of a list while it comes in.

use std::collections::{BTreeMap, HashMap};

use ahash::RandomState;

use super::Event;
use crate::{FieldFault, Kind, Object, ObjectRef};

/// Objects of one kind, each once, with what is wrong with them.
///
/// API servers list in the order of their keys, so a list needs no index: there is one from the first object on that is
/// out of order.
#[derive(Debug, Default)]
pub(super) struct Found {
    objects: Vec<Object>,
    places: Option<HashMap<ObjectRef, usize, RandomState>>,
    faults: BTreeMap<ObjectRef, Vec<FieldFault>>,
}

impl Found {
    /// Adds an object, in place of the one of its name.
    pub(super) fn insert(&mut self, object: Object, faults: Vec<FieldFault>) {
        let reference = object.reference();
        self.faults.remove(&reference);
        if !faults.is_empty() {
            self.faults.insert(reference.clone(), faults);
        }
        let is_next =
            || self.objects.last().is_none_or(|it| is_before(&it.reference(), &reference));
        if self.places.is_none() && is_next() {
            self.objects.push(object);
            return;
        }
        let next = self.objects.len();
        let place = *self.index().entry(reference).or_insert(next);
        match self.objects.get_mut(place) {
            Some(known) => *known = object,
            None => self.objects.push(object),
        }
    }

    /// Removes an object, if it is there.
    pub(super) fn remove(&mut self, reference: &ObjectRef) {
        self.faults.remove(reference);
        let Some(place) = self.index().remove(reference) else { return };
        self.objects.swap_remove(place);
        if let Some(moved) = self.objects.get(place) {
            let moved = moved.reference();
            self.index().insert(moved, place);
        }
    }

    fn index(&mut self) -> &mut HashMap<ObjectRef, usize, RandomState> {
        let objects = self.objects.iter().enumerate();
        self.places
            .get_or_insert_with(|| objects.map(|(place, it)| (it.reference(), place)).collect())
    }

    /// The list, complete.
    pub(super) fn resync(self, kind: Kind) -> Event {
        let faults = self.faults.into_iter().flat_map(|(reference, faults)| {
            faults.into_iter().map(move |fault| fault.of(reference.clone()))
        });
        Event::Resync(kind, self.objects, faults.collect())
    }
}

/// Whether an object comes before another one of its kind, by their keys: `namespace/name`.
fn is_before(one: &ObjectRef, other: &ObjectRef) -> bool {
    fn key(it: &ObjectRef) -> impl Iterator<Item = u8> {
        let namespace = it.namespace.iter().flat_map(|it| it.bytes().chain([b'/']));
        namespace.chain(it.name.bytes())
    }
    key(one).lt(key(other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{Read, read};
    use proptest::collection::vec;
    use proptest::prelude::*;
    use serde_json::json;

    fn object(name: &str, version: usize) -> Object {
        match read(json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {"version": version.to_string()}}}))
        {
            Read::Object(object, _) => object,
            other => panic!("{other:?}"),
        }
    }

    proptest! {
        /// In whatever order objects come, come again and go, the list has the last of each with its faults.
        #[test]
        fn each_object_is_listed_once_as_it_was_last(
            edits in vec((0..12_usize, any::<bool>(), any::<bool>()), 0..60),
            sorted in 0..12_usize,
        ) {
            let name = |n: usize| format!("n{n:02}");
            let (mut found, mut expected) = (Found::default(), BTreeMap::new());
            let listed = (0..sorted).map(|n| (n, true, false));
            for (version, (n, is_there, is_wrong)) in listed.chain(edits).enumerate() {
                let object = object(&name(n), version);
                let reference = object.reference();
                if !is_there {
                    found.remove(&reference);
                    expected.remove(&reference);
                    continue;
                }
                let faults = Vec::from_iter(is_wrong.then(|| FieldFault::new("x", "is wrong")));
                found.insert(object.clone(), faults.clone());
                expected.insert(reference, (object, faults));
            }
            let Event::Resync(_, mut objects, faults) = found.resync(Kind::Node) else { panic!() };
            objects.sort_by_key(Object::reference);
            let all: Vec<Object> = expected.values().map(|(object, _)| object.clone()).collect();
            prop_assert_eq!(objects, all);
            let wrong = expected.into_iter().filter(|(_, (_, faults))| !faults.is_empty());
            let wrong: Vec<_> = wrong.map(|(reference, _)| Some(reference)).collect();
            prop_assert_eq!(faults.into_iter().map(|it| it.object).collect::<Vec<_>>(), wrong);
        }
    }

    #[test]
    fn a_list_in_the_order_of_keys_has_no_index() {
        let place = |namespace: &str, name: &str| ObjectRef {
            kind: Kind::Pod,
            namespace: Some(namespace.into()),
            name: name.into(),
        };
        // `a-b/x` is before `a/x`, as the API server has them.
        assert!(is_before(&place("a-b", "x"), &place("a", "x")));
        assert!(!is_before(&place("a", "x"), &place("a", "x")));
        let mut found = Found::default();
        (0..20).for_each(|n| found.insert(object(&format!("n{n:02}"), 0), Vec::new()));
        assert!(found.places.is_none());
        found.insert(object("n05", 1), Vec::new());
        assert!(found.places.is_some());
    }
}
