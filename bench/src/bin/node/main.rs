//! Costs of a switch with many pods: starts, attachments, connections, the journal, memory.

mod attach;
mod journal;
mod memory;
mod paced;
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
            ("paced", paced::main),
            ("restart", restart::main),
            ("sessions", sessions::main),
        ],
    )
}
