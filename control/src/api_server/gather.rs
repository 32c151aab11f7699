//! What was told before everything was told.
//!
//! The kinds are listed one beside the other. Were each worked in as it comes, new pods would be
//! judged by old policies, or by none; so what comes is kept aside until [`Event::Synced`] and
//! then worked in at once.

use std::collections::BTreeMap;

use super::Event;
use crate::{Control, Kind, Object, ObjectRef};

/// Objects told so far, by kind; no more of them than the cluster has.
#[derive(Debug, Default)]
pub struct Gathering {
    kinds: BTreeMap<Kind, BTreeMap<ObjectRef, Object>>,
}

impl Gathering {
    /// Takes what a watch told; whether that was [`Event::Synced`].
    pub fn take(&mut self, event: Event) -> bool {
        match event {
            Event::Resync(kind, objects, _) => {
                let objects = objects.into_iter().map(|object| (object.reference(), object));
                self.kinds.insert(kind, objects.collect());
            }
            Event::Apply(object, _) => {
                let reference = object.reference();
                self.kinds.entry(reference.kind).or_default().insert(reference, object);
            }
            Event::Delete(reference) => {
                if let Some(known) = self.kinds.get_mut(&reference.kind) {
                    known.remove(&reference);
                }
            }
            Event::Synced => return true,
            Event::Fault(_)
            | Event::Connected(_)
            | Event::Absent(_)
            | Event::Trouble(..)
            | Event::Reported(_)
            | Event::NotReported(..) => {}
        }
        false
    }

    /// Makes what `control` knows exactly what was told.
    pub fn work_in(self, control: &mut Control) {
        let objects = self.kinds.into_values().flat_map(BTreeMap::into_values);
        control.resync(objects.collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scope;
    use crate::objects::{Read, read};
    use serde_json::{Value, json};

    fn node(name: &str, labels: Value) -> Object {
        match read(json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": labels}}))
        {
            Read::Object(object, _) => object,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn nothing_is_worked_in_before_everything_is() {
        let mut control = Control::new(Scope::All);
        control.apply(node("old", json!({})));
        let whole = node("a", json!({"x": "1"}));
        let mut gathering = Gathering::default();
        let told = [
            Event::Resync(Kind::Node, vec![whole.clone(), node("b", json!({}))], Vec::new()),
            Event::Delete(node("b", json!({})).reference()),
            Event::Apply(node("c", json!({})), Vec::new()),
            Event::Apply(node("a", json!({"x": 1})), Vec::new()),
            Event::Connected(Kind::Node),
        ];
        assert!(!told.into_iter().any(|event| gathering.take(event)));
        assert!(gathering.take(Event::Synced));
        gathering.work_in(&mut control);
        let known: Vec<Object> = control.objects().collect();
        assert_eq!(known, [node("a", json!({"x": 1})), node("c", json!({}))]);
    }
}
