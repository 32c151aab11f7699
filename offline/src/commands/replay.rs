//! `podgate replay`: a capture through the switch of one cluster node.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use dataplane::wire::vxlan::Vxlan;

use super::input::{Input, refuse};
use crate::probe::report::plain;
use crate::replay::{Failure, Output, Speed, replay};
use cli::Underlay;
use cli::{NO, UNUSABLE, fail};

/// Sends a capture through the switch of one cluster node and prints each packet's verdict.
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
cannot be used (manifests, capture, name of the cluster node).")]
pub struct Args {
    #[command(flatten)]
    input: Input,

    /// The cluster node whose switch it is
    #[arg(long, value_name = "NAME")]
    pub(crate) node: String,

    /// The capture, pcap or pcapng; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) pcap: PathBuf,

    /// Keep what left the switch in this pcapng file, port names as interfaces
    #[arg(long, value_name = "FILE")]
    pub(crate) write: Option<PathBuf>,

    /// How packets travel between cluster nodes on the uplink: as they are, or in VXLAN tunnels
    #[arg(long, value_enum, default_value_t = Underlay::Routed)]
    pub(crate) underlay: Underlay,

    /// VXLAN network identifier of the tunnels
    #[arg(long, value_name = "N", default_value_t = 4096,
        value_parser = clap::value_parser!(u32).range(1..1 << 24))]
    pub(crate) vxlan_network: u32,

    /// UDP port of the tunnels
    #[arg(long, value_name = "PORT", default_value_t = 4789,
        value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) vxlan_port: u16,

    /// As fast as possible, or at the pace of the capture
    #[arg(long, value_enum, default_value_t = Speed::Max)]
    pub(crate) speed: Speed,

    /// Print the decision of each node of the graph about each packet
    #[arg(long)]
    pub(crate) trace: bool,

    /// A table to read, or one line of JSON for each packet and one for the summary
    #[arg(short = 'o', long, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
}

impl Args {
    /// The form of packets on the uplink.
    pub(crate) fn underlay(&self) -> dataplane::Underlay {
        match self.underlay {
            Underlay::Routed => dataplane::Underlay::Plain,
            Underlay::Vxlan => dataplane::Underlay::Overlay(Vxlan {
                network: self.vxlan_network,
                port: self.vxlan_port,
                group: false,
            }),
        }
    }
}

/// Replays, printing to standard output and error.
pub fn run(args: &Args) -> ExitCode {
    let objects = match args.input.load() {
        Ok(manifests) => manifests.objects,
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
