//! `podgate konnectivity-server check`: shows where an EgressSelectorConfiguration sends traffic.

use std::path::PathBuf;
use std::process::ExitCode;

use cli_runtime::{UNUSABLE, fail};

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
                    Output::Json => println!("{}", selection.to_json()),
                    Output::Text => print(selection),
                }
            }
            for warning in selections.iter().flat_map(|it| &it.warnings) {
                eprintln!("podgate: {name}: {warning}");
            }
            ExitCode::SUCCESS
        }
        Err(faults) => {
            for fault in faults {
                eprintln!("podgate: {name}: {fault}");
            }
            ExitCode::from(UNUSABLE)
        }
    }
}

fn print(selection: &Selection) {
    println!("{:<13} {}", selection.name, selection.route);
    println!("{:<13} {}", "", selection.traffic);
}
