//! `podgate policy prove`: statements about every pod that could exist.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use control::PodKey;
use control::model::Pod;
use dataplane::capture::Writer;
use serde_json::{Value, json};

use super::input::{Input, Resolve, read, warn_ignored};
use super::{Ended, print, test};
use crate::policy::prove::{self, Counterexample, Prover, Statement};
use crate::policy::run::Outcome;
use crate::probe::Protocol;
use crate::probe::opening::Opening;
use cli_runtime::NO;

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
could have these labels, any-pod every pod that could exist, and internet every address that no object
has. `only` says that all other pods and addresses are denied. Port '*' is every port, and without a
protocol every protocol.

Exit code: 0 if all statements are proved, 1 if one is refuted, 2 if the input cannot be used.")]
pub struct Prove {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    resolve: Resolve,
    /// File of statements, YAML or JSON; - for stdin
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Keep each counterexample in this folder, as manifests and a capture for podgate replay
    #[arg(long, value_name = "FOLDER")]
    write: Option<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    output: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// Plain text
    Text,
    /// One JSON object a statement
    Json,
    /// JUnit XML
    Junit,
    /// SARIF 2.1.0
    Sarif,
    /// Annotations of GitHub Actions
    Github,
}

/// A statement of a file, and what refutes it.
type Proof<'a> = (&'a str, &'a Statement, Option<Counterexample>);

