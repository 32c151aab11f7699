//! The YAML parser: its limits, and its errors in plain words.
//!
//! Booleans are `true` and `false` alone (YAML 1.2), so that a pod may be called `y` and a label say
//! `no`. Duplicate keys are errors. Aliases are bounded; every other limit follows from the size of the
//! text.

use serde::de::DeserializeOwned;
use serde_saphyr::Error;

/// Parses the documents of a text one by one, up to the first error; empty ones may be left out.
pub fn parse_yaml<T: DeserializeOwned + 'static>(
    text: &mut &[u8],
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
    let options =
        serde_saphyr::options! { budget: budget, strict_booleans: true, with_snippet: false };
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
