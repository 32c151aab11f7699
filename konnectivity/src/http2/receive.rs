//! What arrives on a connection: frames in pieces, in whatever pieces they come.

use std::sync::Arc;

use super::drive::Handler;
use super::frame::{self, flag, kind, setting};
use super::hpack::Decoder;
use super::link::Link;
use super::{Fault, code};

/// Which side of a connection we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It was opened to us.
    Server,
    /// We opened it.
    Client,
}

/// The reading side of one connection.
#[derive(Debug)]
pub(crate) struct Receiver {
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
    last_stream: u32,
    settled: bool,
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
    /// Whether anybody wants the data.
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
/// Frames a header block may come in.
const MOST_CONTINUATIONS: usize = 64;

impl Receiver {
    pub(crate) fn new(role: Role) -> Self {
        Self {
            role,
            preface: if role == Role::Server { 0 } else { frame::PREFACE.len() },
            head: [0; frame::HEAD],
            head_len: 0,
            frame: None,
            payload: Vec::new(),
            block: None,
            decoder: Decoder::default(),
            last_stream: 0,
            settled: false,
        }
    }

    /// Works in what arrived.
    pub(crate) fn receive(
        &mut self,
        mut bytes: &[u8],
        link: &Arc<Link>,
        handler: &mut impl Handler,
    ) -> Result<(), Fault> {
        if self.preface < frame::PREFACE.len() {
            let count = bytes.len().min(frame::PREFACE.len() - self.preface);
            let (mine, rest) = bytes.split_at(count);
            if frame::PREFACE[self.preface..].get(..count) != Some(mine) {
                return Err(Fault::new(code::PROTOCOL_ERROR, "this is not HTTP/2"));
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
                self.begin(link)?;
                self.finish_empty(link, handler)?;
            }
            let Some(frame) = self.frame else { continue };
            bytes = match frame.kind {
                kind::DATA => self.data(frame, bytes, link, handler),
                _ => self.collect(frame, bytes, link, handler)?,
            };
        }
        Ok(())
    }

    /// Reads the head of a frame.
    fn begin(&mut self, link: &Arc<Link>) -> Result<(), Fault> {
        let [a, b, c, kind, flags, rest @ ..] = self.head;
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        let stream = u32::from_be_bytes(rest) & 0x7fff_ffff;
        if length > frame::OWN_FRAME {
            let text = format!("a frame of {length} bytes");
            return Err(Fault::new(code::FRAME_SIZE_ERROR, text));
        }
        if !self.settled && kind != kind::SETTINGS {
            return Err(Fault::new(code::PROTOCOL_ERROR, "the first frame is no SETTINGS"));
        }
        self.settled = true;
        let goes_on = self.block.as_ref().map(|block| block.stream);
        if goes_on.is_some_and(|id| kind != kind::CONTINUATION || id != stream) {
            return Err(Fault::new(code::PROTOCOL_ERROR, "a header block that does not go on"));
        }
        let padded = flags & flag::PADDED != 0;
        let mut frame =
            Frame { kind, flags, stream, left: length, padding: Some(0), wanted: false };
        if kind == kind::DATA {
            if stream == 0 {
                return Err(Fault::new(code::PROTOCOL_ERROR, "DATA on stream 0"));
            }
            if padded && length == 0 {
                return Err(Fault::new(code::PROTOCOL_ERROR, "padding without its length"));
            }
            if padded {
                frame.padding = None;
            }
            frame.wanted = link.arrived(stream, length)?;
        }
        self.frame = Some(frame);
        Ok(())
    }

    /// Hands on what there is of a DATA frame; the rest of `bytes`.
    fn data<'a>(
        &mut self,
        mut frame: Frame,
        mut bytes: &'a [u8],
        link: &Arc<Link>,
        handler: &mut impl Handler,
    ) -> &'a [u8] {
        if frame.padding.is_none()
            && let Some((length, rest)) = bytes.split_first()
        {
            bytes = rest;
            // Padding beyond the frame is a fault; taking all of it for padding harms nobody.
            let padding = usize::from(*length).min(frame.left - 1);
            frame.left -= 1 + padding;
            frame.padding = Some(padding);
            if frame.wanted {
                link.release(frame.stream, 1 + padding);
            }
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
        bytes
    }

