//! Domain names of policies: exact ones, and those with a `*.` in front.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A `domainNames` entry of a policy.
///
/// `example.org` matches that name alone. `*.example.org` matches every name below it, by any number
/// of labels, and not `example.org` itself. Case does not matter, nor does a full stop at the end.
///
/// ```
/// use domain_names::DomainPattern;
///
/// let below: DomainPattern = "*.Example.org.".parse()?;
/// assert!(below.matches("www.example.org") && below.matches("a.b.example.org"));
/// assert!(!below.matches("example.org") && !below.matches("badexample.org"));
/// # Ok::<(), domain_names::BadPattern>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DomainPattern {
    /// In lower case, without a full stop at the end.
    name: Arc<str>,
    is_prefix: bool,
}

/// A text that is no [`DomainPattern`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadPattern(&'static str);

impl fmt::Display for BadPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for BadPattern {}

/// Most bytes of a name in text (RFC 1035, section 2.3.4, without the root).
const LONGEST: usize = 253;
/// Most bytes of a label.
const LONGEST_LABEL: usize = 63;

impl FromStr for DomainPattern {
    type Err = BadPattern;

    fn from_str(text: &str) -> Result<Self, BadPattern> {
        let (is_prefix, name) = match text.strip_prefix("*.") {
            Some(name) => (true, name),
            None => (false, text),
        };
        let name = name.strip_suffix('.').unwrap_or(name);
        if name.len() > LONGEST {
            return Err(BadPattern("is longer than 253 bytes"));
        }
        if !name.contains('.') {
            return Err(BadPattern("has fewer than two labels"));
        }
        for label in name.split('.') {
            let ends = [label.bytes().next(), label.bytes().last()];
            let are_fine = ends.iter().all(|end| end.is_some_and(|it| it.is_ascii_alphanumeric()));
            if !are_fine || !is_plain(label) || label.len() > LONGEST_LABEL {
                return Err(BadPattern("is not a domain name, with or without *. in front"));
            }
        }
        Ok(Self { name: name.to_ascii_lowercase().into(), is_prefix })
    }
}

/// Returns whether a text has only characters of host names, and underscores.
pub(crate) fn is_plain(label: &str) -> bool {
    label.bytes().all(|it| it.is_ascii_alphanumeric() || matches!(it, b'-' | b'_'))
}

impl TryFrom<String> for DomainPattern {
    type Error = BadPattern;

    fn try_from(text: String) -> Result<Self, BadPattern> {
        text.parse()
    }
}

impl From<DomainPattern> for String {
    fn from(pattern: DomainPattern) -> Self {
        pattern.to_string()
    }
}

impl fmt::Display for DomainPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.is_prefix { "*." } else { "" }, self.name)
    }
}

impl DomainPattern {
    /// Returns whether the pattern covers a name, given without a full stop at the end. A text with an empty
    /// first label is no name.
    pub fn matches(&self, name: &str) -> bool {
        let Some(at) = name.len().checked_sub(self.name.len()) else { return false };
        let (front, end) = name.as_bytes().split_at(at);
        if !end.eq_ignore_ascii_case(self.name.as_bytes()) {
            return false;
        }
        match self.is_prefix {
            true => front.ends_with(b".") && !front.starts_with(b"."),
            false => front.is_empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_that_a_policy_may_have() {
        for text in ["example.org", "*.example.org", "a.b", "x_y.example.org.", "A-1.Example.ORG"] {
            let pattern: DomainPattern = text.parse().unwrap();
            let again = pattern.to_string();
            assert_eq!(again, text.to_ascii_lowercase().trim_end_matches('.'));
            assert_eq!(again.parse(), Ok(pattern));
        }
        let long = format!("{}.org", "a.".repeat(130));
        let label = format!("{}.org", "a".repeat(64));
        let bad = ["", ".", "*", "*.", "org", "*.org", "a..b", ".a.b", "-a.b", "a-.b", "_a.b"];
        let more =
            ["a b.c", "*.*.a.b", "a.*.b", "**.a.b", "a.b..", "ä.org", "a\u{0}.b", &long, &label];
        for text in bad.into_iter().chain(more) {
            assert!(text.parse::<DomainPattern>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn an_exact_name_is_that_name_alone() {
        let pattern: DomainPattern = "example.org".parse().unwrap();
        assert!(pattern.matches("EXAMPLE.org"));
        for other in ["www.example.org", "xample.org", "aexample.org", "example.org.", "org", ""] {
            assert!(!pattern.matches(other), "{other}");
        }
    }

    #[test]
    fn an_empty_label_in_front_matches_nothing() {
        let pattern: DomainPattern = "*.example.org".parse().unwrap();
        assert!(pattern.matches("a.example.org"));
        for other in [".example.org", ".a.example.org", "..example.org"] {
            assert!(!pattern.matches(other), "{other}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// The definition, label by label.
        #[test]
        fn matching_is_by_whole_labels(
            pattern in "(\\*\\.)?[ab]{1,2}(\\.[abAB]{1,2}){1,2}",
            name in "[abAB]{0,2}(\\.[abAB]{1,2}){0,4}",
        ) {
            let parsed: DomainPattern = pattern.parse().unwrap();
            let labels = |text: &str| -> Vec<String> {
                text.to_ascii_lowercase().split('.').map(str::to_owned).collect()
            };
            let name_labels = labels(&name);
            let expected = match pattern.strip_prefix("*.") {
                Some(parent) => {
                    let parent = labels(parent);
                    name_labels.len() > parent.len() && name_labels.ends_with(&parent)
                        && !name.starts_with('.')
                }
                None => name_labels == labels(&pattern),
            };
            prop_assert_eq!(parsed.matches(&name), expected, "{} {}", pattern, name);
        }
    }
}
