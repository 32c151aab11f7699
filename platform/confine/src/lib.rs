//! Least privilege: a process gives up rights before it does anything else.
//!
//! [`restrict`] does all three:
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

/// Restricts the calling thread, and all that it starts, to these capabilities, to changing files
/// below these folders and [`files::WRITTEN`], and to the system calls of the switch, for good.
/// Returns `false` if the kernel has no Landlock: files are then not restricted.
///
/// # Errors
/// Fails if the kernel refuses.
#[cfg(feature = "seccomp")]
pub fn restrict<'a>(
    capabilities: rustix::thread::CapabilitySet,
    folders: impl IntoIterator<Item = &'a std::path::Path>,
) -> std::io::Result<bool> {
    keep(capabilities)?;
    let written = files::WRITTEN.map(std::path::Path::new);
    let has_landlock = files::write_only_below(folders.into_iter().chain(written))?;
    seccomp::apply()?;
    Ok(has_landlock)
}
