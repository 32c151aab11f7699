//! Sections, interfaces and packets of pcapng.
//!
//! Every block is `type, length, body, length`. The length counts all four
//! parts and is a multiple of 4; a section header says in which byte order its
//! section is written, its own length included.

use std::io::Read;
use std::time::Duration;

use super::bytes::{ByteOrder, Fields, Source};
use super::link::LinkType;
use super::options::{self, Interface};
use super::{Direction, Fault, MAX_FRAME, Record};

/// The type of a section header: the same in both byte orders.
pub(super) const SECTION_HEADER: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

const INTERFACE_DESCRIPTION: u32 = 1;
/// Obsolete, but written by tools that are still in use.
const PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

/// Type and both lengths.
const FRAMING: u32 = 12;
/// The longest block that is read: a frame, its header and generous options. Others are passed over.
const MAX_BLOCK: u32 = MAX_FRAME + (1 << 20);

/// The state of the section being read.
#[derive(Debug)]
pub(super) struct Pcapng {
    order: ByteOrder,
    interfaces: Vec<Interface>,
    /// The time of the last packet.
    time: Duration,
    /// The body of the block being read.
    body: Vec<u8>,
    /// Packets of interfaces whose link type is not understood, so far.
    pub(super) passed_over: u64,
}

impl Pcapng {
    /// Reads the rest of the first section header, whose type has been read.
    pub(super) fn start<R: Read>(source: &mut Source<R>) -> Result<Self, Fault> {
        let mut file = Self {
            order: ByteOrder::Little,
            interfaces: Vec::new(),
            time: Duration::ZERO,
            body: Vec::new(),
            passed_over: 0,
        };
        file.section(source)?;
        Ok(file)
    }

    /// The next packet; `None` at the end of the file. `Err` comes with the source
    /// somewhere inside the block; the block began at `*block`.
    pub(super) fn next<R: Read>(
        &mut self,
        source: &mut Source<R>,
        block: &mut u64,
    ) -> Result<Option<Record>, Fault> {
        loop {
            *block = source.offset;
            let mut kind = [0; 4];
            if !source.fill(&mut kind, "a block")? {
                return Ok(None);
            }
            if kind == SECTION_HEADER {
                self.section(source)?;
                continue;
            }
            let kind = self.order.u32(kind);
            self.block(source, kind)?;
            let body = std::mem::take(&mut self.body);
            let packet = match kind {
                INTERFACE_DESCRIPTION => self.describe(&body).map(|()| None),
                ENHANCED_PACKET => self.enhanced(&body),
                PACKET => self.obsolete(&body),
                SIMPLE_PACKET => self.simple(&body),
                _ => Ok(None),
            };
            self.body = body;
            let is_packet = matches!(kind, PACKET | SIMPLE_PACKET | ENHANCED_PACKET);
            let packet = packet?;
            self.passed_over += u64::from(is_packet && packet.is_none());
            if let Some(packet) = packet {
                self.time = packet.time;
                return Ok(Some(Record { offset: *block, ..packet }));
            }
        }
    }

    /// Reads length, body and length of a block; keeps the body if `kind` is of use.
    fn block<R: Read>(&mut self, source: &mut Source<R>, kind: u32) -> Result<(), Fault> {
        self.body.clear();
        let length = self.length(source)?;
        if length < FRAMING || !length.is_multiple_of(4) {
            return Err(Fault::BlockLength(length));
        }
        let inside = length - FRAMING;
        if matches!(kind, INTERFACE_DESCRIPTION | PACKET | SIMPLE_PACKET | ENHANCED_PACKET) {
            if length > MAX_BLOCK {
                return Err(Fault::BlockLength(length));
            }
            source.append(&mut self.body, inside, "a block")?;
        } else {
            source.skip(inside, "a block")?;
        }
        self.trailer(source, length)
    }

    /// Reads a section header behind its type: from here on, a new section.
    fn section<R: Read>(&mut self, source: &mut Source<R>) -> Result<(), Fault> {
        let what = "a section header";
        let mut head = [0; 12];
        if !source.fill(&mut head, what)? {
            return Err(Fault::Cut { what });
        }
        let [l0, l1, l2, l3, m0, m1, m2, m3, version @ ..] = head;
        self.order = match u32::from_be_bytes([m0, m1, m2, m3]) {
            0x1a2b_3c4d => ByteOrder::Big,
            0x4d3c_2b1a => ByteOrder::Little,
            other => return Err(Fault::ByteOrder(other)),
        };
        self.interfaces.clear();
        let mut version = Fields::new(&version, self.order);
        let (major, minor) = (version.u16().unwrap_or(0), version.u16().unwrap_or(0));
        if major != 1 {
            return Err(Fault::Version { major, minor });
        }
        let length = self.order.u32([l0, l1, l2, l3]);
        // The shortest section header has mark, version and section length.
        if length < FRAMING + 16 || !length.is_multiple_of(4) {
            return Err(Fault::BlockLength(length));
        }
        source.skip(length - FRAMING - 8, what)?;
        self.trailer(source, length)
    }

