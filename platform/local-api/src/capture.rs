//! Messages of a live capture.

use serde::{Deserialize, Serialize};

/// The first answer to a capture: it has started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureStarted {
    /// The port: `ns/pod`, `uplink` or `host`.
    pub capturing: String,
}

/// One packet of a live capture.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapturedPacket {
    /// The port: `ns/pod`, `uplink` or `host`.
    pub port: String,
    /// When the packet passed the port, in nanoseconds since 1970.
    pub time_ns: u64,
    /// The packet's direction.
    pub direction: Direction,
    /// Length of the packet.
    pub length: u32,
    /// The packet's bytes up to the snap length, in base64.
    pub data: String,
}

/// Direction of a packet at a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Into the switch.
    In,
    /// Out of the switch.
    Out,
}

/// The end of a live capture.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureSummary {
    /// Number of packets sent to the client.
    pub captured: u64,
    /// Number of packets that matched while the buffer was full.
    pub dropped: u64,
    /// Why the capture has ended, in words.
    pub reason: String,
}
