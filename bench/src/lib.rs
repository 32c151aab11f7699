//! Common parts of the benchmarks: samples with their spread and tables of them; pods on veth pairs,
//! forwarders between them, and switches with many pods.
//!
//! These machines are noisy. A figure is a median with its minimum and maximum, and what is
//! compared is measured in turn in one run.

pub mod attach;
pub mod forwarder;
pub mod nodes;
pub mod process;
mod program;
pub mod rig;
mod samples;
mod sealed;
mod session_file;
mod table;

pub use program::{Benchmark, argument, run_program};
pub use samples::{Samples, in_turns};
pub use session_file::SessionFile;
pub use table::{Group, draw, format_table, print_table};
