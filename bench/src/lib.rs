//! Common parts of the benchmarks: samples with their spread and tables of them; pods on veth pairs,
//! forwarders between them, a packet generator, and FD.io VPP as a peer.
//!
//! These machines are noisy. A figure is a median with its minimum and maximum, and what is
//! compared is measured in turn in one run.

pub mod attach;
pub mod forwarder;
pub mod generator;
pub mod nodes;
pub mod process;
mod program;
mod progress;
pub mod rig;
mod samples;
mod sealed;
mod session_file;
mod table;
pub mod vpp;

pub use program::{Benchmark, run_program};
pub use progress::{end_progress, show_progress};
pub use samples::Samples;
pub use session_file::SessionFile;
pub use table::print_table;
