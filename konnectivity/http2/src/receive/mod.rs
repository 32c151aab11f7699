//! The receiving side of a connection: parses frames from pieces of any size.
//!
//! | file | part |
//! |---|---|
//! | `frames.rs` | frames of each kind, once complete |
//! | `headers.rs` | header blocks, content-length |

mod frames;
mod headers;

use std::collections::HashMap;
use std::sync::Arc;

use super::frame::{self, flag, kind};
use super::handler::Handler;
use super::hpack::Decoder;
use super::limits::Limits;
use super::link::{Link, Standing};
use super::role::Role;
use super::{Fault, code};
use frames::{check_frame_length, check_stream};
use headers::Block;

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
    /// True if the data is passed to the handler.
    wanted: bool,
}

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
            kind::DATA => self.data(frame, bytes, now, link, handler),
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
                            self.stream_error(now, link, handler, stream, code::PROTOCOL_ERROR)?;
                        }
                        Standing::RemoteEnded => {
                            self.stream_error(now, link, handler, stream, code::STREAM_CLOSED)?;
                        }
                        _ => {}
                    }
                    false
                }
            };
            link.arrived(stream, length, frame.wanted)?;
            if !padded {
                self.check_length(&mut frame, now, link, handler)?;
            }
        }
        Ok(frame)
    }

    /// Passes on the available bytes of a DATA frame; returns the rest of `bytes`.
    fn data<'a>(
        &mut self,
        mut frame: Frame,
        mut bytes: &'a [u8],
        now: u64,
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
            self.check_length(&mut frame, now, link, handler)?;
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

    /// Ends a stream because of a fault that concerns it alone (section 5.4.2). A reset that the
    /// peer provokes counts as one that it sends.
    fn stream_error(
        &mut self,
        now: u64,
        link: &Arc<Link>,
        handler: &mut impl Handler,
        stream: u32,
        code: u32,
    ) -> Result<(), Fault> {
        link.reset(stream, code);
        handler.reset(link, stream, code);
        self.limits.reset(now)
    }
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
