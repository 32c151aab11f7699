//! The most general of several classes.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use control::model::Pod;

use super::Selectors;
use crate::input::Manifests;

/// An end: true if it represents pods that are in no file, its namespace and its labels.
type Selected = (bool, Arc<str>, BTreeSet<(Arc<str>, Arc<str>)>);

/// The labels behind the names of ends, as far as selectors name them.
pub struct General(HashMap<String, Selected>);

impl General {
    /// Collects those labels of the manifests' pods that selectors of policies name.
    pub fn new(names: &Manifests, selectors: &Selectors) -> Self {
        let keys = selectors.keys();
        let of_pod = |pod: &Pod| {
            let labels = pod.labels.iter().filter(|(key, _)| keys.contains(*key));
            let labels = labels.map(|(key, value)| (Arc::clone(key), Arc::clone(value))).collect();
            let stands = names.representatives.contains_key(&pod.key);
            (names.workload(&pod.key), (stands, Arc::clone(&pod.key.namespace), labels))
        };
        Self(names.pods().map(of_pod).collect())
    }

    /// Removes ends that another one represents: pods of the same namespace with all of its labels and more.
    pub fn least(&self, from: BTreeSet<String>) -> BTreeSet<String> {
        let known: Vec<_> = from.iter().filter_map(|name| self.0.get(name)).collect();
        let is_special = |name: &&String| {
            self.0.get(*name).is_some_and(|(stands, namespace, labels)| {
                let is_more = |(_, other, fewer): &&&Selected| {
                    other == namespace && fewer.len() < labels.len() && fewer.is_subset(labels)
                };
                *stands && known.iter().any(|it| is_more(&it))
            })
        };
        from.iter().filter(|name| !is_special(name)).cloned().collect()
    }
}
