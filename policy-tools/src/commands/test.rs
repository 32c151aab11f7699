//! `podgate policy test`: cases with selectors, for pipelines.

use std::fmt::Write as _;

use serde_json::json;

use super::Ended;
use super::cases::{Cases, Words, failures, summary};
use super::input::warn_ignored;
use crate::policy::run::{CaseOutcome, Runner};
use crate::policy::suite::Suite;
use cli_runtime::counted;

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
NS/LABEL=VALUE[,...] and NS/* (every pod or workload that matches; LABEL!=VALUE: with another value or none),
(LABEL=VALUE[,...])/... (of namespaces with these labels), node/*, internet, any-pod (every pod that could
exist, in any namespace), any-namespace (every pod that could exist in a namespace that is in no file),
existing-namespace (in one that is in a file), and * (every pod, and the internet). A case holds if every
connection has the expected verdict.

Exit code: 0 if all cases hold, 1 if one does not, 2 if the input cannot be used.")]
pub struct Test {
    #[command(flatten)]
    cases: Cases,
}

const WORDS: Words = Words { command: "test", case: "case", fails: "failed" };

impl Test {
    /// Runs the command.
    pub(super) fn run(&self) -> Ended {
        let (manifests, suites, names) = self.cases.load(Suite::read)?;
        let runner = Runner::new(manifests, &suites, names);
        let mut runner = runner.map_err(|problem| vec![problem])?;
        warn_ignored(runner.ignored());
        let (mut outcomes, mut faults) = (Vec::new(), Vec::new());
        for (file, suite) in &suites {
            match runner.run(file, suite) {
                Ok(found) => outcomes.extend(found),
                Err(found) => faults.extend(found),
            }
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        Ok(self.cases.print(&outcomes, &WORDS, || text(&outcomes), || json_lines(&outcomes)))
    }
}

fn text(outcomes: &[CaseOutcome]) -> String {
    let mut text = String::new();
    for outcome in outcomes {
        let CaseOutcome { name, file, line, connections, .. } = outcome;
        let connections = counted(*connections, "connection");
        let verdict = if outcome.holds() { "ok    " } else { "FAILED" };
        let _ = writeln!(text, "{verdict}  {name}  ({file}:{line}, {connections})");
        for failure in failures(outcome) {
            let _ = writeln!(text, "          {failure}");
        }
    }
    text + &summary(outcomes, &WORDS) + "\n"
}

fn json_lines(outcomes: &[CaseOutcome]) -> String {
    let line = |outcome: &CaseOutcome| {
        let CaseOutcome { name, file, line, connections, failures } = outcome;
        let holds = outcome.holds();
        json!({"name": name, "file": file, "line": line, "holds": holds,
            "connections": connections, "failures": failures})
        .to_string()
            + "\n"
    };
    outcomes.iter().map(line).collect()
}
