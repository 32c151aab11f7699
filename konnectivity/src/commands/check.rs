//! `podgate konnectivity-server check`: shows where an EgressSelectorConfiguration sends traffic.

use std::path::PathBuf;
use std::process::ExitCode;

use cli_runtime::{UNUSABLE, fail, note, print};

use crate::egress::{self, Selection};

/// Arguments of `podgate konnectivity-server check`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  podgate konnectivity-server check /etc/kubernetes/egress-selector.yaml

Example of such a file:
  apiVersion: apiserver.k8s.io/v1beta1
  kind: EgressSelectorConfiguration
  egressSelections:
  - name: cluster
    connection:
      proxyProtocol: GRPC
      transport:
        uds:
          udsName: /etc/kubernetes/konnectivity/server.sock")]
pub(super) struct Args {
    /// The file that kube-apiserver gets with --egress-selector-config-file
    file: PathBuf,
    /// Output format
    #[arg(short, long, default_value = "text")]
    output: Output,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Output {
    Text,
    Json,
}

/// Checks the file; reports each fault with its field.
pub(super) fn run(args: &Args) -> ExitCode {
    let name = args.file.display();
    let text = match std::fs::read_to_string(&args.file) {
        Ok(text) => text,
        Err(error) => return fail(UNUSABLE, format_args!("{name}: {error}")),
    };
    match egress::read(&text) {
        Ok(selections) => {
            for selection in &selections {
                match args.output {
                    Output::Json => print(&format!("{}\n", selection.to_json())),
                    Output::Text => print(&lines_of(selection)),
                };
            }
            for warning in selections.iter().flat_map(|it| &it.warnings) {
                note(format_args!("{name}: {warning}"));
            }
            ExitCode::SUCCESS
        }
        Err(faults) => {
            for fault in faults {
                note(format_args!("{name}: {fault}"));
            }
            ExitCode::from(UNUSABLE)
        }
    }
}

fn lines_of(Selection { name, route, traffic, .. }: &Selection) -> String {
    format!("{name:<13} {route}\n{:<13} {traffic}\n", "")
}
