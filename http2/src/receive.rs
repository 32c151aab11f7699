//! The receiving side of a connection: parses frames from pieces of any size.

use std::collections::HashMap;
use std::sync::Arc;

use super::drive::Handler;
use super::field::{check_opening, check_trailers, content_length};
use super::frame::{self, flag, kind};
use super::hpack::{Decoder, Field, HpackError};
use super::limits::Limits;
use super::link::{Link, Standing};
use super::{Fault, code};

/// The role of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The accepting side.
    Server,
    /// The connecting side.
    Client,
}

/// The reading side of one connection.
#[derive(Debug)]
pub struct Receiver {
    role: Role,
    /// Bytes of the preface that were seen.
    preface: usize,
    head: [u8; frame::HEAD],
    head_len: usize,
    frame: Option<Frame>,
    /// The payload of a frame that is not DATA.
    payload: Vec<u8>,
    block: Option<Block>,
    decoder: Decoder,
    limits: Limits,
    last_stream: u32,
    /// Bytes still to come on streams with a content-length.
    lengths: HashMap<u32, u64>,
    has_settings: bool,
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    /// Bytes of the payload still to come, padding not counted once its length is known.
    left: usize,
    /// Padding behind them; `None` while its length is still to come.
    padding: Option<usize>,
    /// Whether the data goes to the handler.
    wanted: bool,
}

/// A header block that CONTINUATION frames may go on with.
#[derive(Debug)]
struct Block {
    stream: u32,
    end: bool,
    bytes: Vec<u8>,
    frames: usize,
}

/// A header block, encoded.
const MOST_BLOCK: usize = 64 * 1024;
/// Streams with a content-length before those that have ended are removed.
const MOST_LENGTHS: usize = 64;
/// Frames a header block may come in.
const MOST_CONTINUATIONS: usize = 64;

impl Receiver {
    /// The reading side of a connection that has just been opened.
    pub fn new(role: Role) -> Self {
        Self {
            role,
            preface: if role == Role::Server { 0 } else { frame::PREFACE.len() },
            head: [0; frame::HEAD],
            head_len: 0,
            frame: None,
            payload: Vec::new(),
            block: None,
            decoder: Decoder::default(),
            limits: Limits::default(),
            last_stream: 0,
            lengths: HashMap::new(),
            has_settings: false,
        }
    }

    /// Handles received bytes. `now` is in milliseconds.
    ///
    /// # Errors
    /// A fault that ends the connection; nothing may be received after it.
    pub fn receive(
        &mut self,
        mut bytes: &[u8],
        now: u64,
        link: &Arc<Link>,
        handler: &mut impl Handler,
    ) -> Result<(), Fault> {
        if self.preface < frame::PREFACE.len() {
            let count = bytes.len().min(frame::PREFACE.len() - self.preface);
            let (mine, rest) = bytes.split_at(count);
            if frame::PREFACE[self.preface..].get(..count) != Some(mine) {
                return Err(protocol_error("this is not HTTP/2"));
            }
            self.preface += count;
            bytes = rest;
        }
        while !bytes.is_empty() {
            if self.frame.is_none() {
                let count = bytes.len().min(frame::HEAD - self.head_len);
                let (mine, rest) = bytes.split_at(count);
                self.head[self.head_len..self.head_len + count].copy_from_slice(mine);
                self.head_len += count;
                bytes = rest;
                if self.head_len < frame::HEAD {
                    return Ok(());
                }
                self.head_len = 0;
                let frame = self.begin(now, link, handler)?;
                self.frame = Some(frame);
                if frame.left == 0 {
                    // No further byte is needed to complete it.
                    self.advance(frame, &[], now, link, handler)?;
                }
            }
            let Some(frame) = self.frame else { continue };
            bytes = self.advance(frame, bytes, now, link, handler)?;
        }
        Ok(())
    }

