//! Offloads of an interface.
//!
//! A veth end leaves checksums and segmentation to "hardware" that does not
//! exist: the other end is expected to be a kernel that knows. A switch that
//! takes frames from the other end would get packets of 64 KiB with unfinished
//! checksums. With the offloads off the sender finishes its packets itself.

use std::os::fd::AsFd;

use super::error::Error;
use super::sys;

/// One switch: its name, and the commands that read and set it (linux/ethtool.h).
struct Offload {
    name: &'static str,
    read: u32,
    set: u32,
}

/// In this order, because segmentation needs scatter-gather and checksums: the
/// kernel then never has to switch off one because of another.
const OFFLOADS: [Offload; 5] = [
    Offload { name: "generic receive offload", read: 0x2b, set: 0x2c },
    Offload { name: "generic segmentation", read: 0x23, set: 0x24 },
    Offload { name: "TCP segmentation", read: 0x1e, set: 0x1f },
    Offload { name: "scatter-gather", read: 0x18, set: 0x19 },
    Offload { name: "transmit checksums", read: 0x16, set: 0x17 },
];

/// Switches off checksum, segmentation, scatter-gather and receive offloads of
/// the interface called `interface` in the calling thread's network namespace,
/// and makes sure that they are off.
///
/// # Errors
/// If the interface is gone, or an offload cannot be switched off.
pub fn switch_off_offloads(interface: &str) -> Result<(), Error> {
    let socket =
        sys::control_socket().map_err(|cause| Error::new("open a socket for ethtool", cause))?;
    for offload in &OFFLOADS {
        let what = || format!("switch off {} on interface {interface}", offload.name);
        let mut value = sys::EthtoolValue { command: offload.set, data: 0 };
        sys::ethtool(socket.as_fd(), interface, &mut value)
            .map_err(|cause| Error::new(what(), cause))?;
        let mut value = sys::EthtoolValue { command: offload.read, data: 0 };
        sys::ethtool(socket.as_fd(), interface, &mut value)
            .map_err(|cause| Error::new(what(), cause))?;
        if value.data != 0 {
            return Err(Error::invalid(what(), "it stays on"));
        }
    }
    Ok(())
}