    /// Collects a frame of another kind and works it in when it is complete.
    fn collect<'a>(
        &mut self,
        frame: Frame,
        bytes: &'a [u8],
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
            self.complete(frame, mine, link, handler)?;
        } else {
            let mut payload = std::mem::take(&mut self.payload);
            payload.extend_from_slice(mine);
            self.complete(frame, &payload, link, handler)?;
        }
        Ok(rest)
    }

    /// A frame whose payload is empty needs no further byte to be complete.
    fn finish_empty(&mut self, link: &Arc<Link>, handler: &mut impl Handler) -> Result<(), Fault> {
        match self.frame {
            Some(frame) if frame.left == 0 && frame.kind == kind::DATA => {
                self.data(frame, &[], link, handler);
                Ok(())
            }
            Some(frame) if frame.left == 0 => self.collect(frame, &[], link, handler).map(|_| ()),
            _ => Ok(()),
        }
    }

    fn complete(
        &mut self,
        frame: Frame,
        payload: &[u8],
        link: &Arc<Link>,
        handler: &mut impl Handler,
    ) -> Result<(), Fault> {
        let stream = frame.stream;
        let size = |right: bool| match right {
            true => Ok(()),
            false => {
                let text = format!("frame of kind {} with {} bytes", frame.kind, payload.len());
                Err(Fault::new(code::FRAME_SIZE_ERROR, text))
            }
        };
        let number = |at: usize| {
            let bytes = payload.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
            bytes.map_or(0, u32::from_be_bytes)
        };
        match frame.kind {
            kind::HEADERS => {
                let bytes = unpadded(frame, payload)?.to_vec();
                let end = frame.flags & flag::END_STREAM != 0;
                self.block = Some(Block { stream, end, bytes, frames: 1 });
                self.headers(frame, link, handler)
            }
            kind::CONTINUATION => {
                let Some(block) = &mut self.block else {
                    return Err(Fault::new(code::PROTOCOL_ERROR, "CONTINUATION of nothing"));
                };
                block.bytes.extend_from_slice(payload);
                block.frames += 1;
                if block.bytes.len() > MOST_BLOCK || block.frames > MOST_CONTINUATIONS {
                    return Err(Fault::new(code::ENHANCE_YOUR_CALM, "an endless header block"));
                }
                self.headers(frame, link, handler)
            }
            kind::RST_STREAM => {
                size(payload.len() == 4)?;
                if stream == 0 {
                    return Err(Fault::new(code::PROTOCOL_ERROR, "RST_STREAM on stream 0"));
                }
                if link.has_stream(stream) {
                    link.remote_reset(stream);
                    handler.reset(link, stream, number(0));
                }
                Ok(())
            }
            kind::SETTINGS if frame.flags & flag::ACK != 0 => size(payload.is_empty()),
            kind::SETTINGS => {
                size(payload.len().is_multiple_of(6) && stream == 0)?;
                for pair in payload.chunks_exact(6) {
                    let name = u16::from_be_bytes([pair[0], pair[1]]);
                    let value = u32::from_be_bytes([pair[2], pair[3], pair[4], pair[5]]);
                    link.setting(name, value)?;
                    if name == setting::ENABLE_PUSH && value > 1 {
                        return Err(Fault::new(code::PROTOCOL_ERROR, "ENABLE_PUSH above 1"));
                    }
                }
                link.acknowledge(kind::SETTINGS, &[])
            }
            kind::PING => {
                size(payload.len() == 8)?;
                if frame.flags & flag::ACK != 0 {
                    link.ping_answered();
                    return Ok(());
                }
                link.acknowledge(kind::PING, payload)
            }
            kind::GOAWAY => {
                size(payload.len() >= 8)?;
                let text = String::from_utf8_lossy(&payload[8..]).into_owned();
                handler.going_away(link, number(4), &text);
                Ok(())
            }
            kind::WINDOW_UPDATE => {
                size(payload.len() == 4)?;
                match number(0) & 0x7fff_ffff {
                    0 => Err(Fault::new(code::PROTOCOL_ERROR, "a window update of nothing")),
                    bytes => link.grow(stream, i64::from(bytes)),
                }
            }
            kind::PRIORITY => size(payload.len() == 5),
            kind::PUSH_PROMISE => Err(Fault::new(code::PROTOCOL_ERROR, "a push nobody allowed")),
            _ => Ok(()),
        }
    }

    /// Decodes the header block if it is complete.
    fn headers(
        &mut self,
        frame: Frame,
        link: &Arc<Link>,
        handler: &mut impl Handler,
    ) -> Result<(), Fault> {
        if frame.flags & flag::END_HEADERS == 0 {
            return Ok(());
        }
        let Some(Block { stream, end, bytes, .. }) = self.block.take() else { return Ok(()) };
        let fields = self.decoder.decode(&bytes);
        let fields =
            fields.map_err(|error| Fault::new(code::COMPRESSION_ERROR, error.to_string()))?;
        let odd = stream % 2 == 1;
        match self.role {
            Role::Server if odd && stream > self.last_stream => {
                self.last_stream = stream;
                if !link.accept(stream) {
                    return Ok(());
                }
            }
            Role::Server if odd => {}
            Role::Client if link.was_opened(stream) => {}
            _ => {
                let text = format!("HEADERS on stream {stream}");
                return Err(Fault::new(code::PROTOCOL_ERROR, text));
            }
        }
        // Late headers of a stream that we have ended are nobody's.
        if !link.has_stream(stream) {
            return Ok(());
        }
        if end {
            link.remote_ended(stream);
        }
        handler.headers(link, stream, fields, end);
        Ok(())
    }
}

/// The header block in a HEADERS frame, without padding and priority (section 6.2).
fn unpadded(frame: Frame, payload: &[u8]) -> Result<&[u8], Fault> {
    let fault = || Fault::new(code::PROTOCOL_ERROR, "HEADERS: padding beyond the frame");
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
