//! `podgate replay`: a capture through the switch of one node.

use std::io::Write;
use std::process::ExitCode;

use super::input::{Input, refuse};
use crate::replay::{Failure, Options, replay};
use cli_runtime::{NO, Printer, UNUSABLE, fail, plain};

/// Sends a capture through the switch of one node and prints each packet's verdict.
///
/// The entry port is the pcapng interface name (`ns/pod`, `uplink`, `host`), else the port that
/// owns the source address, else the uplink. Time is the capture's time: sessions age by it. Packets
/// that a live capture marks as outbound are skipped.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  podgate replay --manifests cluster/ --node node1 --pcap in.pcapng -o json
  podgate replay --manifests cluster/ --node node1 --pcap in.pcapng --trace

Exit code: 0 if every packet was replayed, 1 if the output could not be written, 2 if the input
cannot be used (manifests, capture, name of the node).")]
pub struct Args {
    #[command(flatten)]
    input: Input,

    #[command(flatten)]
    options: Options,
}

/// Replays, printing to standard output and error.
pub fn run(args: &Args) -> ExitCode {
    let objects = match args.input.load() {
        Ok(manifests) => manifests.objects,
        Err(faults) => return refuse(faults),
    };
    let mut stdout = Printer::new();
    match replay(&args.options, objects, &mut stdout) {
        Ok(()) | Err(Failure::Unread) => ExitCode::SUCCESS,
        Err(failure) => {
            // What was printed so far stands before the reason it ended.
            let _ = stdout.flush();
            fail(if failure.is_of_input() { UNUSABLE } else { NO }, plain(&failure.to_string()))
        }
    }
}
