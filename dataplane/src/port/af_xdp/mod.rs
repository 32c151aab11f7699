//! AF_XDP ports: frames straight from and to an interface, past the kernel's network stack.
//!
//! All sockets of a switch share one UMEM, so that between two ports only a descriptor moves.
//! Each port has its four rings with the kernel; a frame is in exactly one of them, or with us:
//!
//! ```text
//!            fill ring ──▶ kernel ──▶ rx ring        (we post empty frames, it returns full ones)
//!            tx ring   ──▶ kernel ──▶ completion ring (we post full frames, it returns empty ones)
//! ```
//!
//! The XDP program in front of the sockets stays attached when the process dies and then drops
//! what arrives: a pod whose switch is gone is closed, never open.

#![allow(unsafe_code, reason = "rings and memory are shared with the kernel")]

mod aside;
mod dispatcher;
mod posted;
mod program;
mod programs;
mod progress;
mod queue;
mod queues;
mod ring;
mod share;
mod socket;
mod umem;
mod uplink;

use std::fmt;
use std::io;

pub use program::{Attached, Fallback};
pub use programs::Programs;
pub use queue::AfXdpPort;
pub use umem::{RegisteredUmem, Umem, UmemConfig};
pub use uplink::{Uplink, UplinkFilter, UplinkMaps, UplinkService};

/// Settings of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortOptions {
    /// Frames that the kernel may fill at a time; at most the size of a ring.
    pub fill: u32,
    /// Treatment of frames while no socket takes them.
    pub fallback: Fallback,
}

impl Default for PortOptions {
    fn default() -> Self {
        Self { fill: 256, fallback: Fallback::Drop }
    }
}

/// Mode in which frames reach a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpMode {
    /// Attach mode of the XDP program.
    pub attached: Attached,
    /// Whether the interface writes into the UMEM itself.
    pub zero_copy: bool,
}

impl fmt::Display for XdpMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let copy = if self.zero_copy { "zero copy" } else { "copy" };
        write!(f, "{}, {copy}", self.attached)
    }
}

/// Why a UMEM or a port could not be had.
#[derive(Debug)]
pub struct AfXdpError {
    /// The attempt, and its interface.
    pub attempt: String,
    /// The kernel's error.
    pub cause: io::Error,
}

impl AfXdpError {
    fn new(attempt: impl Into<String>, cause: io::Error) -> Self {
        Self { attempt: attempt.into(), cause }
    }

    fn last(attempt: impl Into<String>) -> Self {
        Self::new(attempt, io::Error::last_os_error())
    }
}

impl fmt::Display for AfXdpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.attempt, self.cause)
    }
}

impl std::error::Error for AfXdpError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}