impl Prove {
    /// Runs the command.
    pub(super) fn run(&self) -> Ended {
        self.input.take_stdin_once(&self.files)?;
        let (mut statements, mut faults) = (Vec::new(), Vec::new());
        for file in &self.files {
            let name = crate::input::name(file);
            let text = read(file).map_err(|error| vec![format!("cannot be read: {error}")]);
            match text.and_then(|text| prove::read(&text)) {
                Ok(found) => statements.extend(found.into_iter().map(|it| (name.clone(), it))),
                Err(found) => faults.extend(found.iter().map(|fault| format!("{name}: {fault}"))),
            }
        }
        let manifests = match (self.input.load(), faults.is_empty()) {
            (Ok(manifests), true) => manifests,
            (found, _) => {
                return Err(found.err().into_iter().flatten().chain(faults).collect());
            }
        };
        let all = statements.iter().map(|(_, statement)| statement);
        let prover = Prover::new(manifests, all, self.resolve.names());
        let prover = prover.map_err(|problem| vec![problem])?;
        warn_ignored(prover.ignored());
        let mut proofs: Vec<Proof<'_>> = Vec::new();
        for (file, statement) in &statements {
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
        let outcomes: Vec<Outcome> = proofs.iter().map(outcome).collect();
        let text = match self.output {
            Format::Text => {
                let refuted = outcomes.iter().filter(|it| !it.holds()).count();
                let lines = outcomes.iter().map(|it| {
                    let verdict = if it.holds() { "proved " } else { "REFUTED" };
                    let found = it.failures.iter().map(|it| format!("           {it}\n"));
                    let found: String = found.collect();
                    format!("{verdict}  {}  ({}:{})\n{found}", it.name, it.file, it.line)
                });
                let lines: String = lines.collect();
                let count = super::counted(outcomes.len(), "statement");
                let classes = prover.manifests().representatives.len();
                let classes = match classes {
                    1 => "1 class".to_owned(),
                    n => format!("{n} classes"),
                };
                format!(
                    "{lines}{count}, {refuted} refuted; {classes} of pods that are in no file\n"
                )
            }
            Format::Json => proofs.iter().map(json_line).collect(),
            Format::Junit => test::junit(&outcomes),
            Format::Sarif => sarif(&outcomes),
            Format::Github => test::github(&outcomes),
        };
        Ok(print(&text, if outcomes.iter().all(Outcome::holds) { 0 } else { NO }))
    }
}

fn outcome((file, statement, found): &Proof<'_>) -> Outcome {
    Outcome {
        name: statement.name.clone(),
        file: (*file).to_owned(),
        line: statement.line,
        connections: 1,
        failures: found.iter().map(Counterexample::to_string).collect(),
    }
}

fn json_line((file, statement, found): &Proof<'_>) -> String {
    let Statement { name, line, .. } = statement;
    let value = json!({"name": name, "file": file, "line": line, "proved": found.is_none(),
        "counterexample": found});
    format!("{value}\n")
}

/// Static Analysis Results Interchange Format 2.1.0: one result a refuted statement.
fn sarif(outcomes: &[Outcome]) -> String {
    let refuted = outcomes.iter().filter(|it| !it.holds());
    let results: Vec<Value> = refuted
        .map(|it| {
            let text = format!("{}: {}", it.name, it.failures.join("; "));
            json!({"ruleId": "refuted", "level": "error", "message": {"text": text},
                "locations": [{"physicalLocation": {"artifactLocation": {"uri": it.file},
                    "region": {"startLine": it.line}}}]})
        })
        .collect();
    let driver = json!({"name": "podgate policy prove", "rules": [{"id": "refuted"}]});
    let log = json!({"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}]});
    format!("{log}\n")
}

/// The cluster node of a kept counterexample.
const NODE: &str = "node";

/// Writes the policies, the ends and the packet of a counterexample.
fn keep(prover: &Prover, found: &Counterexample, folder: &Path) -> io::Result<()> {
    let manifests = prover.manifests();
    let mut items = manifests.sources.clone();
    let ends = found.ends.iter().filter_map(|(pod, _)| pod.as_ref());
    let pods: Vec<&Pod> =
        ends.filter_map(|key| manifests.pods().find(|pod| pod.key == *key)).collect();
    for item in pods.iter().flat_map(|pod| objects(prover, pod)) {
        if !items.contains(&item) {
            items.push(item);
        }
    }
    let nodes = pods.iter().flat_map(|pod| &pod.addresses).find_map(|it| prover.node_of(*it));
    let addresses = nodes.map_or(&[][..], |node| &node.addresses);
    let addresses: Vec<Value> =
        addresses.iter().map(|it| json!({"type": "InternalIP", "address": it})).collect();
    items.push(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE},
        "status": {"addresses": addresses}}));
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    fs::create_dir_all(folder)?;
    fs::write(folder.join("manifests.yaml"), format!("{list:#}\n"))?;
    let [(_, source), (_, destination)] = found.ends;
    let opening = Opening {
        source,
        destination,
        protocol: Protocol::from_name(found.protocol).unwrap_or(Protocol::Tcp),
        source_port: 40_000,
        destination_port: found.port.unwrap_or_default(),
    };
    let frame = opening.frame().unwrap_or_default();
    let mut writer = Writer::new(fs::File::create(folder.join("packet.pcapng"))?)?;
    let length = u32::try_from(frame.len()).unwrap_or_default();
    writer.write(None, Duration::from_secs(1), &frame, length)?;
    writer.finish().map(|_| ())
}

/// A pod on the cluster node, and its namespace if no file has it.
fn objects(prover: &Prover, pod: &Pod) -> Vec<Value> {
    let PodKey { namespace, name } = &pod.key;
    let labels: serde_json::Map<String, Value> =
        pod.labels.iter().map(|(key, value)| (key.to_string(), value.to_string().into())).collect();
    let ports: Vec<Value> = pod
        .ports
        .iter()
        .map(|it| json!({"name": it.name, "containerPort": it.number, "protocol": it.protocol.to_string()}))
        .collect();
    let addresses: Vec<Value> = pod.addresses.iter().map(|it| json!({"ip": it})).collect();
    let namespace = prover.named(namespace);
    let mut found = vec![json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"nodeName": NODE, "containers": [{"name": "c", "ports": ports}]},
        "status": {"phase": "Running", "podIPs": addresses}})];
    let is_it = |it: &Value| it["kind"] == "Namespace" && it["metadata"]["name"] == *namespace;
    let labels = prover.labels(&pod.key.namespace);
    if let Some(labels) = labels.filter(|_| !prover.manifests().sources.iter().any(is_it)) {
        let labels: serde_json::Map<String, Value> =
            labels.iter().map(|(key, value)| (key.to_string(), value.to_string().into())).collect();
        found.push(json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": namespace, "labels": labels}}));
    }
    found
}
