//! Effects of received frames: streams opened and ended by the peer, windows, settings.

use super::state::End;
use super::{Link, MOST_CONTROL};
use crate::frame::{self, flag, setting};
use crate::role::Role;
use crate::{Fault, code};

/// The state of a stream (section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Never opened.
    Idle,
    /// The peer may send. `answered`: its message's opening headers arrived.
    Open { answered: bool },
    /// The peer has ended its side.
    RemoteEnded,
    /// Closed, and the peer had ended or reset it.
    ClosedByPeer,
    /// Closed by this side, or too long ago to be recorded.
    Closed,
}

impl Link {
    /// Opens a stream for the client; false if it has too many.
    pub(crate) fn accept(&self, stream: u32) -> bool {
        let mut state = self.state.lock();
        state.last_remote = stream;
        let few = state.streams.len() < state.offer.streams;
        if few {
            state.open(stream);
        } else {
            frame::put_reset(&mut state.control, stream, code::REFUSED_STREAM);
            state.remember(stream, false);
        }
        few
    }

    /// Returns whether the stream is open in either direction.
    pub fn has_stream(&self, stream: u32) -> bool {
        self.state.lock().streams.contains_key(&stream)
    }

    /// The state of a stream, as far as it is remembered.
    pub(crate) fn standing(&self, stream: u32) -> Standing {
        let state = self.state.lock();
        if let Some(it) = state.streams.get(&stream) {
            let open = Standing::Open { answered: it.answered };
            return if it.remote_ended { Standing::RemoteEnded } else { open };
        }
        let opened = match self.role {
            Role::Server => stream % 2 == 1 && stream <= state.last_remote,
            Role::Client => stream % 2 == 1 && stream < state.next_stream,
        };
        match state.closed.iter().find(|it| it.0 == stream) {
            _ if !opened => Standing::Idle,
            Some((_, true)) => Standing::ClosedByPeer,
            // A client that leaves a number out never opens it (section 5.1.1).
            None if stream > state.last_forgotten => Standing::Idle,
            _ => Standing::Closed,
        }
    }

    /// Records that a message's opening headers arrived on the stream.
    pub(crate) fn answered(&self, stream: u32) {
        if let Some(it) = self.state.lock().streams.get_mut(&stream) {
            it.answered = true;
        }
    }

    /// Counts bytes of a DATA frame against the windows; those of a stream that is no longer
    /// open are given back at once.
    pub(crate) fn arrived(&self, stream: u32, bytes: usize, wanted: bool) -> Result<(), Fault> {
        let mut state = self.state.lock();
        let bytes = bytes as i64;
        let fault = |of| Fault::new(code::FLOW_CONTROL_ERROR, format!("{of}: beyond its window"));
        state.receive_left -= bytes;
        if state.receive_left < 0 {
            return Err(fault("connection".to_owned()));
        }
        if let Some(it) = state.streams.get_mut(&stream).filter(|_| wanted) {
            it.receive_left -= bytes;
            if it.receive_left < 0 {
                return Err(fault(format!("stream {stream}")));
            }
            return Ok(());
        }
        state.release(stream, bytes);
        Ok(())
    }

    pub(crate) fn remote_ended(&self, stream: u32) {
        let mut state = self.state.lock();
        let Some(it) = state.streams.get_mut(&stream) else { return };
        it.remote_ended = true;
        if matches!(it.end, End::Sent) {
            state.forget(stream);
        }
    }

    pub(crate) fn remote_reset(&self, stream: u32) {
        let mut state = self.state.lock();
        if let Some(it) = state.streams.get_mut(&stream) {
            it.remote_ended = true;
        }
        state.forget(stream);
        drop(state);
        self.wake_waiting();
    }

    /// Increases a send window; returns an error code if it gets too large.
    pub(crate) fn grow(&self, stream: u32, bytes: i64) -> Result<Option<u32>, Fault> {
        let mut state = self.state.lock();
        let window = match state.streams.get_mut(&stream) {
            _ if stream == 0 => &mut state.window,
            Some(it) => &mut it.window,
            None => return Ok(None),
        };
        *window += bytes;
        match *window > frame::MOST_WINDOW {
            true if stream == 0 => Err(too_large()),
            true => Ok(Some(code::FLOW_CONTROL_ERROR)),
            false => {
                state.make_ready(stream);
                Ok(None)
            }
        }
    }

    pub(crate) fn setting(&self, name: u16, value: u32) -> Result<(), Fault> {
        let mut state = self.state.lock();
        match name {
            setting::INITIAL_WINDOW_SIZE => {
                let window = i64::from(value);
                if window > frame::MOST_WINDOW {
                    return Err(too_large());
                }
                let more = window - std::mem::replace(&mut state.peer_window, window);
                let ids: Vec<u32> = state.streams.keys().copied().collect();
                for id in ids {
                    if let Some(it) = state.streams.get_mut(&id) {
                        it.window += more;
                        if it.window > frame::MOST_WINDOW {
                            return Err(too_large());
                        }
                    }
                    state.make_ready(id);
                }
            }
            setting::HEADER_TABLE_SIZE => state.forget |= value < frame::DEFAULT_TABLE,
            // Only a client may allow pushes.
            setting::ENABLE_PUSH if value > u32::from(self.role == Role::Server) => {
                return Err(Fault::new(code::PROTOCOL_ERROR, format!("ENABLE_PUSH {value}")));
            }
            setting::MAX_FRAME_SIZE => {
                if !(16_384..=16_777_215).contains(&value) {
                    return Err(Fault::new(code::PROTOCOL_ERROR, format!("frame size {value}")));
                }
                state.peer_frame = (value as usize).min(frame::OWN_FRAME);
            }
            _ => {}
        }
        Ok(())
    }

    /// Queues an answer to SETTINGS or PING.
    pub(crate) fn acknowledge(&self, kind: u8, payload: &[u8]) -> Result<(), Fault> {
        let mut state = self.state.lock();
        if state.control.len() > MOST_CONTROL {
            return Err(Fault::new(code::ENHANCE_YOUR_CALM, "answers are requested and not read"));
        }
        frame::put_head(&mut state.control, payload.len(), kind, flag::ACK, 0);
        state.control.extend_from_slice(payload);
        Ok(())
    }

    pub(crate) fn ping_answered(&self) {
        self.state.lock().ping_sent = None;
    }
}

fn too_large() -> Fault {
    Fault::new(code::FLOW_CONTROL_ERROR, "a window above 2^31-1")
}
