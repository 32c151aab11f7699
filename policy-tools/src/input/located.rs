//! YAML and JSON with the line and column of every value.

pub use control::manifests::{Located, Tree};
use control::manifests::{parse_yaml, yaml_problem};

/// Reads every document of a text.
///
/// # Errors
/// The parser's message, if the text is not YAML.
pub fn documents(text: &[u8]) -> Result<Vec<Located>, String> {
    let mut text = super::without_byte_order_mark(text);
    parse_yaml(&mut text)
        .map(|document| document.map_err(|error| format!("is no YAML: {}", yaml_problem(&error))))
        .collect()
}
