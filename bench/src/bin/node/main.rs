//! Costs of a switch with many pods: starts, attachments, connections, the journal, memory, names.

mod attach;
mod journal;
mod memory;
mod names;
mod paced;
mod plugin;
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
            ("restart", restart::main),
            ("sessions", sessions::main),
        ],
    )
}
