//! Deletions of objects whose kind comes with a CustomResourceDefinition.
//!
//! Deleting the definition deletes its objects one by one, which looks like a deliberate removal of
//! each denial. So a deletion counts only once discovery shows that the API server still has the
//! kind and accepts new objects of it. Otherwise the objects stay in force for a minute, which is
//! time to install the definition again.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::Event;
use super::found::Found;
use crate::{FieldFault, Object, ObjectRef};

/// Delay until the API server's discovery reflects a deleted definition.
const SETTLE_TIME: Duration = Duration::from_millis(500);
/// Interval of retries while discovery does not answer.
const AGAIN: Duration = Duration::from_secs(1);

/// The objects of one kind, and the deleted ones still in force.
#[derive(Debug, Default)]
pub(super) struct Deletions {
    known: BTreeMap<ObjectRef, (Object, Vec<FieldFault>)>,
    pending: BTreeMap<ObjectRef, Pending>,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    since: Instant,
    /// When to query discovery, or to delete the object.
    due: Instant,
    /// Discovery no longer lists the definition.
    is_held: bool,
}

impl Deletions {
    /// Filters an event: holds deletions back until they are confirmed.
    pub(super) fn filter(&mut self, event: Event, now: Instant) -> Option<Event> {
        match event {
            Event::Apply(object, faults) => {
                let reference = object.reference();
                self.pending.remove(&reference);
                self.known.insert(reference, (object.clone(), faults.clone()));
                Some(Event::Apply(object, faults))
            }
            Event::Delete(reference) if self.known.contains_key(&reference) => {
                self.note(reference, now);
                None
            }
            Event::Resync(kind, objects, faults) => {
                let before = std::mem::take(&mut self.known);
                for object in objects {
                    let reference = object.reference();
                    let wrong = faults.iter().filter(|it| it.object.as_ref() == Some(&reference));
                    let wrong = wrong.map(|fault| fault.fault.clone()).collect();
                    self.pending.remove(&reference);
                    self.known.insert(reference, (object, wrong));
                }
                for (reference, object) in before {
                    if !self.known.contains_key(&reference) {
                        self.note(reference.clone(), now);
                        self.known.insert(reference, object);
                    }
                }
                let mut all = Found::default();
                let known = self.known.values().cloned();
                known.for_each(|(object, faults)| all.insert(object, faults));
                Some(all.resync(kind))
            }
            other => Some(other),
        }
    }

    fn note(&mut self, reference: ObjectRef, now: Instant) {
        let pending = Pending { since: now, due: now + SETTLE_TIME, is_held: false };
        self.pending.entry(reference).or_insert(pending);
    }

    /// When to call [`Self::look`] next.
    pub(super) fn due(&self) -> Option<Instant> {
        self.pending.values().map(|pending| pending.due).min()
    }

    /// Returns whether discovery has to be queried now.
    pub(super) fn asks(&self, now: Instant) -> bool {
        self.pending.values().any(|pending| !pending.is_held && pending.due <= now)
    }

    /// Returns the deletions confirmed now, given whether the kind is installed (`None`: not
    /// known).
    pub(super) fn look(
        &mut self,
        is_installed: Option<bool>,
        hold: Duration,
        now: Instant,
    ) -> Vec<ObjectRef> {
        let mut gone = Vec::new();
        for (reference, pending) in &mut self.pending {
            if pending.due > now {
                continue;
            }
            match is_installed {
                _ if now >= pending.since + hold => gone.push(reference.clone()),
                Some(true) if !pending.is_held => gone.push(reference.clone()),
                None if !pending.is_held => pending.due = (now + AGAIN).min(pending.since + hold),
                _ => (pending.is_held, pending.due) = (true, pending.since + hold),
            }
        }
        for reference in &gone {
            self.pending.remove(reference);
            self.known.remove(reference);
        }
        gone
    }

    /// Deletes all objects: the kind has been absent for long enough.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;
    use crate::objects::{Read, read};
    use serde_json::json;

    const HOLD: Duration = Duration::from_secs(60);

    fn firewall(name: &str) -> crate::Object {
        match read(json!({"apiVersion": "podgate.io/v1alpha1", "kind": "ClusterEgressFirewall",
            "metadata": {"name": name}, "spec": {"egress": []}}))
        {
            Read::Object(object, _) => object,
            other => panic!("{other:?}"),
        }
    }

    fn with(names: &[&str], now: Instant) -> Deletions {
        let mut deletions = Deletions::default();
        for name in names {
            deletions.filter(Event::Apply(firewall(name), Vec::new()), now);
        }
        deletions
    }

    #[test]
    fn a_deletion_counts_once_the_kind_is_found_installed() {
        let start = Instant::now();
        let mut deletions = with(&["a", "b"], start);
        let a = firewall("a").reference();
        assert_eq!(deletions.filter(Event::Delete(a.clone()), start), None);
        let due = deletions.due().unwrap();
        assert!(due > start && !deletions.asks(start) && deletions.asks(due));
        assert_eq!(deletions.look(Some(true), HOLD, start), [], "too early to tell");
        assert_eq!(deletions.look(Some(true), HOLD, due), [a]);
        assert_eq!(deletions.due(), None);
    }

    #[test]
    fn objects_of_a_kind_that_goes_stay_for_a_minute_also_over_an_empty_list() {
        let start = Instant::now();
        let mut deletions = with(&["a", "b"], start);
        let [a, b] = ["a", "b"].map(|name| firewall(name).reference());
        deletions.filter(Event::Delete(a.clone()), start);
        let due = deletions.due().unwrap();
        assert_eq!(deletions.look(None, HOLD, due), [], "discovery does not answer");
        let due = deletions.due().unwrap();
        assert_eq!(deletions.look(Some(false), HOLD, due), []);
        // The definition was installed again, without its objects.
        let kind = Kind::ClusterEgressFirewall;
        let event = deletions.filter(Event::Resync(kind, Vec::new(), Vec::new()), due);
        let Some(Event::Resync(_, objects, _)) = event else { panic!("{event:?}") };
        assert_eq!(objects.len(), 2, "both still count");
        let later = due + SETTLE_TIME;
        assert_eq!(deletions.look(Some(true), HOLD, later), [b], "it went while the kind stood");
        assert_eq!(deletions.look(Some(true), HOLD, start + HOLD), [a]);
    }

    #[test]
    fn an_object_that_is_created_again_is_not_deleted_later() {
        let start = Instant::now();
        let mut deletions = with(&["a"], start);
        deletions.filter(Event::Delete(firewall("a").reference()), start);
        deletions.filter(Event::Apply(firewall("a"), Vec::new()), start);
        assert_eq!(deletions.due(), None);
        assert_eq!(deletions.look(Some(true), HOLD, start + HOLD), []);
    }
}
