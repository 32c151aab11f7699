//! Records of classic pcap.

use std::io::Read;
use std::time::Duration;

use super::bytes::{ByteOrder, Fields, Source};
use super::link::LinkType;
use super::{Fault, MAX_FRAME, Record};

/// Properties of the records, from the file's header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pcap {
    order: ByteOrder,
    /// Nanoseconds in one unit of a record's fraction of a second.
    nanos_per_tick: u64,
    link: LinkType,
}

impl Pcap {
    /// The format that `magic`, the first four bytes, announces, if it is pcap.
    pub(super) fn announced_by(magic: [u8; 4]) -> Option<Self> {
        let (order, nanos_per_tick) = match u32::from_be_bytes(magic) {
            0xa1b2_c3d4 => (ByteOrder::Big, 1000),
            0xd4c3_b2a1 => (ByteOrder::Little, 1000),
            0xa1b2_3c4d => (ByteOrder::Big, 1),
            0x4d3c_b2a1 => (ByteOrder::Little, 1),
            _ => return None,
        };
        Some(Self { order, nanos_per_tick, link: LinkType::Ethernet })
    }

    /// Reads what follows the magic number in the file's header.
    pub(super) fn header<R: Read>(&mut self, source: &mut Source<R>) -> Result<(), Fault> {
        let mut header = [0; 20];
        let what = "the file header";
        if !source.fill(&mut header, what)? {
            return Err(Fault::Cut { what });
        }
        let mut fields = Fields::new(&header, self.order);
        let (major, minor) = (fields.u16().unwrap_or(0), fields.u16().unwrap_or(0));
        if major != 2 {
            return Err(Fault::Version { major, minor });
        }
        // Zone, accuracy and snap length: the first two are always zero, and each record
        // tells its own length. The upper half of the last field describes a checksum.
        fields.take(12);
        let number = fields.u32().unwrap_or(0) as u16;
        self.link = LinkType::of(number).ok_or(Fault::LinkType(number))?;
        Ok(())
    }

    /// The next record; `None` at the end of the file.
    pub(super) fn next<R: Read>(self, source: &mut Source<R>) -> Result<Option<Record>, Fault> {
        let offset = source.offset;
        let what = "a record";
        let mut header = [0; 16];
        if !source.fill(&mut header, what)? {
            return Ok(None);
        }
        let mut fields = Fields::new(&header, self.order);
        let mut number = || fields.u32().unwrap_or(0);
        let (seconds, ticks, length, original_length) = (number(), number(), number(), number());
        if length > MAX_FRAME {
            return Err(Fault::FrameTooLong(length));
        }
        let mut data = Vec::new();
        source.append(&mut data, length, what)?;
        let time = Duration::from_secs(seconds.into())
            + Duration::from_nanos(u64::from(ticks) * self.nanos_per_tick);
        let record =
            Record { time, interface: None, direction: None, data, original_length, offset };
        Ok(Some(record.with_link(self.link)))
    }
}
