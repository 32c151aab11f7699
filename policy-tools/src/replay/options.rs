//! Options of a replay.

use std::path::PathBuf;

use cli_runtime::Underlay;
use dataplane::wire::vxlan::Vxlan;

use super::output::Output;
use super::pace::Speed;

/// The switch, its capture, and the form of the output.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Node whose switch receives the capture
    #[arg(long, value_name = "NAME")]
    pub(super) node: String,

    /// The capture, pcap or pcapng; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    pub(super) pcap: PathBuf,

    /// Write forwarded packets to this pcapng file; interfaces are port names
    #[arg(long, value_name = "FILE")]
    pub(super) write: Option<PathBuf>,

    /// Underlay between nodes: routed packets, or VXLAN tunnels
    #[arg(long, value_enum, default_value_t = Underlay::Routed)]
    pub(super) underlay: Underlay,

    /// VXLAN network identifier of the tunnels
    #[arg(long, value_name = "N", default_value_t = 4096,
        value_parser = clap::value_parser!(u32).range(1..1 << 24))]
    pub(super) vxlan_network: u32,

    /// UDP port of the tunnels
    #[arg(long, value_name = "PORT", default_value_t = 4789,
        value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) vxlan_port: u16,

    /// As fast as possible, or at the pace of the capture
    #[arg(long, value_enum, default_value_t = Speed::Max)]
    pub(super) speed: Speed,

    /// Print the decision of each node of the graph about each packet
    #[arg(long)]
    pub(super) trace: bool,

    /// Output format
    #[arg(short = 'o', long, value_enum, default_value_t = Output::Text)]
    pub(super) output: Output,
}

impl Options {
    /// The form of packets on the uplink.
    pub(super) fn underlay(&self) -> dataplane::Underlay {
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
