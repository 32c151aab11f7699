//! YAML and JSON with the line and column of every value.

pub use control::manifests::{Located, Tree};
use control::manifests::{parse_yaml, yaml_problem};

/// The documents of a text up to the first that is not YAML.
pub(crate) fn readable(text: &[u8]) -> Vec<Located> {
    let all = parse_yaml(super::without_byte_order_mark(text));
    all.into_iter().map_while(Result::ok).collect()
}

/// Reads every document of a text.
///
/// # Errors
/// The parser's message, if the text is not YAML.
pub fn documents(text: &[u8]) -> Result<Vec<Located>, String> {
    parse_yaml(super::without_byte_order_mark(text))
        .into_iter()
        .map(|document| document.map_err(|error| format!("is no YAML: {}", yaml_problem(&error))))
        .collect()
}
