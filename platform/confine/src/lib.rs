//! Least privilege: a process gives up rights before it does anything else.
//!
//! ```text
//!   keep(&capabilities::SWITCH) ─▶ bounding, permitted, effective set; no-new-privileges
//!   files::write_only_below(…)  ─▶ files change in a few folders, and nowhere else
//!   seccomp::apply()            ─▶ the system calls of `seccomp.rs`, and no others
//! ```
//!
//! They belong to threads and are inherited: the calls come before the first thread.

pub mod capabilities;
pub mod files;
#[cfg(feature = "seccomp")]
pub mod seccomp;
mod state;

pub use capabilities::keep;
pub use state::Confinement;
