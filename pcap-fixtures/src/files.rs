//! The files that scenarios become.

use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::fixture::About;
use crate::scenario::Scenario;
use crate::{Summary, all_scenarios};

/// A file to be kept in the repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its path below [`root`](crate::root).
    pub path: PathBuf,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// Every generated file of every scenario, and the README that lists them.
///
/// # Errors
/// As [`Scenario::capture`].
pub fn all_files() -> io::Result<Vec<File>> {
    let scenarios = all_scenarios();
    let mut files = vec![readme(&scenarios)];
    for scenario in &scenarios {
        files.extend(files_of(scenario)?);
    }
    Ok(files)
}

fn files_of(scenario: &Scenario) -> io::Result<Vec<File>> {
    let file =
        |name: &str, bytes: Vec<u8>| File { path: Path::new(scenario.name).join(name), bytes };
    let capture = if scenario.classic { "in.pcap" } else { "in.pcapng" };
    let about = About {
        point: scenario.point.into(),
        node: scenario.node.into(),
        capture: capture.into(),
        arguments: scenario.arguments.iter().map(|argument| argument.to_string()).collect(),
    };
    let expected = scenario.expected();
    let mut lines = String::new();
    for line in &expected {
        lines += &serde_json::to_string(line)?;
        lines.push('\n');
    }
    lines += &serde_json::to_string(&Last { summary: Summary::of(&expected) })?;
    lines.push('\n');
    Ok(vec![
        file("README.md", format!("# {}\n\n{}\n", scenario.name, sentence(scenario)).into_bytes()),
        file("fixture.json", format!("{}\n", serde_json::to_string_pretty(&about)?).into_bytes()),
        file(capture, scenario.capture()?),
        file("expected.jsonl", lines.into_bytes()),
    ])
}

fn readme(scenarios: &[Scenario]) -> File {
    let mut text = String::from(HEAD);
    for scenario in scenarios {
        let packets = scenario.expected().len();
        let name = scenario.name;
        let point = sentence(scenario);
        // Writing to a string does not fail.
        let _ = writeln!(text, "| [{name}]({name}) | {packets} | {point} |");
    }
    File { path: PathBuf::from("README.md"), bytes: text.into_bytes() }
}

/// The point as a sentence of its own.
fn sentence(scenario: &Scenario) -> String {
    let mut letters = scenario.point.chars();
    let first = letters.next().map(|letter| letter.to_uppercase().to_string());
    format!("{}{}.", first.unwrap_or_default(), letters.as_str())
}

/// The last line of the output.
#[derive(Serialize)]
struct Last {
    summary: Summary,
}

const HEAD: &str = "\
# Captures with expected verdicts

Each folder holds one case: `manifests/` (the cluster and its policies), a capture,
`fixture.json` (which node's switch, which capture, the point) and `expected.jsonl`,
which is what this prints:

```sh
podgate replay --manifests NAME/manifests --node node1 --pcap NAME/in.pcapng -o json
```

with the `arguments` of `fixture.json` behind it, if there are any.

Captures and verdicts are made from the scenarios in `src/scenarios/`, where each packet stands
beside the verdict it must get. After a change there:

```sh
cargo run -p pcap-fixtures --bin make-captures
```

The result is the same byte for byte wherever it runs, and a test holds the files to it.
Manifests are written by hand. The verdicts are an expectation, not a recording: where the switch
and a scenario disagree, find out from the policy or the RFC which one is wrong.

Origin of all captures: made by `make-captures`, no recorded traffic. Licence: Apache-2.0, as
the rest of the project.

| fixture | packets | point |
|---|---|---|
";
