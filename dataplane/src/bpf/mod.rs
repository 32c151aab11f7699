//! Programs for the kernel and their maps, loaded by libbpf.

mod map;
mod network;
mod object;
mod programs;
mod types;

pub use map::{Counts, Entries, KeySet, Map, Plain};
pub use network::{AddressKey, NetworkKey};
pub use object::Object;
pub use programs::{OwnPrograms, name_of, number_of};
pub use types::KernelTypes;

use std::io;
use std::os::fd::RawFd;

/// An attempt that failed, and the kernel's answer.
#[derive(Debug, thiserror::Error)]
#[error("{attempt}: {cause}")]
pub struct Error {
    /// The attempt.
    pub attempt: String,
    /// The kernel's answer.
    #[source]
    pub cause: io::Error,
}

impl Error {
    /// An error of this attempt.
    pub fn new(attempt: impl Into<String>, cause: io::Error) -> Self {
        Self { attempt: attempt.into(), cause }
    }
}

/// The maps of `bpf/barrier.h`: a map of maps, and the one that is put into it.
#[derive(Debug)]
pub struct Barrier(Map<u32, u32>, RawFd);

impl Barrier {
    /// Those of a loaded object, which has to stay open.
    ///
    /// # Errors
    /// If it does not have them.
    pub fn of(object: &Object) -> io::Result<Self> {
        Ok(Self(object.map(c"barrier")?, object.descriptor(c"barrier_value")?))
    }

    /// Waits for an RCU grace period: every program that ran before has ended.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn wait(&self) -> io::Result<()> {
        self.0.put(&0, &self.1.cast_unsigned())
    }
}

/// Reads the result of a call of libbpf: 0 or a negative error number.
///
/// # Errors
/// The error of that number.
pub fn result(error: i32) -> io::Result<()> {
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-error)) }
}
