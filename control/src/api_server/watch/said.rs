//! The last content of each object of a kind, as far as it is read: an event with the same content is passed over.

use std::hash::{BuildHasher, RandomState};

use serde_json::Value;

use crate::compact::CompactMap;
use crate::model::Pod;

/// Hashes of the objects by the hash of their names, with a random key.
#[derive(Debug, Default)]
pub(super) struct Said {
    hasher: RandomState,
    last: CompactMap<u64, u64>,
}

impl Said {
    /// Notes what an object says, or that it is gone; returns whether it exists and said the same before. Takes its
    /// resource version away, which changes with every event.
    pub(super) fn note(&mut self, object: &mut Value, exists: bool) -> bool {
        let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
            return false;
        };
        metadata.remove("resourceVersion");
        let text = |field: &str| metadata.get(field).and_then(Value::as_str).unwrap_or_default();
        let name = self.hasher.hash_one((text("namespace"), text("name")));
        let says = self.hasher.hash_one(&*object);
        self.note_hash(name, says, exists)
    }

    /// The same of a pod.
    pub(super) fn note_pod(&mut self, pod: &Pod, exists: bool) -> bool {
        let name = self.hasher.hash_one((&*pod.key.namespace, &*pod.key.name));
        self.note_hash(name, self.hasher.hash_one(pod), exists)
    }

    fn note_hash(&mut self, name: u64, says: u64, exists: bool) -> bool {
        match exists {
            true => self.last.insert(name, says) == Some(says),
            false => {
                self.last.remove(&name);
                false
            }
        }
    }

    /// Forgets all of it.
    pub(super) fn clear(&mut self) {
        self.last = CompactMap::default();
    }
}