    fn length<R: Read>(&self, source: &mut Source<R>) -> Result<u32, Fault> {
        let what = "a block";
        let mut length = [0; 4];
        match source.fill(&mut length, what)? {
            true => Ok(self.order.u32(length)),
            false => Err(Fault::Cut { what }),
        }
    }

    fn trailer<R: Read>(&self, source: &mut Source<R>, leading: u32) -> Result<(), Fault> {
        let trailing = self.length(source)?;
        if trailing == leading { Ok(()) } else { Err(Fault::BlockTrailer { leading, trailing }) }
    }

    fn describe(&mut self, body: &[u8]) -> Result<(), Fault> {
        let mut fields = Fields::new(body, self.order);
        let (Some(link_type), Some(_reserved), Some(snap_length)) =
            (fields.u16(), fields.u16(), fields.u32())
        else {
            return Err(too_short(body));
        };
        let mut interface = Interface::from_options(snap_length, fields)?;
        interface.link = LinkType::of(link_type);
        self.interfaces.push(interface);
        Ok(())
    }

    fn enhanced(&self, body: &[u8]) -> Result<Option<Record>, Fault> {
        let mut fields = Fields::new(body, self.order);
        let interface = fields.u32().ok_or_else(|| too_short(body))?;
        self.timed(interface, body, fields)
    }

    fn obsolete(&self, body: &[u8]) -> Result<Option<Record>, Fault> {
        let mut fields = Fields::new(body, self.order);
        let (Some(interface), Some(_drops)) = (fields.u16(), fields.u16()) else {
            return Err(too_short(body));
        };
        self.timed(interface.into(), body, fields)
    }

    /// Reads the common fields of enhanced and obsolete packet blocks, behind the interface. `None` for a packet whose
    /// link type is not understood.
    fn timed(
        &self,
        index: u32,
        body: &[u8],
        mut fields: Fields<'_>,
    ) -> Result<Option<Record>, Fault> {
        let interface = self.interface(index)?;
        let (Some(high), Some(low), Some(length), Some(original_length)) =
            (fields.u32(), fields.u32(), fields.u32(), fields.u32())
        else {
            return Err(too_short(body));
        };
        if length > MAX_FRAME {
            return Err(Fault::FrameTooLong(length));
        }
        let data = fields.take(length as usize).ok_or_else(|| too_short(body))?;
        fields.take((length.wrapping_neg() % 4) as usize);
        let record = Record {
            time: interface.time(u64::from(high) << 32 | u64::from(low)),
            interface: interface.name.clone(),
            direction: direction(fields),
            data: data.to_vec(),
            original_length,
            offset: 0,
        };
        Ok(interface.link.map(|link| record.with_link(link)))
    }

    /// A packet of the first interface; its length is what is not padding.
    fn simple(&self, body: &[u8]) -> Result<Option<Record>, Fault> {
        let interface = self.interface(0)?;
        let mut fields = Fields::new(body, self.order);
        let original_length = fields.u32().ok_or_else(|| too_short(body))?;
        let length = match interface.snap_length {
            0 => original_length,
            snap_length => original_length.min(snap_length),
        };
        if length > MAX_FRAME {
            return Err(Fault::FrameTooLong(length));
        }
        let data = fields.take(length as usize).ok_or_else(|| too_short(body))?;
        let record = Record {
            time: self.time,
            interface: interface.name.clone(),
            direction: None,
            data: data.to_vec(),
            original_length,
            offset: 0,
        };
        Ok(interface.link.map(|link| record.with_link(link)))
    }

    fn interface(&self, index: u32) -> Result<&Interface, Fault> {
        self.interfaces
            .get(index as usize)
            .ok_or(Fault::UnknownInterface { interface: index, described: self.interfaces.len() })
    }
}

/// The direction of a packet, by the options behind it. Malformed options have none.
fn direction(mut fields: Fields<'_>) -> Option<Direction> {
    const FLAGS: u16 = 2;
    while let Some((code, value)) = options::next(&mut fields).ok().flatten() {
        if code == FLAGS {
            return match fields.order().u32(value.try_into().ok()?) & 3 {
                1 => Some(Direction::In),
                2 => Some(Direction::Out),
                _ => None,
            };
        }
    }
    None
}

/// The block's fields do not fit into the length it has.
fn too_short(body: &[u8]) -> Fault {
    Fault::BlockLength(body.len() as u32 + FRAMING)
}
