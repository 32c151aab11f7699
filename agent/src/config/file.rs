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
    serde_saphyr::from_str_with_options(text, options).map_err(|error| words(text, &error))
}

/// Rewords a parser's error for users: names the option, and the form of its value.
fn words(text: &str, error: &Error) -> String {
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
        other => other.to_string().split_whitespace().collect::<Vec<_>>().join(" "),
    };
    let Some(at) = error.location() else { return problem };
    let place = format!(" (line {}, column {})", at.line(), at.column());
    let Some((option, value)) = option_at(text, at.line() as usize) else {
        return problem + &place;
    };
    if problem.starts_with(option) {
        problem + &place
    } else if problem.contains(SENTENCE) {
        format!("{option}: '{}' is not {}{place}", value.escape_debug(), form(option))
    } else {
        format!("{option}: {problem}{place}")
    }
}

/// First words of what serde and the standard library's parsers say of types: `invalid u64`, `invalid IP address syntax`.
const SENTENCE: &str = "invalid ";

/// The option that a line belongs to, and what stands behind it.
fn option_at(text: &str, line: usize) -> Option<(&str, &str)> {
    let before: Vec<&str> = text.lines().take(line).collect();
    let (option, value) = before.iter().rev().find_map(|line| {
        let begins = line.starts_with(|it: char| it.is_ascii_alphanumeric());
        line.split_once(':').filter(|_| begins)
    })?;
    Some((option.trim(), value.trim()))
}

/// The form of an option's value, for people.
fn form(option: &str) -> String {
    let command = Options::augment_args(clap::Command::new(""));
    let argument = command.get_arguments().find(|it| it.get_long() == Some(option));
    let name = argument.and_then(|it| it.get_value_names()?.first().cloned());
    match name.as_deref() {
        Some("N") => "a number".to_owned(),
        Some("PORT") => "a port".to_owned(),
        Some("BYTES") => "a number of bytes".to_owned(),
        Some("CIDR") => "a network such as 10.0.0.0/8".to_owned(),
        Some("ADDRESS") => "an IP address".to_owned(),
        Some("TIME") => "a time such as 90s".to_owned(),
        Some(form) => form.to_owned(),
        None => "a value of this option".to_owned(),
    }
}

/// Returns the option whose flag has this alias.
fn of_alias(name: &str) -> Option<String> {
    let command = Options::augment_args(clap::Command::new(""));
    let is_it = |it: &&clap::Arg| it.get_all_aliases().is_some_and(|all| all.contains(&name));
    command.get_arguments().find(is_it)?.get_long().map(str::to_owned)
}
