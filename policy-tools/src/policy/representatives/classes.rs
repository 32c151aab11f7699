//! The classes into which selectors split labels.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use control::model::{Labels, Namespace, Requirement, Selector, Test};

use super::too_many;

/// The least labels of each class; `taken` are names that no other namespace can have.
pub(super) fn classes(selectors: &[&Selector], taken: &[&str]) -> Result<Vec<Labels>, String> {
    let mut keys: BTreeMap<&Arc<str>, BTreeSet<&Arc<str>>> = BTreeMap::new();
    let mut by_key: HashMap<&Arc<str>, Vec<(usize, &Requirement)>> = HashMap::new();
    for (n, selector) in selectors.iter().enumerate() {
        for requirement in selector.requirements() {
            let values = keys.entry(&requirement.key).or_default();
            if let Test::In(named) | Test::NotIn(named) = &requirement.test {
                values.extend(named.iter().filter(|value| is_value(value)));
            }
            by_key.entry(&requirement.key).or_default().push((n, requirement));
        }
    }
    type Failed = Vec<u64>;
    type Label = (Arc<str>, Arc<str>);
    let mut states: Vec<(Failed, Vec<Label>)> =
        vec![(vec![0; selectors.len().div_ceil(64)], Vec::new())];
    for (key, values) in keys {
        let is_name = &**key == Namespace::NAME_LABEL;
        let other = (0..).map(|n| format!("other-{n}").into());
        let other: Option<Arc<str>> =
            { other }.find(|it: &Arc<str>| !values.contains(it) && !taken.contains(&&**it));
        // A namespace without the label of its name is one whose name no selector has.
        let free = if is_name { other.as_ref() } else { None };
        let named = values.into_iter().filter(|value| !(is_name && taken.contains(&&***value)));
        let mut options = vec![None];
        options.extend(named.map(Some));
        options.extend((!is_name).then_some(other.as_ref()));
        let mut masks: Vec<(Failed, Option<&Arc<str>>)> = Vec::new();
        let mut known = HashSet::new();
        for option in options {
            let labels: Labels = option
                .or(free)
                .into_iter()
                .map(|value| (Arc::clone(key), Arc::clone(value)))
                .collect();
            let mut mask = vec![0; selectors.len().div_ceil(64)];
            for (n, requirement) in by_key.get(key).into_iter().flatten() {
                let alone: Selector = [(*requirement).clone()].into_iter().collect();
                if !alone.matches(&labels) {
                    mask[n / 64] |= 1 << (n % 64);
                }
            }
            if known.insert(mask.clone()) {
                masks.push((mask, option));
            }
        }
        let mut next = Vec::new();
        let mut known: HashSet<Failed> = HashSet::new();
        // Fewer labels first.
        for (mask, option) in &masks {
            for (failed, labels) in &states {
                let union: Failed = failed.iter().zip(mask).map(|(a, b)| a | b).collect();
                if known.insert(union.clone()) {
                    let label = option.map(|value| (Arc::clone(key), Arc::clone(value)));
                    next.push((union, labels.iter().cloned().chain(label).collect()));
                    too_many(next.len())?;
                }
            }
        }
        states = next;
    }
    Ok(states.into_iter().map(|(_, labels)| labels.into_iter().collect()).collect())
}

/// Returns whether a label can have this value
/// (<https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/>).
fn is_value(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_end = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && bytes.iter().copied().all(is_inner)
        && is_end(bytes.first())
        && is_end(bytes.last())
}
