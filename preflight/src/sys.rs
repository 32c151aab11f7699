//! Questions to the kernel's BPF.

#![allow(unsafe_code, reason = "the only file of this crate that calls the C library")]

use std::io;

/// Whether programs can be attached by tcx: its list on the loopback interface can be asked for.
///
/// # Errors
/// If the kernel does not let this process ask.
pub(crate) fn has_tcx() -> io::Result<bool> {
    const LOOPBACK: i32 = 1;
    let (mut flags, mut count) = (0, 0);
    // SAFETY: the numbers outlive the call; no room for program numbers is offered.
    let error = unsafe {
        libbpf_sys::bpf_prog_query(
            LOOPBACK,
            libbpf_sys::BPF_TCX_INGRESS,
            0,
            &raw mut flags,
            std::ptr::null_mut(),
            &raw mut count,
        )
    };
    let unknown = rustix::io::Errno::INVAL.raw_os_error();
    match -error {
        0 => Ok(true),
        code if code == unknown => Ok(false),
        // There are programs, and no room for their numbers.
        code if code == rustix::io::Errno::NOSPC.raw_os_error() => Ok(true),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}
