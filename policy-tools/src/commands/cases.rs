//! Shared by `podgate policy test` and `prove`: files of cases, and the forms of their outcomes.

use std::fmt::Write as _;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::input::{Input, Narrowed, Resolve, Templates, read};
use super::{annotation, print};
use crate::input::Manifests;
use crate::policy::run::CaseOutcome;
use crate::policy::xml;
use crate::probe::DomainAddresses;
use cli_runtime::{NO, UNUSABLE, counted, note};
use std::process::ExitCode;

/// Files of cases about manifests.
#[derive(Debug, clap::Args)]
pub(super) struct Cases {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    resolve: Resolve,
    #[command(flatten)]
    templates: Templates,
    #[command(flatten)]
    pub(super) narrowed: Narrowed,
    /// File of cases, YAML or JSON; - for stdin
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    output: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// Plain text
    Text,
    /// One JSON object a case
    Json,
    /// JUnit XML
    Junit,
    /// Test Anything Protocol
    Tap,
    /// SARIF 2.1.0
    Sarif,
    /// Annotations of GitHub Actions
    Github,
}

/// The words of a command.
pub(super) struct Words {
    /// Its name.
    pub(super) command: &'static str,
    /// A case.
    pub(super) case: &'static str,
    /// A case that does not hold.
    pub(super) fails: &'static str,
}

/// The manifests, the content of each file by its name, and domain names.
pub(super) type Loaded<T> = (Manifests, Vec<(String, T)>, DomainAddresses);

impl Cases {
    /// Reads all files and the manifests.
    pub(super) fn load<T>(
        &self,
        read_cases: impl Fn(&[u8]) -> Result<T, Vec<String>>,
    ) -> Result<Loaded<T>, Vec<String>> {
        self.input.take_stdin_once(&self.files)?;
        let (mut cases, mut faults) = (Vec::new(), Vec::new());
        for file in &self.files {
            let name = crate::input::name(file);
            let text = read(file).map_err(|error| vec![format!("cannot be read: {error}")]);
            match text.and_then(|text| read_cases(&text)) {
                Ok(found) => cases.push((name, found)),
                Err(found) => faults.extend(found.iter().map(|fault| format!("{name}: {fault}"))),
            }
        }
        let manifests = self.input.load().and_then(|mut manifests| {
            self.templates.check(&manifests.templates)?;
            self.narrowed.apply(&mut manifests);
            Ok(manifests)
        });
        match (manifests, faults.is_empty()) {
            (Ok(manifests), true) => Ok((manifests, cases, self.resolve.names())),
            (found, _) => Err(found.err().into_iter().flatten().chain(faults).collect()),
        }
    }

    /// Prints the outcomes; `text` and `json` are the command's own forms.
    pub(super) fn print(
        &self,
        outcomes: &[CaseOutcome],
        words: &Words,
        text: impl FnOnce() -> String,
        json: impl FnOnce() -> String,
    ) -> ExitCode {
        let text = match self.output {
            Format::Text => text(),
            Format::Json => json(),
            Format::Junit => junit(outcomes),
            Format::Tap => tap(outcomes),
            Format::Sarif => sarif(outcomes, words),
            Format::Github => github(outcomes, words),
        };
        let undecided = outcomes.iter().filter(|it| !it.undecided.is_empty());
        let undecided = undecided.inspect(|CaseOutcome { file, line, undecided, .. }| {
            note(format_args!("{file}: line {line}: undecided: {}", undecided[0]));
        });
        print(
            &text,
            match undecided.count() {
                0 if outcomes.iter().all(CaseOutcome::holds) => 0,
                0 => NO,
                _ => UNUSABLE,
            },
        )
    }
}

/// The number of cases and of those that do not hold.
pub(super) fn summary(outcomes: &[CaseOutcome], words: &Words) -> String {
    let Words { case, fails, .. } = words;
    format!("{}, {} {fails}", counted(outcomes.len(), case), failed(outcomes))
}

/// Failures of one case that are printed one by one.
const LISTED: usize = 10;

/// The failures of a case, one a line, the later ones as a number.
pub(super) fn failures(outcome: &CaseOutcome) -> Vec<String> {
    let undecided = outcome.undecided.iter().map(|it| format!("undecided: {it}"));
    let mut lines: Vec<String> =
        outcome.failures.iter().cloned().chain(undecided).take(LISTED).collect();
    let more = (outcome.failures.len() + outcome.undecided.len()).saturating_sub(LISTED);
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    lines
}

fn failed(outcomes: &[CaseOutcome]) -> usize {
    outcomes.iter().filter(|outcome| !outcome.holds()).count()
}

