//! Captures: pcap and pcapng read, pcapng written, live captures of a port.
//!
//! ```text
//! bytes → Reader → Record (time, interface, data) → … → Writer → bytes
//! ```
//!
//! A [`Reader`] streams: it holds one record at a time and believes no length
//! it has not met. It knows both byte orders, micro- and nanosecond pcap, and
//! of pcapng the blocks that carry packets and the options that say where and
//! when (`if_name`, `if_tsresol`, `if_tsoffset`); every other block is skipped.
//! Whole records come out first, whatever stands behind them; then the
//! [`Error`] that names the file and the byte offset.
//!
//! The formats are decoded here rather than by a library because a switch needs
//! the offset of every fault, and the timestamps of big-endian sections and of
//! binary resolutions exactly.
//!
//! Sources: draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng.

mod bytes;
mod error;
mod link;
mod live;
mod options;
mod pcap;
mod pcapng;
mod reader;
mod record;
mod writer;

#[cfg(test)]
mod tests;

pub use error::{Error, Fault};
pub use live::{CapturedPacket, LiveCapture};
pub use reader::Reader;
pub use record::Record;
pub use writer::{Direction, Writer};

/// LINKTYPE_ETHERNET, which captures are written with.
const ETHERNET: u16 = 1;

/// The longest frame a record may hold, in bytes: what libpcap allows (`MAXIMUM_SNAPLEN`).
const MAX_FRAME: u32 = 262_144;
