//! `podgate policy prove`: statements about every pod that could exist.

use std::path::PathBuf;

use serde_json::json;

use super::Ended;
use super::cases::{Cases, Words, summary};
use super::input::warn_ignored;
use super::keep::keep;
use crate::policy::prove::{self, Counterexample, Prover, Statement};
use crate::policy::run::CaseOutcome;
use cli_runtime::Networks;

/// Arguments of `podgate policy prove`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  podgate policy prove --manifests deploy/ invariants.yaml
  podgate policy prove --manifests deploy/ invariants.yaml --write refuted/ -o json

A file holds a list of statements:
  - {name: only the web reads, only: [shop/app=web], to: shop/app=db, port: 5432}
  - {from: any-pod, to: internet, protocol: TCP, port: '*', expect: deny}
`from`, `only` and `to` take the ends of `podgate policy test`; NS/LABEL=VALUE[,...] is every pod that
could have these labels, (LABEL=VALUE[,...])/* every pod of namespaces with these, any-pod every pod that
could exist, and internet every address that no object has. `only` says that all other pods and addresses
are denied. Port '*' is every port, and without a protocol every protocol.

`except: [{protocol: UDP, port: 53}]` leaves connections out; `hops: 2` also checks paths through one
other pod; `expect: default-deny` with `to` or `from` alone says that nothing may be open there
that no rule allows:
  - {to: existing-namespace, expect: default-deny}
  - {from: (pci=true)/*, to: (pci!=true)/*, port: '*', hops: 2, expect: deny}

Exit code: 0 if all statements are proved, 1 if one is refuted, 2 if the input cannot be used.")]
pub struct Prove {
    #[command(flatten)]
    cases: Cases,
    /// Networks of pods [default: podCIDRs of the nodes, or where there are none, private networks]
    #[arg(long, value_name = "CIDR,...")]
    pod_networks: Option<Networks>,
    /// Keep each counterexample in this folder, as manifests and a capture for podgate replay
    #[arg(long, value_name = "FOLDER")]
    write: Option<PathBuf>,
}

const WORDS: Words = Words { command: "prove", case: "statement", fails: "refuted" };

/// A statement of a file, and what refutes it.
type Proof<'a> = (&'a str, &'a Statement, Option<Counterexample>);

impl Prove {
    /// Runs the command.
    pub(super) fn run(&self) -> Ended {
        let (manifests, files, names) = self.cases.load(prove::read)?;
        let all = files.iter().flat_map(|(_, statements)| statements);
        let networks = self.pod_networks.as_ref().map_or(&[][..], |it| &it.0);
        let prover = Prover::new(manifests, all, names, networks);
        let prover = prover.map_err(|problem| vec![problem])?;
        warn_ignored(prover.ignored());
        let (mut proofs, mut faults): (Vec<Proof<'_>>, _) = (Vec::new(), Vec::new());
        let statements = files.iter().flat_map(|(file, it)| it.iter().map(move |it| (file, it)));
        for (file, statement) in statements {
            match prover.refute(statement) {
                Ok(found) => proofs.push((file, statement, found)),
                Err(it) => faults
                    .push(format!("{file}: {} (line {}): {it}", statement.name, statement.line)),
            }
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        if let Some(folder) = &self.write {
            for (n, (_, _, found)) in proofs.iter().enumerate() {
                let Some(found) = found else { continue };
                let folder = folder.join(format!("{}", n + 1));
                keep(&prover, found, &folder)
                    .map_err(|error| vec![format!("{}: {error}", folder.display())])?;
            }
        }
        let outcomes: Vec<CaseOutcome> = proofs.iter().map(outcome).collect();
        let classes = prover.manifests().representatives.len();
        let family = self.cases.narrowed.words();
        let json = || proofs.iter().map(json_line).collect();
        Ok(self.cases.print(&outcomes, &WORDS, || text(&outcomes, classes, family), json))
    }
}

fn text(outcomes: &[CaseOutcome], classes: usize, family: &str) -> String {
    let lines = outcomes.iter().map(|it| {
        let verdict = if it.holds() { "proved " } else { "REFUTED" };
        let found = it.failures.iter().map(|it| format!("           {it}\n"));
        let found: String = found.collect();
        format!("{verdict}  {}  ({}:{})\n{found}", it.name, it.file, it.line)
    });
    let lines: String = lines.collect();
    let classes = match classes {
        1 => "1 class".to_owned(),
        n => format!("{n} classes"),
    };
    let summary = summary(outcomes, &WORDS);
    format!("{lines}{summary}; {classes} of pods that are in no file{family}\n")
}

fn outcome((file, statement, found): &Proof<'_>) -> CaseOutcome {
    CaseOutcome {
        name: statement.name.clone(),
        file: (*file).to_owned(),
        line: statement.line,
        connections: 1,
        failures: found.iter().map(Counterexample::to_string).collect(),
        undecided: Vec::new(),
    }
}

fn json_line((file, statement, found): &Proof<'_>) -> String {
    let Statement { name, line, .. } = statement;
    let value = json!({"name": name, "file": file, "line": line, "proved": found.is_none(),
        "counterexample": found});
    format!("{value}\n")
}
