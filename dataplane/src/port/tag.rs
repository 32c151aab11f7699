//! Tags: which port a frame belongs to, on a link that several ports share (a trunk).
//!
//! A tag stands in the place of the destination's MAC address. Whoever is at the other end of the
//! trunk puts it there, so that a pod cannot choose it.

use crate::wire::{Mac, SWITCH_MAC};
use crate::{Frame, Memory, PortId};

/// A port on a trunk.
///
/// | byte | holds |
/// |---|---|
/// | 0 | 0x06: a local address, no group |
/// | 1 | the switch's process |
/// | 2–3 | which of the ports that had the number, counted from where this process begins |
/// | 4–5 | the port's number, the high byte first |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(Mac);

const LOCAL: u8 = 0x06;

impl Tag {
    pub(crate) fn new(process: u32, epoch: u32, port: PortId) -> Self {
        let [.., c, d] = epoch.wrapping_add(process >> 8).to_be_bytes();
        let [high, low] = port.0.to_be_bytes();
        Self([LOCAL, process as u8, c, d, high, low])
    }

    /// The tag as it stands in a frame.
    pub fn bytes(self) -> Mac {
        self.0
    }

    /// The port's number.
    #[inline]
    pub fn port(self) -> PortId {
        PortId(u16::from_be_bytes([self.0[4], self.0[5]]))
    }

    /// The tag that a frame came in with.
    #[inline]
    pub fn of(memory: &Memory, frame: &Frame) -> Option<Self> {
        memory.bytes(frame).first_chunk().copied().map(Self)
    }

    /// Puts the switch's own address in the place of the tag.
    #[inline]
    pub(crate) fn remove(memory: &Memory, frame: &mut Frame) {
        memory.bytes_mut(frame)[..6].copy_from_slice(&SWITCH_MAC);
    }

    /// Writes the tag in front of a frame.
    #[inline]
    pub(crate) fn write(self, memory: &Memory, frame: &mut Frame) {
        memory.bytes_mut(frame)[..6].copy_from_slice(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_tells_ports_of_one_number_and_processes_apart() {
        let tag = Tag::new(7, 0x0102_0304, PortId(0x0506));
        assert_eq!(tag.bytes(), [0x06, 7, 3, 4, 5, 6]);
        assert_eq!(tag.port(), PortId(0x0506));
        assert_eq!(tag.bytes()[0] & 1, 0, "no group address, which parsers refuse");
        assert_ne!(tag, Tag::new(7, 0x0102_0305, PortId(0x0506)));
        assert_ne!(tag, Tag::new(8, 0x0102_0304, PortId(0x0506)));
        assert_ne!(tag, Tag::new(0x0107, 0x0102_0304, PortId(0x0506)));
    }
}
