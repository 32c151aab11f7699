//! What flow offload needs of the kernel, and what the running one lacks.

use crate::{Kernel, tcx};

/// Number of the loopback interface in every network namespace.
const LOOPBACK: u32 = 1;

/// Why flow offload cannot be had here, in words; `None` if it can.
pub fn probe() -> Option<String> {
    if let Err(error) = tcx::attached(LOOPBACK) {
        let release = rustix::system::uname();
        let release = release.release().to_string_lossy().into_owned();
        return Some(match error.raw_os_error() {
            Some(libc::EINVAL) => {
                format!("Linux {release} has no tcx: flow offload needs 6.6 or later")
            }
            _ => format!("Linux {release} does not tell of tcx programs: {error}"),
        });
    }
    Kernel::load(1).err().map(|error| error.to_string())
}
