//! One queue of an interface as a port.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::net::xdp::{XdpDesc, XdpDescOptions};

use super::XdpMode;
use super::aside::{Aside, Place};
use super::dispatcher::XskMapSlot;
use super::posted::PostedFrames;
use super::programs::Handed;
use super::progress::{Progress, Sample};
use super::share::Share;
use super::socket::Socket;
use super::umem::{FRAME_SIZE, RING, Umem};
use crate::Frame;
use crate::frame::{Chain, RESERVED};
use crate::port::{Buffers, MOST_FRAMES, Port, PortGone, RingFrames};

/// Frames posted to the fill ring at a time.
const BATCH: u32 = 64;
/// Frames that the kernel sends for one call, where the budget is configurable.
const SEND_BUDGET: u32 = 256;
/// `XDP_TX_METADATA` and `XDP_TXMD_FLAGS_CHECKSUM` of linux/if_xdp.h.
const TX_METADATA: u32 = 1 << 1;
const COMPLETE_CHECKSUM: u64 = 1 << 1;
/// Rounds without a frame before a check that the interface still exists, which is a call into the
/// kernel: some tenths of a millisecond of a worker that only polls.
const ROUNDS_BEFORE_CHECK: u32 = 4096;

/// A port over one queue of an interface.
pub struct AfXdpPort {
    interface: String,
    socket: Socket,
    posted: PostedFrames,
    place: Place,
    /// Takes the posted frames in zero-copy mode.
    aside: Arc<Aside>,
    /// Frames of earlier sockets of the queue, which the kernel has released.
    regained: Vec<PostedFrames>,
    /// A packet whose last frames are not in the rx ring yet.
    incomplete: Option<Chain>,
    /// Frames in the fill or rx ring, and their target level.
    filled: u32,
    share: Share,
    /// Frames in the tx or completion ring.
    sending: u32,
    /// Frames that came by the rx and by the completion ring so far.
    received: u64,
    completed: u64,
    progress: Progress,
    /// Whether the interface was switched off when the kernel was last to send.
    is_off: bool,
    empty_rounds: u32,
    mode: XdpMode,
    /// Whether partial checksums are left to the kernel at the other end.
    accepts_partial_checksums: bool,
    /// Freed after the socket is closed.
    slot: Option<XskMapSlot>,
    /// What the program in front of the queue has for it, if that counts.
    handed: Option<Handed>,
}

impl AfXdpPort {
    /// A port over a bound socket.
    pub(super) fn new(
        umem: &Umem,
        (interface, place): (&str, Place),
        socket: Socket,
        mode: XdpMode,
        fill: u32,
        slot: Option<XskMapSlot>,
    ) -> Self {
        socket.raise_send_budget(SEND_BUDGET);
        Self {
            interface: interface.to_owned(),
            posted: PostedFrames::none(umem.frames),
            place,
            regained: umem.aside.take(place),
            aside: Arc::clone(&umem.aside),
            incomplete: None,
            filled: 0,
            share: Share::new(fill.clamp(BATCH, RING), Arc::clone(&umem.spare)),
            sending: 0,
            received: 0,
            completed: 0,
            progress: Progress::default(),
            is_off: false,
            empty_rounds: 0,
            mode,
            accepts_partial_checksums: false,
            socket,
            slot,
            handed: None,
        }
    }

    /// Compares what arrives with what the program in front of the queue counts.
    pub(super) fn counting(self, handed: Handed) -> Self {
        Self { handed: Some(handed), ..self }
    }

    /// Leaves partial checksums to the kernel at the interface's other end.
    pub(super) fn offloading_checksums(self) -> Self {
        Self { accepts_partial_checksums: true, ..self }
    }

    /// Mode in which frames reach the port.
    pub fn mode(&self) -> XdpMode {
        self.mode
    }

    /// Posts empty frames to the fill ring, up to its level.
    #[inline]
    fn refill(&mut self, buffers: &mut Buffers<'_>) {
        if self.filled + BATCH <= self.share.level() {
            self.regained.drain(..).for_each(|posted| posted.take_all(buffers));
            while self.filled < self.share.level()
                && let Some(frame) = buffers.free.take()
            {
                let index = frame.into_index();
                if !self.socket.fill.push(u64::from(index) * FRAME_SIZE as u64) {
                    // SAFETY: the handle was consumed just above, and the ring did not take the
                    // frame.
                    buffers.free.put(unsafe { buffers.memory.reclaim(index, 0, 0) });
                    break;
                }
                self.posted.give(index);
                self.filled += 1;
            }
            self.socket.fill.submit();
        }
        if self.socket.fill.needs_wakeup() {
            let _ = self.socket.poke_receive();
        }
    }