/// Static Analysis Results Interchange Format 2.1.0: one result a case that does not hold.
fn sarif(outcomes: &[CaseOutcome], words: &Words) -> String {
    let Words { command, fails, .. } = words;
    let failed = outcomes.iter().filter(|it| !it.holds());
    let results: Vec<Value> = failed
        .map(|it| {
            let text = format!("{}: {}", it.name, failures(it).join("; "));
            json!({"ruleId": fails, "level": "error", "message": {"text": text},
                "locations": [{"physicalLocation": {"artifactLocation": {"uri": it.file},
                    "region": {"startLine": it.line}}}]})
        })
        .collect();
    let driver = json!({"name": format!("podgate policy {command}"), "rules": [{"id": fails}]});
    let log = json!({"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}]});
    format!("{log}\n")
}

fn junit(outcomes: &[CaseOutcome]) -> String {
    let (all, failed) = (outcomes.len(), failed(outcomes));
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <testsuites tests=\"{all}\" failures=\"{failed}\">\n"
    );
    for suite in outcomes.chunk_by(|a, b| a.file == b.file) {
        let file = xml(&suite[0].file);
        let failed = self::failed(suite);
        let _ = writeln!(
            text,
            "  <testsuite name=\"{file}\" tests=\"{}\" failures=\"{failed}\">",
            suite.len()
        );
        for outcome in suite {
            let (name, line) = (xml(&outcome.name), outcome.line);
            let head = format!("<testcase name=\"{name}\" file=\"{file}\" line=\"{line}\"");
            if outcome.holds() {
                let _ = writeln!(text, "    {head}/>");
                continue;
            }
            let failures = failures(outcome);
            let first = xml(failures.first().map_or("", String::as_str));
            let all = xml(&failures.join("\n"));
            let _ = writeln!(
                text,
                "    {head}>\n      <failure message=\"{first}\">{all}</failure>\n    </testcase>"
            );
        }
        text += "  </testsuite>\n";
    }
    text + "</testsuites>\n"
}

fn tap(outcomes: &[CaseOutcome]) -> String {
    let mut text = format!("TAP version 13\n1..{}\n", outcomes.len());
    for (n, outcome) in outcomes.iter().enumerate() {
        let verdict = if outcome.holds() { "ok" } else { "not ok" };
        // A `#` begins a directive.
        let name = outcome.name.replace('#', "\\#").replace('\n', " ");
        let _ = writeln!(text, "{verdict} {} - {name}", n + 1);
        for failure in failures(outcome) {
            let _ = writeln!(text, "# {failure}");
        }
    }
    text
}

fn github(outcomes: &[CaseOutcome], words: &Words) -> String {
    let mut text = String::new();
    for outcome in outcomes.iter().filter(|outcome| !outcome.holds()) {
        let CaseOutcome { name, file, line, .. } = outcome;
        let properties = [("file", &**file), ("line", &line.to_string()), ("title", name)];
        text += &annotation("error", &properties, &failures(outcome).join("\n"));
        text.push('\n');
    }
    text + &summary(outcomes, words) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST: Words = Words { command: "test", case: "case", fails: "failed" };

    fn outcomes() -> Vec<CaseOutcome> {
        let outcome = |name: &str, line, failures: &[&str]| CaseOutcome {
            name: name.into(),
            file: "t.yaml".into(),
            line,
            connections: 3,
            failures: failures.iter().map(|it| (*it).to_owned()).collect(),
            undecided: Vec::new(),
        };
        vec![outcome("fine", 1, &[]), outcome("a <b> & #c", 7, &["x to y TCP 80: allow, \"z\""])]
    }

    #[test]
    fn forms_for_other_tools_escape_what_they_must() {
        let outcomes = outcomes();
        assert_eq!(
            junit(&outcomes),
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites tests=\"2\" failures=\"1\">\n  \
             <testsuite name=\"t.yaml\" tests=\"2\" failures=\"1\">\n    \
             <testcase name=\"fine\" file=\"t.yaml\" line=\"1\"/>\n    \
             <testcase name=\"a &lt;b&gt; &amp; #c\" file=\"t.yaml\" line=\"7\">\n      \
             <failure message=\"x to y TCP 80: allow, &quot;z&quot;\">x to y TCP 80: allow, \
             &quot;z&quot;</failure>\n    </testcase>\n  </testsuite>\n</testsuites>\n"
        );
        assert_eq!(
            tap(&outcomes),
            "TAP version 13\n1..2\nok 1 - fine\nnot ok 2 - a <b> & \\#c\n\
             # x to y TCP 80: allow, \"z\"\n"
        );
        assert_eq!(
            github(&outcomes, &TEST),
            "::error file=t.yaml,line=7,title=a <b> & #c::x to y TCP 80: allow, \"z\"\n\
             2 cases, 1 failed\n"
        );
    }
}
