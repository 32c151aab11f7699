//! Costs of a switch with many pods: starts, attachments, sessions, paced connections, the journal, memory, idle
//! pods, names.

mod attach;
mod journal;
mod memory;
mod names;
mod paced;
mod plugin;
mod pods;
mod restart;
mod sessions;

use std::process::ExitCode;

fn main() -> ExitCode {
    bench::run_program(
        "node",
        &[
            ("attach", attach::main),
            ("journal", journal::main),
            ("memory", memory::main),
            ("names", names::main),
            ("paced", paced::main),
            ("plugin", plugin::main),
            ("pods", pods::main),
            ("restart", restart::main),
            ("sessions", sessions::main),
        ],
    )
}
