//! The kernel's verdicts, packet by packet, in network namespaces. Needs root.

#[path = "../../../tests/common/mod.rs"]
mod common;

mod changes;
mod connections;
mod equivalence;
mod forged;
mod hooks;
mod host;
mod host_live;
mod lab;
mod rejects;
mod tunnels;
