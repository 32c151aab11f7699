//! Labels of pods, namespaces and nodes.

use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A set of labels, sorted by key; keys are unique.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Labels {
    known: Box<[(Arc<str>, Arc<str>)]>,
}

impl Labels {
    /// The value of `key`, if the label exists.
    pub fn value(&self, key: &str) -> Option<&str> {
        // A linear search is fastest for a handful of labels.
        self.known.iter().find(|(have, _)| &**have == key).map(|(_, value)| &**value)
    }

    /// All labels, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> + Clone {
        self.known.iter().map(|(key, value)| (key, value))
    }

    /// The same labels with `key` set to `value`.
    #[must_use]
    pub fn with(&self, key: &str, value: &str) -> Self {
        let others = self.iter().filter(|(have, _)| &***have != key);
        let others = others.map(|(key, value)| (Arc::clone(key), Arc::clone(value)));
        others.chain([(key.into(), value.into())]).collect()
    }
}

/// Collects labels; the later of two equal keys counts.
impl<K: Into<Arc<str>>, V: Into<Arc<str>>> FromIterator<(K, V)> for Labels {
    fn from_iter<T: IntoIterator<Item = (K, V)>>(labels: T) -> Self {
        let sorted: std::collections::BTreeMap<Arc<str>, Arc<str>> =
            labels.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        Self { known: sorted.into_iter().collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_label_replaces_an_earlier_one() {
        let labels: Labels = [("b", "1"), ("a", "2"), ("b", "3")].into_iter().collect();
        assert_eq!(labels.value("b"), Some("3"));
        assert_eq!(labels.value("c"), None);
        assert_eq!(labels.with("a", "9").value("a"), Some("9"));
        assert_eq!(labels.iter().map(|(key, _)| &**key).collect::<Vec<_>>(), ["a", "b"]);
    }
}
