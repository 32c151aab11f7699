//! Header blocks, and the content-length that they announce.

use std::sync::Arc;

use super::{Frame, Receiver, Role, check_late, protocol_error};
use crate::field::{check_opening, check_trailers, content_length};
use crate::frame::flag;
use crate::handler::Handler;
use crate::hpack::{Field, HpackError};
use crate::link::{Link, Standing};
use crate::{Fault, code};

/// A header block that CONTINUATION frames may go on with.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) stream: u32,
    pub(super) end: bool,
    pub(super) bytes: Vec<u8>,
    pub(super) frames: usize,
}

/// Streams with a content-length before those that have ended are removed.
const MOST_LENGTHS: usize = 64;

impl Receiver {
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
    pub(super) fn check_length(
        &mut self,
        frame: &mut Frame,
        now: u64,
        link: &Arc<Link>,
        handler: &mut impl Handler,
    ) -> Result<(), Fault> {
        let end = frame.flags & flag::END_STREAM != 0;
        if frame.wanted && !self.count(frame.stream, frame.left as u64, end) {
            frame.wanted = false;
            link.release(frame.stream, frame.left);
            self.stream_error(now, link, handler, frame.stream, code::PROTOCOL_ERROR)?;
        }
        Ok(())
    }

    /// Decodes the header block if it is complete.
    pub(super) fn block_frame(
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
                    return self.stream_error(now, link, handler, stream, code::PROTOCOL_ERROR);
                }
                if interim {
                    return Ok(());
                }
                link.answered(stream);
                deliver(link, handler, stream, fields, end)
            }
            Standing::Open { answered: true } => {
                if !end || check_trailers(&fields).is_err() || !self.count(stream, 0, true) {
                    return self.stream_error(now, link, handler, stream, code::PROTOCOL_ERROR);
                }
                deliver(link, handler, stream, fields, end)
            }
            Standing::RemoteEnded => {
                self.stream_error(now, link, handler, stream, code::STREAM_CLOSED)
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

/// The header block in a HEADERS frame, without padding and priority (section 6.2).
pub(super) fn unpadded(frame: Frame, payload: &[u8]) -> Result<&[u8], Fault> {
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
