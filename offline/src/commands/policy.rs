//! `podgate policy`: questions about policies, answered from manifests.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::input::{Input, Resolve, read, refuse, warn_ignored};
use super::{diff, explain, lint, picture, suggest, test, written};
use crate::probe::grid::Grid;
use crate::probe::report::{self, Line};
use crate::probe::{Answer, Case, Port, Prober, Protocol, case, cases};
use cli::{NO, UNUSABLE, fail};

/// Arguments of `podgate policy`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Whether connections may be opened, between all pods or case by case
    Probe(Probe),
    /// Which policies select the ends of a connection, and which rule decides
    Explain(explain::Explain),
    /// The rules of a pod: what may reach it and what it may reach
    Walkthrough(explain::Walk),
    /// Whether the cases of files hold, for pipelines
    Test(test::Test),
    /// The connections that a change of manifests opens and closes
    Diff(diff::Diff),
    /// Mistakes in manifests, each with its line
    Lint(lint::Lint),
    /// Draw what policies allow
    Picture(picture::Draw),
    /// Policies that allow what was observed
    Suggest(suggest::Suggest),
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

Ends with 0; 1 if a verdict is not what its case expects; 2 if the input cannot be used."
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
for both: all must be allowed. A pod on the host network is its cluster node.

Manifests may leave out what a cluster would fill in. A pod without spec.nodeName is placed on a
cluster node that others like it share. A pod without an address gets one: from the podCIDRs of
its cluster node, else from a private network (10.244.0.0/16 unless that is in use).

",
    examples!()
);

/// Runs the command.
pub fn run(args: &Args) -> ExitCode {
    let probe = match &args.command {
        Command::Probe(probe) => probe,
        Command::Explain(explain) => return explain.run(),
        Command::Walkthrough(walk) => return walk.run(),
        Command::Test(test) => return test.run(),
        Command::Diff(diff) => return diff.run(),
        Command::Lint(lint) => return lint.run(),
        Command::Picture(picture) => return picture.run(),
        Command::Suggest(suggest) => return suggest.run(),
    };
    match probe.run(&mut BufWriter::new(io::stdout().lock())) {
        Ok(code) => code,
        Err(error) => fail(UNUSABLE, format_args!("stdout: {error}")),
    }
}

impl Probe {
    fn run(&self, out: &mut impl Write) -> io::Result<ExitCode> {
        if let Err(faults) = self.input.take_stdin_once(&self.cases) {
            return Ok(refuse(faults));
        }
        let objects = self.input.load();
        let cases = self.cases.as_deref().map(read_cases).transpose();
        let (objects, cases) = match (objects, cases) {
            (Ok(objects), Ok(cases)) => (objects, cases),
            (objects, cases) => {
                return Ok(refuse(objects.err().into_iter().chain(cases.err()).flatten()));
            }
        };
        let mentioned = cases.iter().flatten().flat_map(Case::addresses);
        let mut prober = match Prober::with_names(objects, mentioned, self.resolve.names()) {
            Ok(prober) => prober,
            Err(problem) => return Ok(refuse([problem])),
        };
        for conflict in prober.contested() {
            eprintln!("podgate: {conflict}; connections from and to it are denied");
        }
        warn_ignored(prober.ignored());
        let code = match (cases, &self.cases) {
            (Some(cases), Some(file)) => self.answer(&mut prober, file, &cases, out)?,
            _ => {
                written(self.grid(&mut prober, out).and_then(|()| out.flush()))?;
                ExitCode::SUCCESS
            }
        };
        Ok(code)
    }

    fn answer(
        &self,
        prober: &mut Prober,
        file: &Path,
        cases: &[Case],
        out: &mut impl Write,
    ) -> io::Result<ExitCode> {
        let numbered = cases.iter().zip(1..);
        let unknown = numbered.flat_map(|(case, number)| prober.check(number, case));
        let unknown: Vec<String> = unknown.map(|fault| named(file, &fault)).collect();
        if !unknown.is_empty() {
            return Ok(refuse(unknown));
        }
        let answers = prober.answer(cases.iter().map(Case::question));
        written(self.write(cases, &answers, out).and_then(|()| out.flush()))?;
        match report::failed(cases, &answers) {
            0 => Ok(ExitCode::SUCCESS),
            _ => Ok(ExitCode::from(NO)),
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

    fn grid(&self, prober: &mut Prober, out: &mut impl Write) -> io::Result<()> {
        let port = (self.protocol != Protocol::Icmp).then(|| self.port.clone());
        let grid = Grid { pods: prober.pods(), protocol: self.protocol, port };
        match self.output {
            Output::Grid => grid.draw(prober, out),
            Output::Json => grid.lines(prober, out),
        }
    }
}

fn read_cases(file: &Path) -> Result<Vec<Case>, Vec<String>> {
    let text =
        read(file).map_err(|error| vec![named(file, &format!("cannot be read: {error}"))])?;
    cases::read(&text).map_err(|faults| faults.iter().map(|fault| named(file, fault)).collect())
}

fn is_stdin(file: &Path) -> bool {
    file.as_os_str() == "-"
}

fn named(file: &Path, fault: &dyn std::fmt::Display) -> String {
    match is_stdin(file) {
        true => format!("stdin: {fault}"),
        false => format!("{}: {fault}", file.display()),
    }
}
