//! The initial-sync buffer: what watches report before every kind is listed.
//!
//! The kinds are listed concurrently. Applying each as it comes would evaluate new pods against old
//! policies, or none; so events are buffered until [`Event::Synced`] and then applied at once.

use std::collections::BTreeMap;

use super::Event;
use crate::{Control, Kind, Object, ObjectRef};

/// Objects reported so far, by kind; no more of them than the cluster has.
#[derive(Debug, Default)]
pub struct InitialSync {
    kinds: BTreeMap<Kind, Reported>,
}

/// The objects of one kind.
#[derive(Debug, Default)]
struct Reported {
    /// Those of the last list, which are as many as there are.
    listed: Vec<Object>,
    /// Objects reported since; `None` for objects that went.
    later: BTreeMap<ObjectRef, Option<Object>>,
}

impl InitialSync {
    /// Buffers an event; returns whether it was [`Event::Synced`].
    pub fn take(&mut self, event: Event) -> bool {
        match event {
            Event::Resync(kind, listed, _) => {
                self.kinds.insert(kind, Reported { listed, later: BTreeMap::new() });
            }
            Event::Apply(object, _) => {
                let reference = object.reference();
                let reported = self.kinds.entry(reference.kind).or_default();
                reported.later.insert(reference, Some(object));
            }
            Event::Delete(reference) => {
                if let Some(reported) = self.kinds.get_mut(&reference.kind) {
                    reported.later.insert(reference, None);
                }
            }
            Event::Synced => return true,
            _ => {}
        }
        false
    }

    /// Whether any kind is listed.
    pub fn has_begun(&self) -> bool {
        !self.kinds.is_empty()
    }

    /// Replaces the objects of the listed kinds in `control` by those reported. Other kinds stay as
    /// they were.
    pub fn work_in(self, control: &mut Control) {
        for (kind, Reported { listed: mut objects, later }) in self.kinds {
            if !later.is_empty() {
                objects.retain(|object| !later.contains_key(&object.reference()));
            }
            objects.extend(later.into_values().flatten());
            control.resync_kind(kind, objects);
        }
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
        let mut buffer = InitialSync::default();
        let events = [
            Event::Resync(Kind::Node, vec![whole.clone(), node("b", json!({}))], Vec::new()),
            Event::Delete(node("b", json!({})).reference()),
            Event::Apply(node("c", json!({})), Vec::new()),
            Event::Apply(node("a", json!({"x": 1})), Vec::new()),
            Event::Answered(Kind::Node),
        ];
        assert!(!events.into_iter().any(|event| buffer.take(event)));
        assert!(buffer.take(Event::Synced));
        buffer.work_in(&mut control);
        let known: Vec<Object> = control.objects().collect();
        assert_eq!(known, [node("a", json!({"x": 1})), node("c", json!({}))]);
    }
}
