//! `podgate policy`: questions about policies, answered from manifests.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::input::{Input, Resolve, read, refuse, warn_ignored};
use super::{
    Ended, diff, explain, lint, list, picture, prove, replay_journal, schema, suggest, test,
};
use crate::input::name;
use crate::probe::grid::{Grid, GridError};
use crate::probe::report::{self, Line};
use crate::probe::{Answer, Case, Port, Prober, Protocol, case, cases};
use cli_runtime::{NO, Printer, UNUSABLE, fail, note};

/// The commands of `podgate policy` that need no running switch.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Report whether connections may be opened, between all pods or case by case
    Probe(Probe),
    /// Explain which policies and rules decide about a connection
    Explain(explain::Explain),
    /// List what may reach a pod and what it may reach
    Walkthrough(explain::Walk),
    /// Test manifests against expected verdicts
    Test(test::Test),
    /// Prove statements about every pod that could exist
    Prove(prove::Prove),
    /// List the connections that a change opens or closes
    Diff(diff::Diff),
    /// Report mistakes in manifests, each with its line
    Lint(lint::Lint),
    /// List every allowed connection of workloads
    List(list::List),
    /// Draw what policies allow
    Picture(picture::Draw),
    /// Generate policies that allow observed connections
    Suggest(suggest::Suggest),
    /// Print the JSON Schema of files of cases, of statements or of the configuration
    Schema(schema::Schema),
    /// List past connections that other policies would decide differently
    ReplayJournal(replay_journal::ReplayJournal),
}

/// Help of a command ends in examples, in its short form too.
macro_rules! examples {
    () => {
        "Examples:
  podgate policy probe --manifests cluster/ --protocol TCP --port 6379
  podgate policy probe --manifests cluster/ --cases cases.yaml -o json
  kubectl get ns,node,po,svc,endpointslice,netpol,clusternetworkpolicy,clusteregressfirewall -A -o yaml > now.yaml
  podgate policy probe --manifests now.yaml --cases - <<< \\
    '{\"from\":\"default/web\",\"to\":\"default/db\",\"protocol\":\"TCP\",\"port\":6379,\"expect\":\"allow\"}'

Exit code: 0; 1 if a verdict is not what its case expects; 2 if the input cannot be used."
    };
}

/// Arguments of `podgate policy probe`.
#[derive(Debug, clap::Args)]
#[command(after_help = examples!(), after_long_help = LONG_HELP)]
pub struct Probe {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    resolve: Resolve,
    /// File of cases, or - for stdin; without it, a grid of all pods
    #[arg(long, value_name = "FILE")]
    cases: Option<PathBuf>,
    /// Without cases: the protocol
    #[arg(long, value_enum, ignore_case = true, default_value = "TCP", conflicts_with = "cases")]
    protocol: Protocol,
    /// Without cases: the port, by number or by its name at the target
    #[arg(long, default_value = "80", value_parser = case::port_argument, conflicts_with = "cases")]
    port: Port,
    /// A grid (a table for cases), or one JSON object a line
    #[arg(short, long, value_enum, default_value = "grid")]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    Grid,
    Json,
}

