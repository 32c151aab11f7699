//! The `podgate` command as a user runs it: arguments in, answers, errors and exit codes out.

mod admission;
mod bundle;
mod check;
mod connectivity_test;
mod documents;
mod errors;
mod fixtures;
mod host_ends;
mod hostile_text;
mod install;
mod konnectivity;
mod konnectivity_arguments;
mod links;
mod memory;
mod pipelines;
mod policy;
mod policy_kinds;
mod probe;
mod prove;
mod render;
mod replay;
mod streams;
mod takeover;
