//! Programs for the kernel and their maps, loaded by libbpf.

mod map;
mod object;

pub use map::{Counts, KeySet, Map, Plain};
pub use object::Object;

use std::io;

/// What a call of libbpf that returns 0 or a negative error number says.
///
/// # Errors
/// The error of that number.
pub fn result(error: i32) -> io::Result<()> {
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-error)) }
}
