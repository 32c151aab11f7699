//! Costs of the control side in a large cluster.

mod control;
mod scale;

use std::process::ExitCode;

fn main() -> ExitCode {
    bench::run_program("cluster", &[("control", control::main), ("scale", scale::main)])
}
