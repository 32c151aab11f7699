//! Costs of tables of rules: lookups, compiling, and swaps under traffic.

mod acl;
mod swap;

use std::process::ExitCode;

fn main() -> ExitCode {
    bench::run_program("tables", &[("acl", acl::main), ("swap", swap::main)])
}