    fn advance<'a>(
        &mut self,
        frame: Frame,
        bytes: &'a [u8],
        now: u64,
        link: &Arc<Link>,
        handler: &mut impl Handler,
    ) -> Result<&'a [u8], Fault> {
        match frame.kind {
            kind::DATA => self.data(frame, bytes, link, handler),
            _ => self.collect(frame, bytes, now, link, handler),
        }
    }

    /// Reads the head of a frame.
    fn begin(
        &mut self,
        now: u64,
        link: &Arc<Link>,
        handler: &mut impl Handler,
    ) -> Result<Frame, Fault> {
        let [a, b, c, kind, flags, rest @ ..] = self.head;
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        // The first bit is reserved and ignored (section 4.1).
        let stream = u32::from_be_bytes(rest) & 0x7fff_ffff;
        if length > frame::OWN_FRAME {
            let text = format!("a frame of {length} bytes");
            return Err(Fault::new(code::FRAME_SIZE_ERROR, text));
        }
        if !self.has_settings && (kind != kind::SETTINGS || flags & flag::ACK != 0) {
            return Err(protocol_error("the first frame is not SETTINGS"));
        }
        self.has_settings = true;
        let continued = self.block.as_ref().map(|block| block.stream);
        if continued.is_some_and(|id| kind != kind::CONTINUATION || id != stream) {
            return Err(protocol_error("a header block that is not continued"));
        }
        check_stream(kind, stream)?;
        check_frame_length(kind, flags, length)?;
        let padded = flags & flag::PADDED != 0;
        let mut frame =
            Frame { kind, flags, stream, left: length, padding: Some(0), wanted: false };
        if kind == kind::DATA {
            if padded && length == 0 {
                return Err(protocol_error("padding without its length"));
            }
            if padded {
                frame.padding = None;
            }
            if length == 0 && flags & flag::END_STREAM == 0 {
                self.limits.empty(now)?;
            }
            frame.wanted = match link.standing(stream) {
                Standing::Open { answered: true } => true,
                standing => {
                    check_late("DATA", stream, standing)?;
                    match standing {
                        Standing::Open { .. } => {
                            stream_error(link, handler, stream, code::PROTOCOL_ERROR);
                        }
                        Standing::RemoteEnded => {
                            stream_error(link, handler, stream, code::STREAM_CLOSED);
                        }
                        _ => {}
                    }
                    false
                }
            };
            link.arrived(stream, length, frame.wanted)?;
            if !padded {
                self.check_length(&mut frame, link, handler);
            }
        }
        Ok(frame)
    }

    /// Passes on the available bytes of a DATA frame; returns the rest of `bytes`.
    fn data<'a>(
        &mut self,
        mut frame: Frame,
        mut bytes: &'a [u8],
        link: &Arc<Link>,
        handler: &mut impl Handler,
    ) -> Result<&'a [u8], Fault> {
        if frame.padding.is_none()
            && let Some((length, rest)) = bytes.split_first()
        {
            bytes = rest;
            let padding = usize::from(*length);
            if padding >= frame.left {
                return Err(protocol_error("DATA: padding beyond the frame"));
            }
            frame.left -= 1 + padding;
            frame.padding = Some(padding);
            if frame.wanted {
                link.release(frame.stream, 1 + padding);
            }
            self.check_length(&mut frame, link, handler);
        }
        let (mine, rest) = bytes.split_at(bytes.len().min(frame.left));
        bytes = rest;
        frame.left -= mine.len();
        let end = frame.left == 0 && frame.flags & flag::END_STREAM != 0;
        if frame.wanted && (!mine.is_empty() || end && frame.padding.is_some()) {
            if end {
                // Once: what follows is padding.
                frame.flags &= !flag::END_STREAM;
                link.remote_ended(frame.stream);
            }
            handler.data(link, frame.stream, mine, end);
        }
        if frame.left == 0
            && let Some(padding) = frame.padding
        {
            let skipped = bytes.len().min(padding);
            bytes = &bytes[skipped..];
            frame.padding = Some(padding - skipped);
        }
        let complete = frame.left == 0 && frame.padding == Some(0);
        self.frame = (!complete).then_some(frame);
        Ok(bytes)
    }

    /// Collects a frame of another kind and handles it when it is complete.
    fn collect<'a>(
        &mut self,
        frame: Frame,
        bytes: &'a [u8],
        now: u64,
        link: &Arc<Link>,
        handler: &mut impl Handler,
    ) -> Result<&'a [u8], Fault> {
        let missing = frame.left - self.payload.len();
        let (mine, rest) = bytes.split_at(bytes.len().min(missing));
        if mine.len() < missing {
            self.payload.extend_from_slice(mine);
            return Ok(rest);
        }
        self.frame = None;
        if self.payload.is_empty() {
            self.complete(frame, mine, now, link, handler)?;
        } else {
            let mut payload = std::mem::take(&mut self.payload);
            payload.extend_from_slice(mine);
            self.complete(frame, &payload, now, link, handler)?;
        }
        Ok(rest)
    }

    fn complete(
        &mut self,
        frame: Frame,
        payload: &[u8],
        now: u64,
        link: &Arc<Link>,
        handler: &mut impl Handler,
    ) -> Result<(), Fault> {
        let stream = frame.stream;
        let number = |at: usize| {
            let bytes = payload.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
            bytes.map_or(0, u32::from_be_bytes)
        };
        match frame.kind {
            kind::HEADERS => {
                let bytes = unpadded(frame, payload)?.to_vec();
                let end = frame.flags & flag::END_STREAM != 0;
                self.block = Some(Block { stream, end, bytes, frames: 1 });
                self.block_frame(frame, now, link, handler)
            }
            kind::CONTINUATION => {
                let Some(block) = &mut self.block else {
                    return Err(protocol_error("CONTINUATION of nothing"));
                };
                block.bytes.extend_from_slice(payload);
                block.frames += 1;
                if block.bytes.len() > MOST_BLOCK || block.frames > MOST_CONTINUATIONS {
                    return Err(Fault::new(code::ENHANCE_YOUR_CALM, "an endless header block"));
                }
                self.block_frame(frame, now, link, handler)
            }
            kind::RST_STREAM => {
                self.limits.reset(now)?;
                if link.standing(stream) == Standing::Idle {
                    return Err(idle("RST_STREAM", stream));
                }
                if link.has_stream(stream) {
                    link.remote_reset(stream);
                    handler.reset(link, stream, number(0));
                }
                Ok(())
            }
            kind::SETTINGS if frame.flags & flag::ACK != 0 => Ok(()),
            kind::SETTINGS => {
                self.limits.settings(now)?;
                for pair in payload.chunks_exact(6) {
                    let name = u16::from_be_bytes([pair[0], pair[1]]);
                    let value = u32::from_be_bytes([pair[2], pair[3], pair[4], pair[5]]);
                    link.setting(name, value)?;
                }
                link.acknowledge(kind::SETTINGS, &[])
            }
            kind::PING if frame.flags & flag::ACK != 0 => {
                link.ping_answered();
                Ok(())
            }
            kind::PING => {
                self.limits.ping(now)?;
                link.acknowledge(kind::PING, payload)
            }
            kind::GOAWAY => {
                let text = String::from_utf8_lossy(&payload[8..]).into_owned();
                handler.going_away(link, number(4), &text);
                Ok(())
            }
            kind::WINDOW_UPDATE => {
                let bytes = number(0) & 0x7fff_ffff;
                if stream == 0 && bytes == 0 {
                    return Err(protocol_error("a window update of nothing"));
                }
                match link.standing(stream) {
                    Standing::Idle if stream != 0 => Err(idle("WINDOW_UPDATE", stream)),
                    _ if stream == 0 || link.has_stream(stream) => {
                        let fault = match bytes {
                            0 => Some(code::PROTOCOL_ERROR),
                            bytes => link.grow(stream, i64::from(bytes))?,
                        };
                        if let Some(code) = fault {
                            stream_error(link, handler, stream, code);
                        }
                        Ok(())
                    }
                    _ => self.limits.empty(now),
                }
            }
            kind::PUSH_PROMISE => Err(protocol_error("a push that was not allowed")),
            // PRIORITY, and types that this version does not know.
            _ => self.limits.empty(now),
        }
    }

    /// Notes the content-length of a message that opens; false if the message has none of that
    /// length (section 8.1.1).
    fn expect(&mut self, link: &Link, stream: u32, fields: &[Field], end: bool) -> bool {
        let Ok(length) = content_length(fields) else { return false };
        match length {
            None => true,
            // A response to HEAD has the length and no content.
            Some(length) if end => length == 0 || self.role == Role::Client,
            Some(length) => {
                if self.lengths.len() >= MOST_LENGTHS {
                    self.lengths.retain(|stream, _| link.has_stream(*stream));
                }
                self.lengths.insert(stream, length);
                true
            }
        }
    }

    /// Counts content; false if it is longer, or at its end shorter, than the content-length.
    fn count(&mut self, stream: u32, bytes: u64, end: bool) -> bool {
        let Some(left) = self.lengths.get_mut(&stream) else { return true };
        let rest = left.checked_sub(bytes);
        *left = rest.unwrap_or_default();
        if end || rest.is_none() {
            self.lengths.remove(&stream);
        }
        rest.is_some_and(|rest| !end || rest == 0)
    }

    /// Ends the stream of a DATA frame whose content, `frame.left` bytes, is not what the
    /// content-length says.
    fn check_length(&mut self, frame: &mut Frame, link: &Arc<Link>, handler: &mut impl Handler) {
        let end = frame.flags & flag::END_STREAM != 0;
        if frame.wanted && !self.count(frame.stream, frame.left as u64, end) {
            frame.wanted = false;
            link.release(frame.stream, frame.left);
            stream_error(link, handler, frame.stream, code::PROTOCOL_ERROR);
        }
    }

    /// Decodes the header block if it is complete.
    fn block_frame(
        &mut self,
        frame: Frame,
        now: u64,
        link: &Arc<Link>,
        handler: &mut impl Handler,
    ) -> Result<(), Fault> {
        if frame.flags & flag::END_HEADERS == 0 {
            return Ok(());
        }
        let Some(Block { stream, end, bytes, .. }) = self.block.take() else { return Ok(()) };
        // Also for refused streams: the table belongs to the connection.
        let fields = self.decoder.decode(&bytes).map_err(|error| {
            let code = match error {
                HpackError::TooLong => code::ENHANCE_YOUR_CALM,
                _ => code::COMPRESSION_ERROR,
            };
            Fault::new(code, error.to_string())
        })?;
        if self.role == Role::Server && stream % 2 == 1 && stream > self.last_stream {
            self.last_stream = stream;
            let accepted = link.accept(stream);
            let well_formed = check_opening(self.role, &fields).is_ok()
                && self.expect(link, stream, &fields, end);
            if accepted && !well_formed {
                link.reset(stream, code::PROTOCOL_ERROR);
            }
            if !accepted || !well_formed {
                return self.limits.reset(now);
            }
            link.answered(stream);
            return deliver(link, handler, stream, fields, end);
        }
        match link.standing(stream) {
            Standing::Open { answered: false } => {
                let interim = fields.first().is_some_and(|it| it.value.starts_with('1'));
                if check_opening(self.role, &fields).is_err()
                    || interim && end
                    || !interim && !self.expect(link, stream, &fields, end)
                {
                    stream_error(link, handler, stream, code::PROTOCOL_ERROR);
                    return Ok(());
                }
                if interim {
                    return Ok(());
                }
                link.answered(stream);
                deliver(link, handler, stream, fields, end)
            }
            Standing::Open { answered: true } => {
                if !end || check_trailers(&fields).is_err() || !self.count(stream, 0, true) {
                    stream_error(link, handler, stream, code::PROTOCOL_ERROR);
                    return Ok(());
                }
                deliver(link, handler, stream, fields, end)
            }
            Standing::RemoteEnded => {
                stream_error(link, handler, stream, code::STREAM_CLOSED);
                Ok(())
            }
            // Headers that were on their way when this side closed the stream are discarded.
            standing => check_late("HEADERS", stream, standing),
        }
    }
}

