//! Costs of packets: through the graph alone, through ports, beside peers.

mod forwarding;
mod graph;
mod growth;
mod latency;
mod pktgen;
mod sweep;

use std::process::ExitCode;

fn main() -> ExitCode {
    bench::run_program(
        "packets",
        &[
            ("forwarding", forwarding::main),
            ("graph", graph::main),
            ("growth", growth::main),
            ("latency", latency::main),
            ("pktgen", pktgen::main),
            ("sweep", sweep::main),
        ],
    )
}
