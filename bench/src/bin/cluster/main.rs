//! Costs of the control side in a large cluster.

mod scale;

use std::process::ExitCode;

fn main() -> ExitCode {
    bench::run_program("cluster", &[("scale", scale::main)])
}
