//! Frames (section 4 and 6): numbers and how they are written.

/// The client's connection preface (section 3.4).
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes of a frame's head.
pub(super) const HEAD: usize = 9;
/// The largest window (section 6.9.1).
pub(super) const MOST_WINDOW: i64 = 0x7fff_ffff;
/// The initial window of streams and connections.
pub(super) const DEFAULT_WINDOW: i64 = 65_535;
/// The initial maximum frame size.
pub(super) const DEFAULT_FRAME: usize = 16_384;
/// The initial size of the peer's header table.
pub(super) const DEFAULT_TABLE: u32 = 4_096;
/// At the beginning of a header block: nothing is to be remembered (RFC 7541, section 6.3).
pub(super) const FORGET: u8 = 0x20;
/// The largest frame we take.
pub(super) const OWN_FRAME: usize = 131_072;

pub(super) mod kind {
    pub(in super::super) const DATA: u8 = 0;
    pub(in super::super) const HEADERS: u8 = 1;
    pub(in super::super) const PRIORITY: u8 = 2;
    pub(in super::super) const RST_STREAM: u8 = 3;
    pub(in super::super) const SETTINGS: u8 = 4;
    pub(in super::super) const PUSH_PROMISE: u8 = 5;
    pub(in super::super) const PING: u8 = 6;
    pub(in super::super) const GOAWAY: u8 = 7;
    pub(in super::super) const WINDOW_UPDATE: u8 = 8;
    pub(in super::super) const CONTINUATION: u8 = 9;
}

pub(super) mod flag {
    pub(in super::super) const END_STREAM: u8 = 0x1;
    pub(in super::super) const ACK: u8 = 0x1;
    pub(in super::super) const END_HEADERS: u8 = 0x4;
    pub(in super::super) const PADDED: u8 = 0x8;
    pub(in super::super) const PRIORITY: u8 = 0x20;
}

pub(super) mod setting {
    pub(in super::super) const HEADER_TABLE_SIZE: u16 = 1;
    pub(in super::super) const ENABLE_PUSH: u16 = 2;
    pub(in super::super) const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub(in super::super) const INITIAL_WINDOW_SIZE: u16 = 4;
    pub(in super::super) const MAX_FRAME_SIZE: u16 = 5;
    pub(in super::super) const MAX_HEADER_LIST_SIZE: u16 = 6;
}

/// Appends a frame's head. `length` fits 24 bits.
pub(super) fn put_head(out: &mut Vec<u8>, length: usize, kind: u8, flags: u8, stream: u32) {
    out.extend_from_slice(&(length as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
}

/// Appends a window update.
pub(super) fn put_window(out: &mut Vec<u8>, stream: u32, bytes: i64) {
    put_head(out, 4, kind::WINDOW_UPDATE, 0, stream);
    out.extend_from_slice(&(bytes as u32).to_be_bytes());
}

/// Appends the end of a stream.
pub(super) fn put_reset(out: &mut Vec<u8>, stream: u32, code: u32) {
    put_head(out, 4, kind::RST_STREAM, 0, stream);
    out.extend_from_slice(&code.to_be_bytes());
}

/// Appends a header block, split by the peer's frame size.
pub(super) fn put_headers(out: &mut Vec<u8>, stream: u32, block: &[u8], end: bool, frame: usize) {
    let mut chunks = block.chunks(frame).peekable();
    let mut kind = kind::HEADERS;
    let mut flags = if end { flag::END_STREAM } else { 0 };
    loop {
        let chunk = chunks.next().unwrap_or_default();
        let last = chunks.peek().is_none();
        if last {
            flags |= flag::END_HEADERS;
        }
        put_head(out, chunk.len(), kind, flags, stream);
        out.extend_from_slice(chunk);
        if last {
            return;
        }
        (kind, flags) = (kind::CONTINUATION, 0);
    }
}
