//! Faults of captures.

use std::io;
use std::path::PathBuf;

use super::MAX_FRAME;

/// A capture could not be read further.
#[derive(Debug, thiserror::Error)]
#[error("{}: {}{fault}", file.display(), place(*offset, fault))]
pub struct Error {
    /// The file as the caller named it.
    pub file: PathBuf,
    /// Offset of the record, block or header at fault in the file, in bytes.
    pub offset: u64,
    /// The fault.
    #[source]
    pub fault: Fault,
}

/// The place in the file; empty for a file that cannot be read at all.
fn place(offset: u64, fault: &Fault) -> String {
    match (offset, fault) {
        (0, Fault::Io(_)) => String::new(),
        _ => format!("offset {offset}: "),
    }
}

/// The faults a capture can have.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The file does not begin as pcap or pcapng do.
    #[error("not a capture: neither a pcap nor a pcapng header")]
    NotACapture,
    /// The file has no bytes at all.
    #[error("not a capture: the file is empty")]
    Empty,
    /// The file ends inside a header, record or block.
    #[error("the capture is cut: {what} goes on past the end of the file")]
    Cut {
        /// The part that the file ends in.
        what: &'static str,
    },
    /// A version that nothing here knows to read.
    #[error("version {major}.{minor} of the format is not known")]
    Version {
        /// The major version found.
        major: u16,
        /// The minor version found.
        minor: u16,
    },
    /// Packets that begin with no header that is understood.
    #[error(
        "link type {0} is not supported: Ethernet (1), raw IP (101) and Linux's cooked captures (113, 276) are"
    )]
    LinkType(u16),
    /// A record holds more than any frame can.
    #[error("the record claims {0} bytes of packet, more than the {MAX_FRAME} allowed")]
    FrameTooLong(u32),
    /// The length of a block is impossible.
    #[error("the block claims a length of {0} bytes, which no such block has")]
    BlockLength(u32),
    /// The two lengths around a block differ.
    #[error("the block begins with length {leading} and ends with length {trailing}")]
    BlockTrailer {
        /// Length at the head of the block.
        leading: u32,
        /// Length at its end.
        trailing: u32,
    },
    /// A section header with a byte-order mark that is none.
    #[error("the section's byte-order mark is {0:#010x}")]
    ByteOrder(u32),
    /// A packet on an interface that the section has not described.
    #[error("the packet names interface {interface}, the section has described {described}")]
    UnknownInterface {
        /// The interface the packet names, from 0.
        interface: u32,
        /// Number of interfaces described before it.
        described: usize,
    },
    /// An option of an interface that goes past its block.
    #[error("option {code} of the interface goes past its block")]
    OptionLength {
        /// The option's code.
        code: u16,
    },
    /// The file could not be opened or read.
    #[error("{0}")]
    Io(io::Error),
}
