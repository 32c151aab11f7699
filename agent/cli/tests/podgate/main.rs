//! The `podgate` command as a user runs it: arguments in, answers, errors and exit codes out.

mod admission;
mod bundle;
mod check;
mod connectivity_test;
mod documents;
mod errors;
mod fixtures;
mod host_ends;
mod install;
mod konnectivity;
mod memory;
mod policy;
mod probe;
mod prove;
mod render;
mod replay;
mod streams;
mod takeover;