const LONG_HELP: &str = concat!(
    "\
A case is a JSON or YAML object; a file holds a list of them or many documents:
  {\"from\": E, \"to\": E, \"protocol\": \"TCP|UDP|SCTP|ICMP\", \"port\": NUMBER or \"NAME\",
   \"expect\": \"allow|deny\"}
  E is NS/POD, an IP address, node/NAME or (to only) service/NS/NAME or a domain name, whose
  addresses --resolve gives. `expect` may be left out,
  and `port` for ICMP; other fields are kept, unless they look like a misspelt one. A port name is looked up at the target pod, or
  among the ports of the service.

A service stands for every endpoint that the switch may choose, an end with addresses of two families
for both: all must be allowed. A pod on the host network is its node.

Manifests may leave out what a cluster would fill in. A pod without spec.nodeName is placed on a
node that others like it share. A pod without an address gets one: from the podCIDRs of
its node, else from a private network (10.244.0.0/16 unless that is in use).

",
    examples!()
);

/// Runs the command.
pub fn run(command: &Command) -> ExitCode {
    let ended = match command {
        Command::Probe(probe) => probe.run(),
        Command::Explain(explain) => explain.run(),
        Command::Walkthrough(walk) => walk.run(),
        Command::Test(test) => test.run(),
        Command::Prove(prove) => prove.run(),
        Command::Diff(diff) => diff.run(),
        Command::Lint(lint) => lint.run(),
        Command::List(list) => list.run(),
        Command::Picture(picture) => picture.run(),
        Command::Suggest(suggest) => suggest.run(),
        Command::Schema(schema) => schema.run(),
        Command::ReplayJournal(replay) => replay.run(),
    };
    ended.unwrap_or_else(refuse)
}

impl Probe {
    fn run(&self) -> Ended {
        self.input.take_stdin_once(&self.cases)?;
        let objects = self.input.load();
        let cases = self.cases.as_deref().map(read_cases).transpose();
        let (objects, cases) = match (objects, cases) {
            (Ok(objects), Ok(cases)) => (objects, cases),
            (objects, cases) => {
                return Err(objects.err().into_iter().chain(cases.err()).flatten().collect());
            }
        };
        let mentioned = cases.iter().flatten().flat_map(Case::addresses);
        let prober = Prober::with_names(objects, mentioned, self.resolve.names());
        let mut prober = prober.map_err(|problem| vec![problem])?;
        for conflict in prober.contested() {
            note(format_args!("{conflict}; connections from and to it are denied"));
        }
        warn_ignored(prober.ignored());
        let mut out = Printer::new();
        let (code, written) = match (cases, &self.cases) {
            (Some(cases), Some(file)) => {
                let answers = answers(&mut prober, file, &cases)?;
                let mut code = if report::failed(&cases, &answers) > 0 { NO } else { 0 };
                for (number, reason) in report::undecided(&cases, &answers) {
                    let file = name(file);
                    note(format_args!("{file}: case {number}: undecided: {reason}"));
                    code = UNUSABLE;
                }
                (code, self.write(&cases, &answers, &mut out).map_err(GridError::from))
            }
            _ => (0, self.grid(&mut prober, &mut out)),
        };
        match written.and_then(|()| Ok(out.flush()?)) {
            Err(GridError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
                Ok(ExitCode::from(code))
            }
            Err(error) => Ok(fail(UNUSABLE, error)),
            Ok(()) => Ok(ExitCode::from(code)),
        }
    }

    fn write(&self, cases: &[Case], answers: &[Answer], out: &mut impl Write) -> io::Result<()> {
        match self.output {
            Output::Grid => report::table(out, cases, answers),
            Output::Json => cases
                .iter()
                .zip(answers)
                .try_for_each(|(case, answer)| Line { fields: &case.fields, answer }.write(out)),
        }
    }

    fn grid(&self, prober: &mut Prober, out: &mut impl Write) -> Result<(), GridError> {
        let port = (self.protocol != Protocol::Icmp).then(|| self.port.clone());
        let grid = Grid { pods: prober.pods(), protocol: self.protocol, port };
        match self.output {
            Output::Grid => grid.draw(prober, out),
            Output::Json => grid.lines(prober, out),
        }
    }
}

fn answers(prober: &mut Prober, file: &Path, cases: &[Case]) -> Result<Vec<Answer>, Vec<String>> {
    let numbered = cases.iter().zip(1..);
    let unknown = numbered.flat_map(|(case, number)| prober.check(number, case));
    let unknown: Vec<String> = unknown.map(|it| format!("{}: {it}", name(file))).collect();
    if !unknown.is_empty() {
        return Err(unknown);
    }
    let answers = prober.answer(cases.iter().map(Case::question));
    answers.map_err(|unended| vec![unended.to_string()])
}

fn read_cases(file: &Path) -> Result<Vec<Case>, Vec<String>> {
    let named = |fault: &dyn std::fmt::Display| format!("{}: {fault}", name(file));
    let text = read(file).map_err(|error| vec![named(&format!("cannot be read: {error}"))])?;
    cases::read(&text).map_err(|faults| faults.iter().map(|fault| named(fault)).collect())
}
