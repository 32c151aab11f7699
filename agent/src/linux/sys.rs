//! The system calls that no safe crate in our tree offers: entering a network
//! namespace, the ethtool ioctl, waiting on a file descriptor.

#![allow(unsafe_code, reason = "the only file of this crate that calls the C library")]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

/// Moves the calling thread (and no other one) into the network namespace that
/// `namespace` refers to; see setns(2). Needs CAP_SYS_ADMIN.
pub(super) fn enter_network_namespace(namespace: &File) -> io::Result<()> {
    // SAFETY: setns takes a descriptor, which `namespace` keeps open, and flags; it touches no
    // memory of ours.
    result(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) })
}

/// The `struct ethtool_value` of linux/ethtool.h: a command and its number.
#[repr(C)]
pub(super) struct EthtoolValue {
    pub command: u32,
    pub data: u32,
}

/// Runs one ethtool command that takes and returns an [`EthtoolValue`] on the
/// interface called `interface`, in the namespace `socket` belongs to.
pub(super) fn ethtool(
    socket: BorrowedFd<'_>,
    interface: &str,
    value: &mut EthtoolValue,
) -> io::Result<()> {
    let mut name = [0; libc::IFNAMSIZ];
    if interface.len() >= name.len() || interface.bytes().any(|byte| byte == 0) {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (slot, byte) in name.iter_mut().zip(interface.bytes()) {
        *slot = byte as libc::c_char;
    }
    let mut request = libc::ifreq {
        ifr_name: name,
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_data: std::ptr::from_mut(value).cast() },
    };
    // SAFETY: SIOCETHTOOL reads `request`, whose name ends in a zero byte, and reads and writes
    // the 8 bytes of a `struct ethtool_value` behind `ifru_data`; both outlive the call.
    result(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &mut request) })
}

/// Waits until `descriptor` can be read; `false` when `timeout` ran out first.
/// `None` waits for ever. A signal ends the wait early with `false`.
pub(super) fn readable(descriptor: BorrowedFd<'_>, timeout: Option<Duration>) -> io::Result<bool> {
    let milliseconds = match timeout {
        None => -1,
        // Rounded up, so that a short wait is not a busy one.
        Some(wait) => i32::try_from(wait.as_micros().div_ceil(1000)).unwrap_or(i32::MAX),
    };
    let mut poll = libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: poll reads and writes the one pollfd given, which outlives the call.
    let ready = unsafe { libc::poll(&mut poll, 1, milliseconds) };
    if ready >= 0 {
        return Ok(ready > 0);
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        error => Err(error),
    }
}

/// A descriptor on which ioctls about interfaces can be made.
pub(super) fn control_socket() -> io::Result<impl AsFd> {
    std::os::unix::net::UnixDatagram::unbound()
}

fn result(code: libc::c_int) -> io::Result<()> {
    if code < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
