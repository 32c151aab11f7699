//! `podgate connectivity-test`: pods, policies and connections of its own, and a table of what came of them.
//!
//! - `cluster`: the nodes under test and their pods,
//! - `node`: a switch under test, a temporary one or the running one,
//! - `probe`: servers and clients inside of pods,
//! - `cases`: what must connect under which policy.

mod cases;
mod cluster;
mod node;
mod probe;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use agent::run::Table;
use cli_runtime::{NO, Output, Socket, UNUSABLE, fail, print};
use serde::Serialize;
use serde_json::json;

use self::probe::Found;
use super::Ended;

/// Arguments of `podgate connectivity-test`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Needs root, not Kubernetes. By default a temporary switch runs in a network namespace of \
its own, and nothing else on this machine changes. With --nodes 2 there are two, joined by a veth pair: clients \
reach the server through a tunnel, and connections that open and then stall show. With --manifests the running \
switch is tested: pods are attached through the CNI configuration, and their objects and policies are written into \
the folder.

Exit code: 0 if every case passed, 1 if one failed, 2 if the test could not run.

Example:
  podgate connectivity-test
  podgate connectivity-test --nodes 2
  podgate connectivity-test --manifests /etc/podgate/manifests -o json"
)]
pub struct Args {
    /// Temporary nodes; with 2 the server is on another one than the clients
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "manifests",
        value_parser = clap::value_parser!(u8).range(1..=2))]
    nodes: u8,

    /// Test the running switch, which watches this folder of manifests
    #[arg(long, value_name = "PATH")]
    manifests: Option<PathBuf>,

    /// CNI configuration that attaches pods to the running switch
    #[arg(long, value_name = "FILE", default_value = "/etc/cni/net.d/10-podgate.conflist")]
    configuration: PathBuf,

    /// The plugin [default: beside podgate, or in the usual folders]
    #[arg(long, value_name = "FILE")]
    plugin: Option<PathBuf>,

    /// Folders of IPAM plugins, joined by ':'
    #[arg(
        long,
        env = "CNI_PATH",
        value_name = "PATHS",
        default_value = "/opt/cni/bin:/usr/lib/cni"
    )]
    cni_path: String,

    #[command(flatten)]
    socket: Socket,

    /// Output format; json: one line a case
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// The result of one case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Row {
    /// The policies in force.
    policies: &'static str,
    from: &'static str,
    to: &'static str,
    protocol: &'static str,
    family: &'static str,
    port: u16,
    /// `connects` or `blocked`.
    expected: Found,
    /// One of these, or `stalls`.
    found: Found,
    milliseconds: u128,
}

/// Tries all cases, and writes the table to stdout.
pub(super) fn run(args: &Args) -> Ended {
    let began = Instant::now();
    // Of the temporary switch. A running one has started.
    if args.manifests.is_none()
        && let Some(fault) = dataplane::kernel::refuses_af_xdp()
    {
        return Err(fail(UNUSABLE, fault));
    }
    let rows = cluster::Cluster::start(args).and_then(|mut cluster| cases::run(&mut cluster));
    let rows = rows.map_err(|error| fail(UNUSABLE, error))?;
    let failed = rows.iter().filter(|row| row.expected != row.found).count();
    let text = match args.output {
        Output::Json => {
            let lines = rows.iter().filter_map(|row| serde_json::to_string(row).ok());
            lines.map(|line| line + "\n").collect()
        }
        Output::Text => table(&rows, failed, began),
    };
    let written = print(&text);
    Ok(if failed == 0 { written } else { ExitCode::from(NO) })
}

fn table(rows: &[Row], failed: usize, began: Instant) -> String {
    let cells = |row: &Row| {
        let mark = if row.expected == row.found { "" } else { "  ← WRONG" };
        vec![
            json!(row.policies),
            json!(row.from),
            json!(row.to),
            json!(format!("{} {}", row.protocol, row.family)),
            json!(row.port),
            json!(row.expected.name()),
            json!(format!("{}{mark}", row.found.name())),
        ]
    };
    let columns = ["policies", "from", "to", "protocol", "port", "expected", "found"];
    let columns = columns.map(str::to_owned).to_vec();
    let table = Table { columns, rows: rows.iter().map(cells).collect(), left_out: 0 };
    let (count, seconds) = (rows.len(), began.elapsed().as_secs_f64());
    let summary = match failed {
        0 => format!("{count} of {count} passed in {seconds:.1} s"),
        _ => format!("{failed} of {count} failed, in {seconds:.1} s"),
    };
    format!("{table}\n{summary}\n")
}
