//! `podgate policy test`: cases with selectors, for pipelines.

use std::fmt::Write as _;
use std::path::PathBuf;

use serde_json::json;

use super::input::{Input, Resolve, read, warn_ignored};
use super::{Ended, counted, print};
use crate::policy::run::{Outcome, Runner};
use crate::policy::suite::Suite;
use crate::policy::xml;
use cli_runtime::NO;

/// Arguments of `podgate policy test`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  podgate policy test --manifests deploy/ policy-tests.yaml
  helm template shop chart/ | podgate policy test --manifests - tests/*.yaml -o junit > report.xml

A file holds a list of cases:
  - {name: frontend reads, from: shop/app=frontend, to: shop/app=db, port: 5432, expect: allow}
  - {from: internet, to: '*', protocol: TCP, port: 22, expect: deny}
  - everything-else: deny
`from` and `to` take NS/POD, an IP address, node/NAME, service/NS/NAME (to only), a domain name (to
only; --resolve gives its addresses),
NS/LABEL=VALUE[,...] and NS/* (every pod or workload that matches), node/*, internet, any-pod (every
pod that could exist, in any namespace), and * (every pod, and the internet). A case holds if every connection has the expected verdict.

Exit code: 0 if all cases hold, 1 if one does not, 2 if the input cannot be used.")]
pub struct Test {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    resolve: Resolve,
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
    /// Annotations of GitHub Actions
    Github,
}

impl Test {
    /// Runs the command.
    pub(super) fn run(&self) -> Ended {
        let outcomes = self.outcomes()?;
        let text = match self.output {
            Format::Text => text(&outcomes),
            Format::Json => json_lines(&outcomes),
            Format::Junit => junit(&outcomes),
            Format::Tap => tap(&outcomes),
            Format::Github => github(&outcomes),
        };
        Ok(print(&text, if outcomes.iter().all(Outcome::holds) { 0 } else { NO }))
    }

    fn outcomes(&self) -> Result<Vec<Outcome>, Vec<String>> {
        self.input.take_stdin_once(&self.files)?;
        let (mut suites, mut faults) = (Vec::new(), Vec::new());
        for file in &self.files {
            let name = crate::input::name(file);
            let read = read(file).map_err(|error| vec![format!("cannot be read: {error}")]);
            match read.and_then(|text| Suite::read(&text)) {
                Ok(suite) => suites.push((name, suite)),
                Err(found) => faults.extend(found.iter().map(|fault| format!("{name}: {fault}"))),
            }
        }
        let manifests = self.input.load();
        let manifests = match (manifests, faults.is_empty()) {
            (Ok(manifests), true) => manifests,
            (found, _) => {
                return Err(found.err().into_iter().flatten().chain(faults).collect());
            }
        };
        let runner = Runner::new(manifests, &suites, self.resolve.names());
        let mut runner = runner.map_err(|problem| vec![problem])?;
        warn_ignored(runner.ignored());
        let mut outcomes = Vec::new();
        for (file, suite) in &suites {
            match runner.run(file, suite) {
                Ok(found) => outcomes.extend(found),
                Err(found) => faults.extend(found),
            }
        }
        if faults.is_empty() { Ok(outcomes) } else { Err(faults) }
    }
}

/// Failures of one case that are printed one by one.
const LISTED: usize = 10;

/// The failures of a case, one a line, the later ones as a number.
fn failures(outcome: &Outcome) -> Vec<String> {
    let mut lines: Vec<String> = outcome.failures.iter().take(LISTED).cloned().collect();
    let more = outcome.failures.len().saturating_sub(LISTED);
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    lines
}

fn failed(outcomes: &[Outcome]) -> usize {
    outcomes.iter().filter(|outcome| !outcome.holds()).count()
}

fn text(outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    for outcome in outcomes {
        let Outcome { name, file, line, connections, .. } = outcome;
        let connections = counted(*connections, "connection");
        let verdict = if outcome.holds() { "ok    " } else { "FAILED" };
        let _ = writeln!(text, "{verdict}  {name}  ({file}:{line}, {connections})");
        for failure in failures(outcome) {
            let _ = writeln!(text, "          {failure}");
        }
    }
    let cases = counted(outcomes.len(), "case");
    let _ = writeln!(text, "{cases}, {} failed", failed(outcomes));
    text
}

fn json_lines(outcomes: &[Outcome]) -> String {
    let line = |outcome: &Outcome| {
        let Outcome { name, file, line, connections, failures } = outcome;
        let holds = outcome.holds();
        json!({"name": name, "file": file, "line": line, "holds": holds,
            "connections": connections, "failures": failures})
        .to_string()
            + "\n"
    };
    outcomes.iter().map(line).collect()
}

pub(super) fn junit(outcomes: &[Outcome]) -> String {
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

fn tap(outcomes: &[Outcome]) -> String {
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

pub(super) fn github(outcomes: &[Outcome]) -> String {
    // https://docs.github.com/actions: data and properties have escapes of their own.
    let data = |text: &str| text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A");
    let property = |text: &str| data(text).replace(':', "%3A").replace(',', "%2C");
    let mut text = String::new();
    for outcome in outcomes.iter().filter(|outcome| !outcome.holds()) {
        let Outcome { name, file, line, .. } = outcome;
        let (file, name) = (property(file), property(name));
        let message = data(&failures(outcome).join("\n"));
        let _ = writeln!(text, "::error file={file},line={line},title={name}::{message}");
    }
    let cases = counted(outcomes.len(), "case");
    let _ = writeln!(text, "{cases}, {} failed", failed(outcomes));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes() -> Vec<Outcome> {
        let outcome = |name: &str, line, failures: &[&str]| Outcome {
            name: name.into(),
            file: "t.yaml".into(),
            line,
            connections: 3,
            failures: failures.iter().map(|it| (*it).to_owned()).collect(),
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
            github(&outcomes),
            "::error file=t.yaml,line=7,title=a <b> & #c::x to y TCP 80: allow, \"z\"\n\
             2 cases, 1 failed\n"
        );
        assert!(text(&outcomes).ends_with("2 cases, 1 failed\n"));
        assert_eq!(json_lines(&outcomes).lines().count(), 2);
    }
}
