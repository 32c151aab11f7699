//! Label selectors in Kubernetes' text form: `app=web,tier in (a, b),!old`.
//!
//! A key may name the source of its label, `k8s:app`; `any:` and none stand for every source.

/// A selector: all requirements have to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector(Vec<Requirement>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    source: Option<String>,
    key: String,
    wanted: Wanted,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Wanted {
    Exists,
    Absent,
    In(Vec<String>),
    NotIn(Vec<String>),
}

impl Selector {
    /// Reads a selector; an empty one selects everything.
    ///
    /// # Errors
    /// Names the requirement.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parts = requirements(text).into_iter().map(str::trim);
        parts.filter(|part| !part.is_empty()).map(requirement).collect::<Result<_, _>>().map(Self)
    }

    /// Returns whether labels, as source, key and value, satisfy it.
    pub fn matches<'a>(&self, labels: &[(&'a str, &'a str, &'a str)]) -> bool {
        self.0.iter().all(|it| {
            let is_it = |(source, key, _): &&(&str, &str, &str)| {
                *key == it.key && it.source.as_ref().is_none_or(|wanted| wanted == source)
            };
            let value = labels.iter().find(is_it).map(|(_, _, value)| *value);
            let is_in = |values: &[String]| value.is_some_and(|it| values.iter().any(|v| v == it));
            match &it.wanted {
                Wanted::Exists => value.is_some(),
                Wanted::Absent => value.is_none(),
                Wanted::In(values) => is_in(values),
                Wanted::NotIn(values) => !is_in(values),
            }
        })
    }
}

/// Splits at commas that stand outside of parentheses.
fn requirements(text: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    text.split(move |c: char| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
    .collect()
}

fn requirement(text: &str) -> Result<Requirement, String> {
    let refused = || format!("'{}' is not a requirement of a label selector", text.escape_debug());
    if let Some(key) = text.strip_prefix('!') {
        return with_key(key, Wanted::Absent).ok_or_else(refused);
    }
    let set = text.strip_suffix(')').and_then(|text| text.split_once('('));
    let found = if let Some((head, values)) = set {
        let values = values.split(',').map(|value| value.trim().to_owned()).collect();
        match head.trim().rsplit_once(char::is_whitespace) {
            Some((key, "in")) => with_key(key, Wanted::In(values)),
            Some((key, "notin")) => with_key(key, Wanted::NotIn(values)),
            _ => None,
        }
    } else if let Some((key, value)) = text.split_once("!=") {
        with_key(key, Wanted::NotIn(vec![value.trim().to_owned()]))
    } else if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        with_key(key, Wanted::In(vec![value.trim().to_owned()]))
    } else {
        with_key(text, Wanted::Exists)
    };
    found.filter(|it| it.is_plain()).ok_or_else(refused)
}

fn with_key(text: &str, wanted: Wanted) -> Option<Requirement> {
    let text = text.trim();
    let (source, key) = match text.split_once(':') {
        Some(("any", key)) => (None, key),
        Some((source, key)) => (Some(source.to_owned()), key),
        None => (None, text),
    };
    let is_key = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    (!key.is_empty() && key.chars().all(is_key)).then(|| Requirement {
        source,
        key: key.to_owned(),
        wanted,
    })
}

impl Requirement {
    /// Returns whether labels may have its values.
    fn is_plain(&self) -> bool {
        let (Wanted::In(values) | Wanted::NotIn(values)) = &self.wanted else { return true };
        let is_value = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        values.iter().all(|value| value.chars().all(is_value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_are_those_of_kubernetes() {
        let labels = [("k8s", "app", "web"), ("k8s", "tier", "b"), ("reserved", "world", "")];
        for (text, expected) in [
            ("", true),
            ("app", true),
            ("!app", false),
            ("old", false),
            ("!old", true),
            ("app=web", true),
            ("app == web", true),
            ("app=db", false),
            ("app!=db", true),
            ("old!=x", true),
            ("tier in (a, b)", true),
            ("tier notin (a,b)", false),
            ("old notin (a)", true),
            ("app=web,tier in (a,b),!old", true),
            ("app=web,tier=a", false),
            ("k8s:app=web", true),
            ("any:app=web", true),
            ("reserved:app=web", false),
            ("reserved:world", true),
            ("k8s:example.com/app", false),
        ] {
            let selector = Selector::parse(text).unwrap();
            assert_eq!(selector.matches(&labels), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_selector_is_refused() {
        for text in ["=x", "a b", "a in x", "a in (x", "a of (x)", "a=b=c", "a (x)", "!", "a=b c"] {
            assert!(Selector::parse(text).is_err(), "{text}");
        }
    }
}
