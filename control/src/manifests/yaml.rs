//! The YAML parser: its limits, and its errors in plain words.
//!
//! Manifests are read as kubectl reads them (YAML 1.1): plain `yes`, `no`, `on` and `off` are booleans,
//! and `0400` is octal. Unlike there, `y` and `n` are text, so that a namespace may be called so. In
//! Podgate's own files booleans are `true` and `false` alone (YAML 1.2). Duplicate keys are errors. Aliases are bounded; every other limit follows from the size of the
//! text.

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_saphyr::Error;

use super::lenient::reindented;

/// Parses the documents of a text, up to the first error; empty ones may be left out.
pub fn parse_yaml<T: DeserializeOwned + 'static>(text: &[u8]) -> Vec<Result<T, Error>> {
    as_kubectl(text, |text| parse_all(text, false, false))
}

/// Parses the documents of a manifest, up to the first error.
pub(super) fn parse_manifest(text: &[u8]) -> Vec<Result<Value, Error>> {
    as_kubectl(text, parse_with_booleans)
}

/// Parses a text, and if that fails, the same text indented as YAML 1.2 wants it. The first error counts.
fn as_kubectl<T>(
    text: &[u8],
    parse: impl Fn(&[u8]) -> Vec<Result<T, Error>>,
) -> Vec<Result<T, Error>> {
    let documents = parse(text);
    let failed = documents.last().is_some_and(Result::is_err);
    let Some(text) = std::str::from_utf8(text).ok().filter(|_| failed) else { return documents };
    let indented = reindented(text);
    if indented == text {
        return documents;
    }
    let again = parse(indented.as_bytes());
    if again.last().is_some_and(Result::is_ok) { again } else { documents }
}

fn parse_with_booleans(text: &[u8]) -> Vec<Result<Value, Error>> {
    let mut documents = parse_all(text, false, true);
    if documents.iter().flatten().any(has_word) {
        // Text in quotes stays text.
        for (document, with_booleans) in documents.iter_mut().zip(parse_all(text, true, true)) {
            if let (Ok(document), Ok(with_booleans)) = (document, with_booleans) {
                take_booleans(document, with_booleans);
            }
        }
    }
    documents
}

fn parse_all<T: DeserializeOwned + 'static>(
    mut text: &[u8],
    yaml_1_1_booleans: bool,
    octal: bool,
) -> Vec<Result<T, Error>> {
    let mut documents = Vec::new();
    for document in parse(&mut text, yaml_1_1_booleans, octal) {
        let failed = document.is_err();
        documents.push(document);
        if failed {
            break;
        }
    }
    documents
}

/// Whether a value holds text that is a boolean without its quotes.
fn has_word(value: &Value) -> bool {
    match value {
        Value::String(text) => {
            ["yes", "no", "on", "off"].iter().any(|word| text.eq_ignore_ascii_case(word))
        }
        Value::Array(items) => items.iter().any(has_word),
        Value::Object(fields) => fields.values().any(has_word),
        _ => false,
    }
}

/// Takes over the booleans of the same value read with them, except `y` and `n`.
fn take_booleans(value: &mut Value, with_booleans: Value) {
    match (value, with_booleans) {
        (value @ Value::String(_), Value::Bool(boolean)) if has_word(value) => {
            *value = boolean.into();
        }
        (Value::Array(items), Value::Array(others)) => {
            items.iter_mut().zip(others).for_each(|(item, other)| take_booleans(item, other));
        }
        (Value::Object(fields), Value::Object(mut others)) => {
            for (name, field) in fields {
                if let Some(other) = others.remove(name) {
                    take_booleans(field, other);
                }
            }
        }
        _ => {}
    }
}

fn parse<T: DeserializeOwned + 'static>(
    text: &mut &[u8],
    yaml_1_1_booleans: bool,
    octal: bool,
) -> impl Iterator<Item = Result<T, Error>> {
    let most = 1_000 + text.len();
    let budget = serde_saphyr::budget! {
        max_reader_input_bytes: Some(most),
        max_events: most,
        max_nodes: most,
        max_documents: most,
        max_total_scalar_bytes: 2 * most,
        max_aliases: 1_000,
        max_anchors: 1_000,
    };
    let options = serde_saphyr::options! {
        budget: budget,
        strict_booleans: !yaml_1_1_booleans,
        legacy_octal_numbers: octal,
        with_snippet: false,
    };
    serde_saphyr::read_with_options(text, options)
}

/// Describes a syntax error of YAML with its place, without the library's own terms.
pub fn yaml_problem(error: &Error) -> String {
    let problem = match error.without_snippet() {
        Error::DuplicateMappingKey { key: Some(key), .. } => format!("{key:?} is given twice"),
        Error::DuplicateMappingKey { .. } => "a key is given twice".into(),
        Error::Eof { .. } => "it ends too early".into(),
        Error::UnknownAnchor { .. } => "an alias refers to no anchor".into(),
        Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. }
        | Error::Budget { .. } => "it is nested too deeply, or its aliases expand too far".into(),
        Error::IOError { .. } => "it is not UTF-8".into(),
        Error::Message { msg, .. } => one_line(msg),
        _ => "it is not well-formed".into(),
    };
    let at = error.location().map(|it| format!(" (line {}, column {})", it.line(), it.column()));
    problem + &at.unwrap_or_default()
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
