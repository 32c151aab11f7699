//! Names and patterns of names in filters.

/// `NAMESPACE/PREFIX`; an empty part matches all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Name {
    namespace: String,
    prefix: String,
}

/// A name in which `*` stands for any text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pattern(String);

impl Name {
    /// Reads `NAMESPACE/PREFIX`, or `PREFIX`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (namespace, prefix) = match text.split_once('/') {
            Some(parts) => parts,
            // As kubectl does: without a namespace the default one is meant.
            None if !text.is_empty() => ("default", text),
            None => return Err("a name is empty".to_owned()),
        };
        Ok(Self { namespace: namespace.to_owned(), prefix: prefix.to_owned() })
    }

    /// Whether an object, as `ns/name`, is meant.
    pub(crate) fn is(&self, object: &str) -> bool {
        object.split_once('/').is_some_and(|(namespace, name)| {
            (self.namespace.is_empty() || self.namespace == namespace)
                && name.starts_with(&self.prefix)
        })
    }
}

/// Reads `CLUSTER/NODE`, either of which may be missing.
pub(crate) fn node_pattern(text: &str) -> Result<(Pattern, Pattern), String> {
    let part = |text: &str| match text {
        "" => Pattern("*".to_owned()),
        text => Pattern(text.to_ascii_lowercase()),
    };
    match text.split('/').collect::<Vec<_>>()[..] {
        [""] => Err("a pattern is empty".to_owned()),
        [node] => Ok((part(""), part(node))),
        [cluster, node] => Ok((part(cluster), part(node))),
        _ => Err(format!("'{}' has more than one slash", text.escape_debug())),
    }
}

impl Pattern {
    /// The pattern of a domain name.
    pub(crate) fn of_domain(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let name = text.strip_suffix('.').unwrap_or(text);
        match name.is_empty() {
            true => Err("a pattern is empty".to_owned()),
            false => Ok(Self(name.to_ascii_lowercase())),
        }
    }

    /// Whether the whole name matches.
    pub(crate) fn matches(&self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        let mut parts = self.0.split('*');
        let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else {
            return false;
        };
        let Some(last) = parts.next_back() else { return rest.is_empty() };
        for part in parts {
            let Some(at) = rest.find(part) else { return false };
            rest = &rest[at + part.len()..];
        }
        rest.ends_with(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name, expected) in [
            ("www.example.org", "www.example.org", true),
            ("WWW.Example.org.", "www.example.org", true),
            ("*.example.org", "www.example.org", true),
            ("*.example.org", "example.org", false),
            ("www.*", "www.example.org", true),
            ("w*e*g", "www.example.org", true),
            ("w*x*x*g", "www.example.org", false),
            ("www", "www.example.org", false),
            ("a*a", "a", false),
        ] {
            assert_eq!(Pattern::of_domain(pattern).unwrap().matches(name), expected, "{pattern}");
        }
    }
}
