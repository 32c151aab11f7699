//! `podgate policy test`: cases with selectors, for pipelines.

use std::fmt::Write as _;

use serde_json::json;

use super::Ended;
use super::cases::{Cases, Words, failures, summary};
use super::input::warn_ignored;
use crate::policy::mixed::{self, Mixed};
use crate::policy::run::CaseOutcome;
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
connection has the expected verdict. `expect: unreachable` says that nothing is there. A case with only, except,
hops, port '*' or expect: default-deny is a statement, proved for every pod that could exist as podgate policy
prove does.

Exit code: 0 if all cases hold, 1 if one does not, 2 if the input cannot be used.")]
pub struct Test {
    #[command(flatten)]
    cases: Cases,
}

const WORDS: Words = Words { command: "test", case: "case", fails: "failed" };

impl Test {
    /// Runs the command.
    pub(super) fn run(&self) -> Ended {
        let (manifests, files, names) = self.cases.load(Mixed::read)?;
        let outcomes =
            mixed::run(manifests, files, names, |runner| warn_ignored(runner.ignored()))?;
        Ok(self.cases.print(
            &outcomes,
            &WORDS,
            || text(&outcomes, self.cases.narrowed.words()),
            || json_lines(&outcomes),
        ))
    }
}

fn text(outcomes: &[CaseOutcome], family: &str) -> String {
    let mut text = String::new();
    for outcome in outcomes {
        let CaseOutcome { name, file, line, connections, .. } = outcome;
        let connections = counted(*connections, "connection");
        let verdict = if outcome.holds() {
            "ok    "
        } else if outcome.failures.is_empty() {
            "UNDECIDED"
        } else {
            "FAILED"
        };
        let _ = writeln!(text, "{verdict}  {name}  ({file}:{line}, {connections})");
        for failure in failures(outcome) {
            let _ = writeln!(text, "          {failure}");
        }
    }
    text + &summary(outcomes, &WORDS) + family + "\n"
}

fn json_lines(outcomes: &[CaseOutcome]) -> String {
    let line = |outcome: &CaseOutcome| {
        let CaseOutcome { name, file, line, connections, failures, undecided } = outcome;
        let holds = outcome.holds();
        json!({"name": name, "file": file, "line": line, "holds": holds,
            "connections": connections, "failures": failures, "undecided": undecided})
        .to_string()
            + "\n"
    };
    outcomes.iter().map(line).collect()
}
