//! Costs of packets: through the graph alone, through ports, beside peers.

mod forwarding;
mod graph;
mod growth;
mod pktgen;
#[path = "../../../../dataplane/benches/traffic/mod.rs"]
mod traffic;
mod vpp;

use std::process::ExitCode;

fn main() -> ExitCode {
    bench::run_program(
        "packets",
        &[
            ("forwarding", forwarding::main),
            ("graph", graph::main),
            ("growth", growth::main),
            ("pktgen", pktgen::main),
        ],
    )
}
