//! A byte source that counts, and numbers in either byte order.

use std::io::{self, Read};

use super::Fault;

/// Byte order of a file or section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteOrder {
    Big,
    Little,
}

impl ByteOrder {
    pub(super) fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Self::Big => u16::from_be_bytes(bytes),
            Self::Little => u16::from_le_bytes(bytes),
        }
    }

    pub(super) fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Big => u32::from_be_bytes(bytes),
            Self::Little => u32::from_le_bytes(bytes),
        }
    }

    pub(super) fn u64(self, bytes: [u8; 8]) -> u64 {
        match self {
            Self::Big => u64::from_be_bytes(bytes),
            Self::Little => u64::from_le_bytes(bytes),
        }
    }
}

/// Takes numbers off the front of a slice; `None` once it is too short.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a> {
    rest: &'a [u8],
    order: ByteOrder,
}

impl<'a> Fields<'a> {
    pub(super) fn new(bytes: &'a [u8], order: ByteOrder) -> Self {
        Self { rest: bytes, order }
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(super) fn order(&self) -> ByteOrder {
        self.order
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(|bytes| self.order.u16(bytes))
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(|bytes| self.order.u32(bytes))
    }

    pub(super) fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*taken)
    }
}

/// A byte source that knows how far it has been read.
#[derive(Debug)]
pub(super) struct Source<R> {
    input: R,
    /// Bytes taken so far: the offset of the next one.
    pub(super) offset: u64,
}

impl<R: Read> Source<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, offset: 0 }
    }

    /// Fills `buffer`; `false` if the source ends before its first byte.
    pub(super) fn fill(&mut self, buffer: &mut [u8], what: &'static str) -> Result<bool, Fault> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.input.read(&mut buffer[filled..]) {
                Ok(0) if filled == 0 => return Ok(false),
                Ok(0) => return Err(Fault::Cut { what }),
                Ok(count) => {
                    filled += count;
                    self.offset += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Fault::Io(error)),
            }
        }
        Ok(true)
    }

    /// Appends exactly `length` bytes to `buffer`, which grows with what is there,
    /// not with what is claimed.
    pub(super) fn append(
        &mut self,
        buffer: &mut Vec<u8>,
        length: u32,
        what: &'static str,
    ) -> Result<(), Fault> {
        let count =
            (&mut self.input).take(u64::from(length)).read_to_end(buffer).map_err(Fault::Io)?;
        self.offset += count as u64;
        if count as u64 == u64::from(length) { Ok(()) } else { Err(Fault::Cut { what }) }
    }

    /// Passes over exactly `length` bytes.
    pub(super) fn skip(&mut self, length: u32, what: &'static str) -> Result<(), Fault> {
        let mut passed = (&mut self.input).take(u64::from(length));
        let count = io::copy(&mut passed, &mut io::sink()).map_err(Fault::Io)?;
        self.offset += count;
        if count == u64::from(length) { Ok(()) } else { Err(Fault::Cut { what }) }
    }
}
