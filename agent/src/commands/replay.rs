//! `podgate replay`: a capture through the switch of one cluster node.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use super::input::{objects, refuse};
use super::{NO, UNUSABLE, fail};
use crate::probe::report::plain;
use crate::replay::{Failure, Output, Speed, replay};

/// Sends a capture through the switch of one cluster node and tells each packet's verdict.
///
/// The entry port is the pcapng interface name (`ns/pod`, `uplink`, `host`), else the port that
/// owns the source address, else the uplink. Time is the capture's time: sessions age by it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  podgate replay --manifests cluster/ --node node1 --pcap in.pcapng -o json
  podgate replay --manifests cluster/ --node node1 --pcap in.pcapng --trace

Exit code: 0 if every packet was replayed, 1 if the output could not be written, 2 if the input
cannot be used (manifests, capture, name of the cluster node).")]
pub struct Args {
    /// Manifests: a file or a folder, YAML or JSON; may be given more than once
    #[arg(long, value_name = "PATH", required = true)]
    pub(crate) manifests: Vec<PathBuf>,

    /// The cluster node whose switch it is
    #[arg(long, value_name = "NAME")]
    pub(crate) node: String,

    /// The capture, pcap or pcapng; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) pcap: PathBuf,

    /// Keep what left the switch in this pcapng file, port names as interfaces
    #[arg(long, value_name = "FILE")]
    pub(crate) write: Option<PathBuf>,

    /// As fast as possible, or at the pace of the capture
    #[arg(long, value_enum, default_value_t = Speed::Max)]
    pub(crate) speed: Speed,

    /// Tell what each node of the graph decided about each packet
    #[arg(long)]
    pub(crate) trace: bool,

    /// A table to read, or one line of JSON for each packet and one for the summary
    #[arg(short = 'o', long, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
}

/// Replays, printing to standard output and error.
pub fn run(args: &Args) -> ExitCode {
    let objects = match objects(&args.manifests) {
        Ok(objects) => objects,
        Err(faults) => return refuse(faults),
    };
    let mut stdout = BufWriter::new(io::stdout().lock());
    match replay(args, objects, &mut stdout) {
        Ok(()) | Err(Failure::Unread) => ExitCode::SUCCESS,
        Err(failure) => {
            // What was printed so far stands before the reason it ended.
            let _ = stdout.flush();
            fail(if failure.is_of_input() { UNUSABLE } else { NO }, plain(&failure.to_string()))
        }
    }
}
