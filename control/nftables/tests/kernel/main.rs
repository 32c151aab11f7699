//! The kernel's verdicts, packet by packet, in network namespaces. Needs root.

#[path = "../../../tests/common/mod.rs"]
mod common;

mod connections;
mod equivalence;
mod hooks;
mod host;
mod lab;
mod rejects;