    /// Puts one frame into the tx ring, in which there is room.
    #[inline]
    fn put(&mut self, buffers: &mut Buffers<'_>, mut frame: Frame, goes_on: bool) {
        let (start, length) = (frame.start() as u64, frame.len() as u32);
        let mut options =
            if goes_on { XdpDescOptions::XDP_PKT_CONTD } else { XdpDescOptions::empty() };
        if let Some(open) = frame.partial_checksum() {
            // struct xsk_tx_metadata: flags, then the checksum's start and offset.
            let mut metadata = [0; RESERVED];
            metadata[..8].copy_from_slice(&COMPLETE_CHECKSUM.to_ne_bytes());
            metadata[8..10].copy_from_slice(&(open.start() as u16).to_ne_bytes());
            metadata[10..12].copy_from_slice(&(open.field() as u16).to_ne_bytes());
            buffers.memory.write_in_front(&mut frame, &metadata);
            options |= XdpDescOptions::from_bits_retain(TX_METADATA);
        }
        let index = frame.into_index();
        let addr = u64::from(index) * FRAME_SIZE as u64 + start;
        self.posted.give(index);
        if self.socket.tx.push(XdpDesc { addr, len: length, options }) {
            self.sending += 1;
        } else if let Some(frame) = self.posted.take(buffers, addr, 0) {
            // Not reached: `sending` never exceeds the ring.
            buffers.free.put(frame);
        }
    }

    /// Puts all frames of a packet into the tx ring; frees empty ones.
    fn put_chain(&mut self, buffers: &mut Buffers<'_>, mut frame: Frame) {
        let memory = buffers.memory;
        let mut others = Vec::with_capacity(MOST_FRAMES);
        let mut left = frame.len();
        memory.detach(&mut frame, |other| match other.is_empty() {
            true => buffers.free.put(other),
            false => others.push(other),
        });
        for frame in std::iter::once(frame).chain(others) {
            left -= frame.len();
            self.put(buffers, frame, left > 0);
        }
    }

    /// Frees frames that have been sent.
    #[inline]
    fn reap(&mut self, buffers: &mut Buffers<'_>) {
        if self.sending == 0 {
            return;
        }
        while let Some(address) = self.socket.completion.pop() {
            if let Some(frame) = self.posted.take(buffers, address, 0) {
                buffers.free.put(frame);
            }
            self.sending = self.sending.saturating_sub(1);
            self.completed += 1;
        }
        self.socket.completion.release();
    }

    /// Wakes the kernel to send what is in the tx ring.
    fn kick(&mut self) -> Result<(), PortGone> {
        let mut pending = self.socket.tx.pending();
        while pending > 0 && self.socket.tx.needs_wakeup() {
            match self.socket.poke_send() {
                Ok(()) => break,
                // The budget of one call is used up, or the socket's: calls again if this call has
                // made progress, else later.
                Err(libc::EAGAIN) => {
                    let before = std::mem::replace(&mut pending, self.socket.tx.pending());
                    if pending == before {
                        break;
                    }
                }
                // The peer cannot keep up, or the link is down: later.
                Err(code @ (libc::ENOBUFS | libc::EBUSY | libc::ENETDOWN | libc::EINTR)) => {
                    self.is_off |= code == libc::ENETDOWN;
                    break;
                }
                Err(code) => return Err(self.gone(code)),
            }
        }
        Ok(())
    }

    fn gone(&self, code: i32) -> PortGone {
        let cause = io::Error::from_raw_os_error(code);
        PortGone(format!("interface {} is gone: {cause}", self.interface))
    }
}

