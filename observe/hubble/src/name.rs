//! Names and patterns of names in filters.

use observe::verdicts::Pattern;

/// `NAMESPACE/PREFIX`; an empty part matches all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Name {
    namespace: String,
    prefix: String,
}

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
    let part = |text: &str| Pattern::new(if text.is_empty() { "*" } else { text });
    match text.split('/').collect::<Vec<_>>()[..] {
        [""] => Err("a pattern is empty".to_owned()),
        [node] => Ok((part(""), part(node))),
        [cluster, node] => Ok((part(cluster), part(node))),
        _ => Err(format!("'{}' has more than one slash", text.escape_debug())),
    }
}
