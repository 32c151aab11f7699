//! Writes pcapng.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use super::ETHERNET;

/// Direction of a packet at an interface, as the switch sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Into the switch.
    In,
    /// Out of the switch.
    Out,
}

/// Writes packets as pcapng: one section, little-endian, one interface for each
/// port name, times to the nanosecond. Equal calls give equal bytes.
#[derive(Debug)]
pub struct Writer<W> {
    output: W,
    /// Interfaces described so far, by name.
    interfaces: HashMap<Option<Arc<str>>, u32>,
    /// The block being put together.
    block: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Begins a capture on `output`, which should be buffered.
    ///
    /// # Errors
    /// If `output` cannot be written to; so with the methods.
    pub fn new(output: W) -> io::Result<Self> {
        let mut writer = Self { output, interfaces: HashMap::new(), block: Vec::new() };
        writer.block.extend(0x1a2b_3c4d_u32.to_le_bytes());
        writer.block.extend(1_u16.to_le_bytes());
        writer.block.extend(0_u16.to_le_bytes());
        // The length of the section is left open.
        writer.block.extend((-1_i64).to_le_bytes());
        writer.finish_block(0x0a0d_0d0a)?;
        Ok(writer)
    }

    /// Describes the interface `name` if it is new. Packets do this by themselves; called
    /// beforehand, it fixes the order of the interfaces and keeps those without packets.
    ///
    /// # Errors
    /// See [`new`](Self::new).
    pub fn interface(&mut self, name: Option<&str>) -> io::Result<u32> {
        let name: Option<Arc<str>> = name.map(Arc::from);
        if let Some(known) = self.interfaces.get(&name) {
            return Ok(*known);
        }
        self.block.extend(ETHERNET.to_le_bytes());
        self.block.extend([0; 2]);
        self.block.extend(0_u32.to_le_bytes());
        if let Some(name) = &name {
            // An option's length has 16 bits; port names are far shorter.
            let bytes = &name.as_bytes()[..name.len().min(usize::from(u16::MAX))];
            self.option(2, bytes);
        }
        self.option(9, &[9]);
        self.option(0, &[]);
        self.finish_block(1)?;
        let index = self.interfaces.len() as u32;
        self.interfaces.insert(name, index);
        Ok(index)
    }

    /// Writes one packet.
    ///
    /// `time` is since 1970 (the format has room until the year 2554, later times are
    /// written as that), `original_length` what was on the wire.
    ///
    /// # Errors
    /// See [`new`](Self::new); also if `data` is longer than a block can be.
    pub fn write(
        &mut self,
        interface: Option<&str>,
        time: Duration,
        data: &[u8],
        original_length: u32,
    ) -> io::Result<()> {
        self.packet(interface, time, data, original_length)?;
        self.finish_block(6)
    }

    /// The same, with the direction in which it passed the interface (option `epb_flags`).
    ///
    /// # Errors
    /// See [`write`](Self::write).
    pub fn write_directed(
        &mut self,
        interface: Option<&str>,
        time: Duration,
        data: &[u8],
        original_length: u32,
        direction: Direction,
    ) -> io::Result<()> {
        self.packet(interface, time, data, original_length)?;
        let flags: u32 = match direction {
            Direction::In => 1,
            Direction::Out => 2,
        };
        self.option(2, &flags.to_le_bytes());
        self.option(0, &[]);
        self.finish_block(6)
    }

    /// Begins the block of a packet.
    fn packet(
        &mut self,
        interface: Option<&str>,
        time: Duration,
        data: &[u8],
        original_length: u32,
    ) -> io::Result<()> {
        let length = u32::try_from(data.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let interface = self.interface(interface)?;
        let ticks = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.block.extend(interface.to_le_bytes());
        self.block.extend(((ticks >> 32) as u32).to_le_bytes());
        self.block.extend((ticks as u32).to_le_bytes());
        self.block.extend(length.to_le_bytes());
        self.block.extend(original_length.to_le_bytes());
        self.block.extend(data);
        self.pad();
        Ok(())
    }

    /// Flushes the output.
    ///
    /// # Errors
    /// See [`new`](Self::new).
    pub fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }

    /// Flushes, and returns the output.
    ///
    /// # Errors
    /// See [`new`](Self::new).
    pub fn finish(mut self) -> io::Result<W> {
        self.output.flush()?;
        Ok(self.output)
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        self.block.extend(code.to_le_bytes());
        self.block.extend((value.len() as u16).to_le_bytes());
        self.block.extend(value);
        self.pad();
    }

    fn pad(&mut self) {
        self.block.resize(self.block.len().next_multiple_of(4), 0);
    }

    /// Writes the block that was put together, and begins the next one.
    fn finish_block(&mut self, kind: u32) -> io::Result<()> {
        let length =
            u32::try_from(self.block.len() + 12).map_err(|_| io::ErrorKind::InvalidInput)?;
        self.output.write_all(&kind.to_le_bytes())?;
        self.output.write_all(&length.to_le_bytes())?;
        self.output.write_all(&self.block)?;
        self.output.write_all(&length.to_le_bytes())?;
        self.block.clear();
        Ok(())
    }
}
