//! Frames of each kind, once complete.

use std::sync::Arc;

use super::headers::{Block, unpadded};
use super::{Frame, Receiver, idle, protocol_error};
use crate::frame::{flag, kind};
use crate::handler::Handler;
use crate::link::{Link, Standing};
use crate::{Fault, code};

/// A header block, encoded.
const MOST_BLOCK: usize = 64 * 1024;
/// Frames a header block may come in.
const MOST_CONTINUATIONS: usize = 64;

impl Receiver {
    /// Handles a complete frame that is not DATA.
    pub(super) fn complete(
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
                        match fault {
                            Some(code) => self.stream_error(now, link, handler, stream, code),
                            None => Ok(()),
                        }
                    }
                    _ => self.limits.empty(now),
                }
            }
            kind::PUSH_PROMISE => Err(protocol_error("a push that was not allowed")),
            // PRIORITY, and types that this version does not know.
            _ => self.limits.empty(now),
        }
    }
}

/// Checks whether a frame of this kind belongs to a stream or to the connection.
pub(super) fn check_stream(kind: u8, stream: u32) -> Result<(), Fault> {
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
pub(super) fn check_frame_length(kind: u8, flags: u8, length: usize) -> Result<(), Fault> {
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
