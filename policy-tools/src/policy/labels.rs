//! Evaluates selectors against existing pods and namespaces.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use control::Object;
use control::model::{Labels, Namespace, Namespaces, Peer, Pod, PolicyRule, Selector};

use crate::input;

/// The pods and namespaces that selectors are evaluated against.
pub(super) struct Cluster<'a> {
    /// All objects.
    pub(super) objects: &'a [Object],
    pods: Vec<&'a Pod>,
    namespaces: BTreeMap<Arc<str>, Namespace>,
}

impl<'a> Cluster<'a> {
    pub(super) fn new(objects: &'a [Object]) -> Self {
        let pods = input::pods(objects).filter(|pod| !pod.finished).collect();
        let namespaces = input::namespaces(objects, std::iter::empty());
        Self { objects, pods, namespaces }
    }

    /// The labels of a namespace.
    pub(super) fn namespace(&self, name: &str) -> Option<&Labels> {
        self.namespaces.get(name).map(|it| &*it.labels)
    }

    /// Returns whether the labels of a namespace match.
    pub(super) fn has_namespace(&self, selector: &Selector) -> bool {
        self.namespaces.values().any(|it| selector.matches(&it.labels))
    }

    /// The pods that a selector selects; those on the host network are not among them.
    pub(super) fn select<'b>(
        &'b self,
        namespaces: &'b Namespaces,
        pods: &'b Selector,
    ) -> impl Iterator<Item = &'a Pod> + 'b {
        self.matching(namespaces, pods).filter(|pod| pod.is_on_pod_network())
    }

    /// The pods that have the labels of a selector, on whatever network.
    pub(super) fn matching<'b>(
        &'b self,
        namespaces: &'b Namespaces,
        pods: &'b Selector,
    ) -> impl Iterator<Item = &'a Pod> + 'b {
        let is_in = move |pod: &Pod| match namespaces {
            Namespaces::Own(own) => *own == pod.key.namespace,
            Namespaces::Selected(selector) => {
                self.namespace(&pod.key.namespace).is_some_and(|labels| selector.matches(labels))
            }
        };
        let all = self.pods.iter().copied();
        all.filter(move |pod| is_in(pod) && pods.matches(&pod.labels))
    }

    /// The pods that a rule's peers select; none if a peer may be anything else.
    pub(super) fn peers(&self, rule: &PolicyRule) -> Vec<&'a Pod> {
        let mut found = Vec::new();
        for peer in rule.peers.iter().flatten() {
            match peer {
                Peer::Pods { namespaces, pods } => found.extend(self.select(namespaces, pods)),
                _ => return Vec::new(),
            }
        }
        found
    }

    /// A label that exists and is spelt much like one that is demanded and does not.
    pub(super) fn suggestion(&self, namespaces: &Namespaces, pods: &Selector) -> Option<String> {
        let everything = Selector::default();
        let of_pods = self.select(namespaces, &everything).map(|pod| Arc::clone(&pod.labels));
        let of_pods: Vec<Arc<Labels>> = of_pods.collect();
        if let Namespaces::Selected(selector) = namespaces {
            if let Some(name) = self.meant_by_name(selector) {
                return Some(format!(
                    "no namespace has this label; the one of its name is {}: {name}",
                    Namespace::NAME_LABEL
                ));
            }
            let all = self.namespaces.values().map(|it| Arc::clone(&it.labels));
            let all: Vec<Arc<Labels>> = all.collect();
            if let Some(near) = near_label(selector, &all) {
                return Some(format!("did you mean a namespace with {near}?"));
            }
        }
        near_label(pods, &of_pods).map(|near| format!("did you mean {near}?"))
    }

    /// The namespace in which pods are that a selector wants in its policy's own.
    pub(super) fn other_namespace(
        &self,
        namespaces: &Namespaces,
        pods: &Selector,
    ) -> Option<&'a Arc<str>> {
        let Namespaces::Own(own) = namespaces else { return None };
        let everywhere = Namespaces::Selected(Selector::default());
        let pod = self.select(&everywhere, pods).next().filter(|_| !pods.is_everything())?;
        Some(&pod.key.namespace).filter(|other| *other != own)
    }

    /// The name of a namespace that a selector demands as the value of a label that no namespace has.
    fn meant_by_name(&self, selector: &Selector) -> Option<Arc<str>> {
        selector.requirements().iter().find_map(|requirement| {
            let control::model::Test::In(values) = &requirement.test else { return None };
            let is_known = |labels: &Labels| labels.value(&requirement.key).is_some();
            let is_free = !self.namespaces.values().any(|it| is_known(&it.labels));
            let mut named = values.iter().filter(|_| is_free);
            named.find(|value| self.namespaces.contains_key(*value)).cloned()
        })
    }
}

fn near_label(selector: &Selector, objects: &[Arc<Labels>]) -> Option<String> {
    for requirement in selector.requirements() {
        let control::model::Test::In(values) = &requirement.test else { continue };
        let has = |labels: &Arc<Labels>| {
            labels.value(&requirement.key).is_some_and(|value| values.contains(value))
        };
        if objects.iter().any(has) {
            continue;
        }
        let key = &*requirement.key;
        let labels = || objects.iter().flat_map(|labels| labels.iter());
        for wanted in values {
            // A long key in common would hide how much two values differ.
            let same_key = labels().filter(|(other, _)| &***other == key);
            let of_key: BTreeSet<&str> = same_key.map(|(_, value)| &**value).collect();
            let near = nearest(wanted, of_key.into_iter());
            // Values of one application have most of their letters in common.
            let is_near =
                |near: &&str| strsim::osa_distance(wanted, near) <= 2.max(wanted.len() / 8);
            if let Some(near) = near.filter(is_near) {
                return Some(format!("{key}={near}"));
            }
            let same_value = labels().filter(|(_, value)| *value == wanted);
            let of_value: BTreeSet<&str> = same_value.map(|(other, _)| &**other).collect();
            if let Some(near) = nearest(key, of_value.into_iter()) {
                return Some(format!("{near}={wanted}"));
            }
        }
    }
    None
}

/// Returns the most similar word, if one is similar enough.
pub(super) fn nearest<'a>(word: &str, words: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let by_distance = words.map(|other| (strsim::osa_distance(word, other), other));
    let (least, nearest) = by_distance.min()?;
    (least <= 2 || least * 4 <= word.len()).then_some(nearest)
}
