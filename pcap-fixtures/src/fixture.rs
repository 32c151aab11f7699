//! The fixtures as tests meet them: folders.

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One folder with manifests, a capture and expected verdicts.
#[derive(Clone, Debug)]
pub struct Fixture {
    /// The folder's name.
    pub name: String,
    /// The node whose switch the capture passes.
    pub node: String,
    /// The folder with the manifests.
    pub manifests: PathBuf,
    /// The capture.
    pub capture: PathBuf,
    /// Further arguments of the replay.
    pub arguments: Vec<String>,
    /// Expected output of `podgate replay -o json`.
    pub expected: String,
}

/// The folder that holds the fixtures.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// `fixture.json`.
#[derive(Serialize, Deserialize)]
pub(crate) struct About {
    pub(crate) point: String,
    pub(crate) node: String,
    pub(crate) capture: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) arguments: Vec<String>,
}

impl Fixture {
    /// All fixtures, by name.
    ///
    /// # Errors
    /// If a folder that has a `fixture.json` is not complete.
    pub fn all() -> io::Result<Vec<Self>> {
        let mut fixtures = Vec::new();
        for entry in fs::read_dir(root())? {
            let folder = entry?.path();
            if folder.join("fixture.json").exists() {
                fixtures.push(Self::load(folder)?);
            }
        }
        fixtures.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(fixtures)
    }

    fn load(folder: PathBuf) -> io::Result<Self> {
        let about: About = serde_json::from_str(&fs::read_to_string(folder.join("fixture.json"))?)?;
        Ok(Self {
            name: folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            node: about.node,
            manifests: folder.join("manifests"),
            capture: folder.join(about.capture),
            arguments: about.arguments,
            expected: fs::read_to_string(folder.join("expected.jsonl"))?,
        })
    }
}

/// Compares two outputs of `podgate replay -o json` line by line.
///
/// # Errors
/// The lines that differ, each expected one above the actual one, and every field of theirs
/// that differs.
pub fn compare(expected: &str, actual: &str) -> Result<(), String> {
    let (mut wanted, mut given) = (expected.lines(), actual.lines());
    let mut report = String::new();
    for number in 1.. {
        let (wanted, given) = (wanted.next(), given.next());
        if wanted.is_none() && given.is_none() {
            break;
        }
        let parsed = |line: Option<&str>| line.map(serde_json::from_str::<Value>).transpose().ok();
        if let (Some(Some(a)), Some(Some(b))) = (parsed(wanted), parsed(given)) {
            if a == b {
                continue;
            }
            // Writing to a string does not fail.
            let _ = writeln!(report, "line {number}: {} differs", fields(&a, &b).join(", "));
        } else {
            let _ = writeln!(report, "line {number}:");
        }
        let _ = writeln!(report, "  expected {}", wanted.unwrap_or("nothing more"));
        let _ = writeln!(report, "    actual {}", given.unwrap_or("nothing more"));
    }
    if report.is_empty() { Ok(()) } else { Err(report) }
}

/// Names of the fields that differ.
fn fields(a: &Value, b: &Value) -> Vec<String> {
    let (Value::Object(a), Value::Object(b)) = (a, b) else { return vec!["the line".into()] };
    let only_in_b = b.keys().filter(|key| !a.contains_key(*key));
    let differs = |key: &&String| a.get(*key) != b.get(*key);
    a.keys().filter(differs).chain(only_in_b).map(|key| format!("`{key}`")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"n":1,"out":null,"by":[]}"#;

    #[test]
    fn the_order_of_fields_does_not_matter() {
        assert_eq!(compare(LINE, r#"{"out":null,"by":[],"n":1}"#), Ok(()));
    }

    #[test]
    fn differences_are_told_line_by_line() {
        let actual = format!("{LINE}\n{}\nnot json\n", r#"{"n":1,"out":"uplink","in":"x"}"#);
        let report = compare(&format!("{LINE}\n{LINE}"), &actual).expect_err("they differ");
        let expected = [
            "line 2: `by`, `out`, `in` differs",
            r#"  expected {"n":1,"out":null,"by":[]}"#,
            r#"    actual {"n":1,"out":"uplink","in":"x"}"#,
            "line 3:",
            "  expected nothing more",
            "    actual not json",
        ];
        assert_eq!(report.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn missing_lines_are_told() {
        let report = compare(LINE, "").expect_err("a line is missing");
        assert!(report.contains("actual nothing more"), "{report}");
    }
}
