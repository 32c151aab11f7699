//! Least privilege: what a process gives up before it does anything else.
//!
//! ```text
//!   keep(&capabilities::SWITCH) ─▶ bounding, permitted, effective set; no-new-privileges
//!   seccomp::apply()            ─▶ the system calls of `seccomp.rs`, and no others
//! ```
//!
//! Capabilities belong to threads and are inherited: both calls come before the first thread.

pub mod capabilities;
#[cfg(feature = "seccomp")]
pub mod seccomp;
mod state;

pub use capabilities::keep;
pub use state::State;
