//! What each object of a kind said last, as far as it is read: an event that says the same is passed over.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use serde_json::Value;

/// Hashes of the objects by the hash of their names, with a random key.
#[derive(Debug, Default)]
pub(super) struct Said {
    hasher: RandomState,
    last: HashMap<u64, u64, ahash::RandomState>,
}

impl Said {
    /// Notes what an object says, or that it is gone; returns whether it exists and said the same before. Takes its
    /// resource version away, which changes with every event.
    pub(super) fn note(&mut self, object: &mut Value, exists: bool) -> bool {
        let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
            return false;
        };
        metadata.remove("resourceVersion");
        let name = self.hasher.hash_one((metadata.get("namespace"), metadata.get("name")));
        match exists {
            true => {
                let says = self.hasher.hash_one(&*object);
                self.last.insert(name, says) == Some(says)
            }
            false => {
                self.last.remove(&name);
                false
            }
        }
    }

    /// Forgets all of it.
    pub(super) fn clear(&mut self) {
        self.last.clear();
    }
}
