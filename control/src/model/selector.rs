//! Label selectors.
//!
//! Meaning: <https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/>,
//! "Set-based requirement". All requirements must hold; no requirement at all matches
//! everything. `NotIn` and `DoesNotExist` hold for an object without the key.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::Labels;

/// A conjunction of requirements in one canonical order, so that selectors that say the
/// same are equal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Selector(Box<[Requirement]>);

/// A requirement on the label `key`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requirement {
    /// The label.
    pub key: Arc<str>,
    /// The condition on it.
    pub test: Test,
}

/// The condition of a requirement.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Test {
    /// The label exists and its value is one of these.
    In(BTreeSet<Arc<str>>),
    /// The label does not exist, or its value is none of these.
    NotIn(BTreeSet<Arc<str>>),
    /// The label exists.
    Exists,
    /// The label does not exist.
    DoesNotExist,
}

impl Selector {
    /// Whether an object with these labels is selected.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|requirement| requirement.holds(labels.value(&requirement.key)))
    }

    /// Returns whether it has no requirements and so selects everything.
    pub fn is_everything(&self) -> bool {
        self.0.is_empty()
    }

    /// The requirements, in canonical order.
    pub fn requirements(&self) -> &[Requirement] {
        &self.0
    }
}

/// Formats as kubectl does; without requirements, the empty text.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            requirement.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        let list = |values: &BTreeSet<Arc<str>>| {
            values.iter().map(|value| &**value).collect::<Vec<_>>().join(",")
        };
        match &self.test {
            Test::In(values) if values.len() == 1 => write!(f, "{key}={}", list(values)),
            Test::In(values) => write!(f, "{key} in ({})", list(values)),
            Test::NotIn(values) => write!(f, "{key} notin ({})", list(values)),
            Test::Exists => write!(f, "{key}"),
            Test::DoesNotExist => write!(f, "!{key}"),
        }
    }
}

impl FromIterator<Requirement> for Selector {
    fn from_iter<T: IntoIterator<Item = Requirement>>(requirements: T) -> Self {
        let sorted: BTreeSet<Requirement> = requirements.into_iter().collect();
        Self(sorted.into_iter().collect())
    }
}

impl Requirement {
    fn holds(&self, value: Option<&str>) -> bool {
        match (&self.test, value) {
            (Test::In(values), Some(value)) => values.contains(value),
            (Test::In(_), None) => false,
            (Test::NotIn(values), Some(value)) => !values.contains(value),
            (Test::NotIn(_), None) => true,
            (Test::Exists, value) => value.is_some(),
            (Test::DoesNotExist, value) => value.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selects(test: Test, labels: &[(&str, &str)]) -> bool {
        let selector: Selector = [Requirement { key: "app".into(), test }].into_iter().collect();
        selector.matches(&labels.iter().copied().collect())
    }

    fn set(values: &[&str]) -> BTreeSet<Arc<str>> {
        values.iter().map(|value| Arc::from(*value)).collect()
    }

    #[test]
    fn in_needs_the_key() {
        assert!(selects(Test::In(set(&["a", "b"])), &[("app", "b")]));
        assert!(!selects(Test::In(set(&["a", "b"])), &[("app", "c")]));
        assert!(!selects(Test::In(set(&["a", "b"])), &[]));
    }

    #[test]
    fn not_in_and_does_not_exist_match_objects_without_the_key() {
        assert!(selects(Test::NotIn(set(&["a"])), &[]));
        assert!(selects(Test::NotIn(set(&["a"])), &[("app", "b")]));
        assert!(!selects(Test::NotIn(set(&["a"])), &[("app", "a")]));
        assert!(selects(Test::DoesNotExist, &[("other", "x")]));
        assert!(!selects(Test::DoesNotExist, &[("app", "")]));
    }

    #[test]
    fn exists_takes_an_empty_value() {
        assert!(selects(Test::Exists, &[("app", "")]));
        assert!(!selects(Test::Exists, &[]));
    }

    #[test]
    fn nothing_demanded_selects_everything_and_order_does_not_matter() {
        assert!(Selector::default().matches(&Labels::default()));
        let exists = |key: &str| Requirement { key: key.into(), test: Test::Exists };
        let one: Selector = [exists("a"), exists("b")].into_iter().collect();
        let two: Selector = [exists("b"), exists("a"), exists("b")].into_iter().collect();
        assert_eq!(one, two);
    }
}
