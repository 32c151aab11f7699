//! Configuration files.

use clap::Args;
use serde_saphyr::Error;

use super::Options;

/// Reads the text of a file.
///
/// # Errors
/// Names the line and its fault.
pub(super) fn parse(text: &str) -> Result<Options, String> {
    // A file with nothing but comments is valid and empty.
    let empty = text.lines().all(|line| {
        let line = line.trim();
        line.is_empty() || line.starts_with('#') || line == "---"
    });
    if empty {
        return Ok(Options::default());
    }
    let options = serde_saphyr::options! { with_snippet: false };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| words(&error))
}

/// Rewords a parser's error for users.
fn words(error: &Error) -> String {
    let problem = match error.without_snippet() {
        Error::SerdeUnknownField { field, expected, .. } => {
            let near = expected.iter().map(|it| (strsim::osa_distance(field, it), it)).min();
            let near = near.filter(|(distance, _)| *distance <= 2 || distance * 4 <= field.len());
            let near = of_alias(field).or_else(|| near.map(|(_, it)| (*it).to_owned()));
            let hint = near.map_or_else(String::new, |it| format!("; did you mean {it}?"));
            format!("{field}: unknown option{hint}")
        }
        Error::SerdeUnknownVariant { variant, expected, .. } => {
            format!("{variant:?} is none of {}", expected.join(", "))
        }
        Error::ExpectedStringKeyForExternallyTaggedEnum { .. }
        | Error::ExternallyTaggedEnumExpectedScalarOrMapping { .. }
        | Error::UnexpectedValueForUnitEnumVariant { .. } => "one word belongs here".to_owned(),
        Error::Unexpected { expected: "string scalar" | "scalar", .. } => {
            "one value belongs here".to_owned()
        }
        Error::DuplicateMappingKey { key: Some(key), .. } => format!("{key}: is given twice"),
        other => return other.to_string().split_whitespace().collect::<Vec<_>>().join(" "),
    };
    let place = error.location().map(|it| format!(" (line {}, column {})", it.line(), it.column()));
    problem + &place.unwrap_or_default()
}

/// Returns the option whose flag has this alias.
fn of_alias(name: &str) -> Option<String> {
    let command = Options::augment_args(clap::Command::new(""));
    let is_it = |it: &&clap::Arg| it.get_all_aliases().is_some_and(|all| all.contains(&name));
    command.get_arguments().find(is_it)?.get_long().map(str::to_owned)
}