fn deliver(
    link: &Arc<Link>,
    handler: &mut impl Handler,
    stream: u32,
    fields: Vec<Field>,
    end: bool,
) -> Result<(), Fault> {
    if end {
        link.remote_ended(stream);
    }
    handler.headers(link, stream, fields, end);
    Ok(())
}

/// Ends a stream because of a fault that concerns it alone (section 5.4.2).
fn stream_error(link: &Arc<Link>, handler: &mut impl Handler, stream: u32, code: u32) {
    link.reset(stream, code);
    handler.reset(link, stream, code);
}

/// Frames that a stream cannot have in its state (sections 5.1 and 5.1.1).
fn check_late(what: &str, stream: u32, standing: Standing) -> Result<(), Fault> {
    match standing {
        Standing::Idle => Err(idle(what, stream)),
        Standing::ClosedByPeer => {
            let text = format!("{what} on stream {stream}, which its sender had ended");
            Err(Fault::new(code::STREAM_CLOSED, text))
        }
        Standing::Open { .. } | Standing::RemoteEnded | Standing::Closed => Ok(()),
    }
}

fn idle(what: &str, stream: u32) -> Fault {
    protocol_error(format!("{what} on stream {stream}, which is idle"))
}

fn protocol_error(text: impl Into<String>) -> Fault {
    Fault::new(code::PROTOCOL_ERROR, text)
}

