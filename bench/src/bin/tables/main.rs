//! Costs of tables of rules: the classifier beside its peers.

mod acl;

use std::process::ExitCode;

fn main() -> ExitCode {
    bench::run_program("tables", &[("acl", acl::main)])
}
