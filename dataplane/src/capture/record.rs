//! One packet of a capture.

use std::sync::Arc;
use std::time::Duration;

use super::Direction;
use super::link::LinkType;

/// One packet of a capture.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Record {
    /// Time of its capture, since 1970-01-01 00:00 UTC, to the nanosecond.
    ///
    /// Simple packet blocks carry no time; such a packet has that of the packet before it.
    pub time: Duration,
    /// The name of the interface it was captured on (pcapng option `if_name`).
    pub interface: Option<Arc<str>>,
    /// Its direction at the interface, where the capture has it (pcapng option `epb_flags`).
    pub direction: Option<Direction>,
    /// The bytes captured, from the first one of the Ethernet header.
    pub data: Vec<u8>,
    /// The length of the frame on the wire, in bytes.
    pub original_length: u32,
    /// Where the record begins in the file, in bytes.
    pub offset: u64,
}

impl Record {
    /// The same with an Ethernet header, where the capture has another one.
    pub(super) fn with_link(mut self, link: LinkType) -> Self {
        let (longer, direction) = link.rewrite(&mut self.data);
        let length = i64::from(self.original_length) + longer;
        self.original_length = u32::try_from(length).unwrap_or(self.original_length);
        self.direction = self.direction.or(direction);
        self
    }

    /// Whether the capture holds less than what was on the wire.
    pub fn is_truncated(&self) -> bool {
        (self.data.len() as u64) < u64::from(self.original_length)
    }
}