impl Port for AfXdpPort {
    fn receive(
        &mut self,
        buffers: &mut Buffers<'_>,
        most: usize,
        frames: &mut Vec<Frame>,
    ) -> Result<(), PortGone> {
        let (mut count, mut taken) = (0, 0);
        while count < most
            && let Some(descriptor) = self.socket.rx.pop()
        {
            taken += 1;
            let goes_on = descriptor.options.contains(XdpDescOptions::XDP_PKT_CONTD);
            let frame = self.posted.take(buffers, descriptor.addr, descriptor.len);
            let frame = match (frame, self.incomplete.take()) {
                (Some(frame), None) if !goes_on => frame,
                (Some(frame), None) => {
                    self.incomplete = Some(Chain::new(frame));
                    continue;
                }
                (frame, Some(mut chain)) => {
                    frame.into_iter().for_each(|next| chain.push(buffers.memory, next));
                    if goes_on {
                        self.incomplete = Some(chain);
                        continue;
                    }
                    chain.finish()
                }
                (None, None) => continue,
            };
            frames.push(frame);
            count += 1;
        }
        if taken > 0 {
            self.socket.rx.release();
            self.filled = self.filled.saturating_sub(taken);
            self.received += u64::from(taken);
            self.empty_rounds = 0;
            if self.share.level() < RING && self.socket.fill.pending() < self.share.level() / 2 {
                self.share.grow();
            }
        } else {
            self.empty_rounds += 1;
        }
        self.refill(buffers);
        if self.empty_rounds >= ROUNDS_BEFORE_CHECK {
            self.empty_rounds = 0;
            // An interface that is deleted leaves its socket bound to nothing.
            if let Err(code @ (libc::ENXIO | libc::EBADF)) = self.socket.poke_receive() {
                return Err(self.gone(code));
            }
        }
        Ok(())
    }

    fn send(&mut self, buffers: &mut Buffers<'_>, frames: &mut Vec<Frame>) -> Result<(), PortGone> {
        self.reap(buffers);
        let is_long = |frame: &Frame| frame.frames() > MOST_FRAMES;
        let long: Vec<Frame> = match frames.iter().any(is_long) {
            true => frames.extract_if(.., |frame| is_long(frame)).collect(),
            false => Vec::new(),
        };
        let mut room = (RING - self.sending) as usize;
        let fit = frames.iter().take_while(|frame| {
            let fits = frame.frames() <= room;
            room = room.saturating_sub(frame.frames());
            fits
        });
        let fit = fit.count();
        for mut frame in frames.drain(..fit) {
            if !self.accepts_partial_checksums {
                buffers.memory.complete_checksum(&mut frame);
            }
            if frame.frames() == 1 {
                self.put(buffers, frame, false);
            } else {
                self.put_chain(buffers, frame);
            }
        }
        frames.extend(long);
        self.socket.tx.submit();
        self.kick()
    }

    fn accepts_partial_checksums(&self) -> bool {
        self.accepts_partial_checksums
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn is_sending(&self) -> bool {
        self.sending > 0
    }

    fn missed(&self) -> u64 {
        self.socket.missed()
    }

    fn look(&mut self) -> Result<RingFrames, PortGone> {
        let Self { filled, sending, received, completed, .. } = *self;
        let (fill, receive) = (self.socket.fill.pending(), self.socket.rx.available());
        let (transmit, completion) = (self.socket.tx.pending(), self.socket.completion.available());
        let kernel = (filled + sending).saturating_sub(fill + receive + transmit + completion);
        let missed = self.socket.missed();
        let is_off = std::mem::take(&mut self.is_off);
        let sample = Sample {
            sending: if is_off { 0 } else { sending.saturating_sub(completion) },
            completed: completed + u64::from(completion),
            posted: fill,
            received: received + u64::from(receive),
            missed,
            handed: self.handed.as_ref().map_or(0, Handed::count),
        };
        match self.progress.look(sample) {
            None => Ok(RingFrames { fill, receive, transmit, completion, kernel }),
            Some(why) => {
                let interface = &self.interface;
                Err(PortGone(format!(
                    "interface {interface}: {why} (frames: {fill} in the fill ring, {transmit} in the transmit \
                     ring, {kernel} with the kernel)"
                )))
            }
        }
    }

    fn close(self: Box<Self>, buffers: &mut Buffers<'_>) {
        let Self { socket, posted, incomplete, slot, regained, aside, place, mode, .. } = *self;
        incomplete.into_iter().for_each(|chain| buffers.free.put(chain.finish()));
        regained.into_iter().for_each(|posted| posted.take_all(buffers));
        // Without its socket the kernel releases the frames: in copy mode at once, else some time
        // later.
        drop(socket);
        drop(slot);
        if mode.zero_copy {
            aside.keep(place, posted);
        } else {
            posted.take_all(buffers);
        }
    }
}
