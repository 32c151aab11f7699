//! `podgate policy suggest`: policies out of observed connections.

use std::path::PathBuf;

use serde_json::json;

use super::input::{Input, Observed};
use super::replay_journal::read;
use super::{Ended, print};
use crate::policy::flows::{Flow, flows};
use crate::policy::suggest::{Directions, Suggestion, in_words, suggest};
use cli_runtime::NO;

/// Arguments of `podgate policy suggest`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  podgate observe --last 10000 -o json > seen.json
  podgate policy suggest --manifests deploy/ --observed seen.json > policies.yaml
  podgate policy suggest --manifests deploy/ --observed live --for 1h > policies.yaml
  podgate policy suggest --kubeconfig ~/.kube/config --observed live
  podgate policy suggest --manifests deploy/ --journal /var/lib/podgate/journal > policies.yaml

Each namespace with observed traffic is closed, and each workload with connections gets a policy
that allows these. NetworkPolicies of the manifests are left aside. The probe opens every observed
connection against the result; what it denies is listed in the first lines.

Exit code: 0; 1 if a connection that was forwarded would be denied; 2 if the input cannot be used.")]
pub struct Suggest {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    observed: Observed,
    /// Folder of a journal, as podgate run --journal keeps it, or a file of kubectl podgate journal -o json;
    /// may be repeated
    #[arg(long, value_name = "PATH")]
    journal: Vec<PathBuf>,
    /// The directions that the policies restrict
    #[arg(long, value_enum, default_value = "both")]
    directions: Directions,
    /// Include connections that policies denied
    #[arg(long)]
    allow_denied: bool,
    /// YAML for kubectl, or one JSON object
    #[arg(short, long, value_enum, default_value = "yaml")]
    output: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// Policies, with comments
    Yaml,
    /// One object
    Json,
}

impl Suggest {
    /// Runs the command.
    pub(super) fn run(&self) -> Ended {
        let found = self.suggestion()?;
        let text = match self.output {
            Format::Yaml => found.yaml(),
            Format::Json => json_text(&found),
        };
        let fails = found.denied.iter().any(|(flow, _)| !flow.denied);
        Ok(print(&text, if fails { NO } else { 0 }))
    }

    fn suggestion(&self) -> Result<Suggestion, Vec<String>> {
        if self.observed.observed.is_empty() && self.journal.is_empty() {
            return Err(vec!["--observed: which verdicts? A file, - or live; or --journal".into()]);
        }
        self.input.take_stdin_once(&self.observed.observed)?;
        let manifests = self.input.load()?;
        let mut flows = flows(&manifests, &self.observed.load()?);
        flows.extend(read(&self.journal, None, &manifests)?.found().into_keys());
        if flows.is_empty() {
            return Err(vec!["no connection was observed that policies are about".into()]);
        }
        suggest(&manifests, &flows, self.directions, self.allow_denied)
            .map_err(|problem| vec![problem])
    }
}

fn json_text(found: &Suggestion) -> String {
    let flow = |flow: &Flow| {
        json!({"from": flow.from.to_string(), "to": flow.to.to_string(),
            "protocol": flow.protocol.name(), "port": flow.port})
    };
    let denied = found.denied.iter().map(|(it, reason)| {
        let mut value = flow(it);
        value["reason"] = reason.as_str().into();
        value["text"] = in_words(it).into();
        value
    });
    let whole = json!({
        "policies": found.policies,
        "allowed": found.allowed.iter().map(flow).collect::<Vec<_>>(),
        "denied": denied.collect::<Vec<_>>(),
        "notes": found.notes,
    });
    format!("{whole}\n")
}