/// Checks whether a frame of this kind belongs to a stream or to the connection.
fn check_stream(kind: u8, stream: u32) -> Result<(), Fault> {
    let (name, of_stream) = match kind {
        kind::DATA => ("DATA", true),
        kind::HEADERS => ("HEADERS", true),
        kind::PRIORITY => ("PRIORITY", true),
        kind::RST_STREAM => ("RST_STREAM", true),
        kind::PUSH_PROMISE => ("PUSH_PROMISE", true),
        kind::CONTINUATION => ("CONTINUATION", true),
        kind::SETTINGS => ("SETTINGS", false),
        kind::PING => ("PING", false),
        kind::GOAWAY => ("GOAWAY", false),
        _ => return Ok(()),
    };
    match of_stream == (stream != 0) {
        true => Ok(()),
        false => Err(protocol_error(format!("{name} on stream {stream}"))),
    }
}

/// Checks the length of kinds that have a certain one.
fn check_frame_length(kind: u8, flags: u8, length: usize) -> Result<(), Fault> {
    let right = match kind {
        kind::PRIORITY => length == 5,
        kind::RST_STREAM | kind::WINDOW_UPDATE => length == 4,
        kind::PING => length == 8,
        kind::GOAWAY => length >= 8,
        kind::SETTINGS if flags & flag::ACK != 0 => length == 0,
        kind::SETTINGS => length.is_multiple_of(6),
        _ => true,
    };
    match right {
        true => Ok(()),
        false => {
            let text = format!("frame of kind {kind} with {length} bytes");
            Err(Fault::new(code::FRAME_SIZE_ERROR, text))
        }
    }
}

/// The header block in a HEADERS frame, without padding and priority (section 6.2).
fn unpadded(frame: Frame, payload: &[u8]) -> Result<&[u8], Fault> {
    let fault = || protocol_error("HEADERS: padding beyond the frame");
    let mut block = payload;
    let mut padding = 0;
    if frame.flags & flag::PADDED != 0 {
        let (length, rest) = block.split_first().ok_or_else(fault)?;
        (padding, block) = (usize::from(*length), rest);
    }
    if frame.flags & flag::PRIORITY != 0 {
        block = block.get(5..).ok_or_else(fault)?;
    }
    let length = block.len().checked_sub(padding).ok_or_else(fault)?;
    Ok(&block[..length])
}
