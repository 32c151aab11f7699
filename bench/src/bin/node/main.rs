//! Costs of a switch with many pods: starts, attachments, the journal, memory, names.

mod attach;
mod journal;
mod memory;
mod names;
mod plugin;
mod restart;

use std::process::ExitCode;

fn main() -> ExitCode {
    bench::run_program(
        "node",
        &[
            ("attach", attach::main),
            ("journal", journal::main),
            ("memory", memory::main),
            ("names", names::main),
            ("plugin", plugin::main),
            ("restart", restart::main),
        ],
    )
}
