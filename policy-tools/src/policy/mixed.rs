//! Files of cases, among them statements: what `podgate policy test` reads.
//!
//! A case with `only`, `except`, `hops`, `port: "*"` or `expect: default-deny` is a statement, and is proved or refuted
//! as `podgate policy prove` does it: for every pod that could exist.

use super::prove::{Prover, Statement, is_statement, read_entry};
use super::run::{CaseOutcome, Runner};
use super::suite::Suite;
use crate::input::Manifests;
use crate::probe::DomainAddresses;

/// The content of one file.
#[derive(Clone, Debug, Default)]
pub struct Mixed {
    /// The cases.
    pub suite: Suite,
    /// The statements.
    pub statements: Vec<Statement>,
}

impl Mixed {
    /// Reads a file.
    ///
    /// # Errors
    /// Everything that is wrong, each with its line.
    pub fn read(text: &[u8]) -> Result<Self, Vec<String>> {
        let mut statements = Vec::new();
        let suite = Suite::read_with(text, &mut |value| {
            is_statement(value).then(|| read_entry(value).map(|it| statements.push(it)))
        })?;
        Ok(Self { suite, statements })
    }
}

/// Runs files against manifests; the outcomes are in the order of files and lines.
///
/// # Errors
/// Every end that does not exist, and manifests whose classes of pods cannot be compared.
pub fn run(
    manifests: Manifests,
    files: Vec<(String, Mixed)>,
    names: DomainAddresses,
    warn: impl FnOnce(&Runner),
) -> Result<Vec<CaseOutcome>, Vec<String>> {
    let one = |problem| vec![problem];
    let all: Vec<Statement> = files.iter().flat_map(|(_, it)| it.statements.clone()).collect();
    let prover = (!all.is_empty())
        .then(|| Prover::new(manifests.clone(), all.iter(), names.clone(), &[]))
        .transpose()
        .map_err(one)?;
    let (suites, statements): (Vec<(String, Suite)>, Vec<Vec<Statement>>) =
        files.into_iter().map(|(file, it)| ((file, it.suite), it.statements)).unzip();
    let mut runner = Runner::new(manifests, &suites, names).map_err(one)?;
    warn(&runner);
    let (mut outcomes, mut faults) = (Vec::new(), Vec::new());
    for ((file, suite), statements) in suites.iter().zip(&statements) {
        let mut of_file = Vec::new();
        match runner.run(file, suite) {
            Ok(found) => of_file.extend(found),
            Err(found) => faults.extend(found),
        }
        for statement in statements {
            let Some(prover) = &prover else { continue };
            match prover.refute(statement) {
                Ok(found) => of_file.push(CaseOutcome {
                    name: statement.name.clone(),
                    file: file.clone(),
                    line: statement.line,
                    connections: 1,
                    failures: found.iter().map(ToString::to_string).collect(),
                    undecided: Vec::new(),
                }),
                Err(problem) => {
                    faults.push(format!("{file}: line {}: {problem}", statement.line));
                }
            }
        }
        of_file.sort_by_key(|it| it.line);
        outcomes.extend(of_file);
    }
    if faults.is_empty() { Ok(outcomes) } else { Err(faults) }
}
