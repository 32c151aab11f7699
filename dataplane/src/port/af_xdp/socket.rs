//! One AF_XDP socket as a port.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use xsk_rs::config::Interface;
use xsk_rs::umem::frame::FrameDesc;
use xsk_rs::{CompQueue, FillQueue, RxQueue, TxQueue};

use super::program::{Attached, Program};
use super::umem::{FRAME_SIZE, RING, Umem, cause_of, socket_config};
use super::{AfXdpError, PortOptions, XdpMode};
use crate::Frame;
use crate::port::{Lent, Port, PortGone};

/// Descriptors moved between a ring and us at a time.
const BATCH: usize = 64;
/// Frames the kernel sends for one call, where it lets us choose (Linux 6.17); else it sends 32.
const SEND_BUDGET: u32 = 256;
const USUAL_SEND_BUDGET: u32 = 32;
/// Rounds without a frame after which the kernel is asked whether the interface still exists.
const ROUNDS_BEFORE_CHECK: u32 = 256;

/// A port over one queue of an interface.
pub struct AfXdpPort {
    interface: String,
    rx: RxQueue,
    tx: TxQueue,
    fill: FillQueue,
    completion: CompQueue,
    umem: xsk_rs::Umem,
    descriptors: Arc<[FrameDesc]>,
    /// A bit for each frame that is in one of the rings.
    lent: Box<[u64]>,
    /// Frames in the fill or rx ring, and how many there should be.
    filled: u32,
    fill_level: u32,
    /// Frames in the tx or completion ring.
    sending: u32,
    /// Of these, frames that the kernel has not been asked to send.
    unsent: u32,
    send_budget: u32,
    empty_rounds: u32,
    mode: XdpMode,
    scratch: Box<[FrameDesc; BATCH]>,
    /// Keeps the map of sockets open.
    _program: Program,
}

impl AfXdpPort {
    pub(super) fn open(
        umem: &Umem,
        interface: &str,
        program: Program,
        attached: Attached,
        options: &PortOptions,
    ) -> Result<Self, AfXdpError> {
        let attempt = || format!("bind an AF_XDP socket to {interface}");
        let name = std::ffi::CString::new(interface)
            .map_err(|_| AfXdpError::new(attempt(), io::ErrorKind::InvalidInput.into()))?;
        // SAFETY: no program is loaded by the library (`socket_config`).
        let opened =
            unsafe { xsk_rs::Socket::new(socket_config(), &umem.umem, &Interface::new(name), 0) };
        let (tx, rx, rings) =
            opened.map_err(|error| AfXdpError::new(attempt(), cause_of(&error)))?;
        // Rings come with the first socket on an interface, and there is only one.
        let (fill, completion) =
            rings.ok_or_else(|| AfXdpError::new(attempt(), io::ErrorKind::AddrInUse.into()))?;
        let socket = tx.fd().as_raw_fd();
        program.serve(0, socket)?;
        let words = umem.descriptors.len().div_ceil(64);
        Ok(Self {
            interface: interface.to_owned(),
            rx,
            tx,
            fill,
            completion,
            umem: umem.umem.clone(),
            descriptors: Arc::clone(&umem.descriptors),
            lent: vec![0; words].into(),
            filled: 0,
            fill_level: options.fill.clamp(1, RING),
            sending: 0,
            unsent: 0,
            send_budget: raise_send_budget(socket),
            empty_rounds: 0,
            mode: XdpMode { attached, zero_copy: false },
            scratch: Box::new([FrameDesc::default(); BATCH]),
            _program: program,
        })
    }

    /// How frames reach the port.
    pub fn mode(&self) -> XdpMode {
        self.mode
    }

    /// Lends the kernel empty frames up to the fill level.
    fn top_up(&mut self, lent: &mut Lent<'_>) {
        while self.filled + BATCH as u32 <= self.fill_level.max(BATCH as u32) {
            let mut count = 0;
            while count < BATCH {
                let Some(frame) = lent.free.take() else { break };
                let index = frame.into_index();
                self.scratch[count] = self.descriptors[index as usize];
                mark(&mut self.lent, index);
                count += 1;
            }
            // SAFETY: the frames are of this UMEM, and their handles were just given up.
            let taken = unsafe { self.fill.produce(&self.scratch[..count]) };
            self.filled += taken as u32;
            free_all(&mut self.lent, lent, &self.scratch[taken..count]);
            if taken < BATCH {
                break;
            }
        }
        if self.fill.needs_wakeup() {
            let _ = poke_receive(self.socket());
        }
    }

    /// Takes frames back that have been sent.
    fn reap(&mut self, lent: &mut Lent<'_>) {
        while self.sending > 0 {
            // SAFETY: the frames come back to us; whatever they held has been sent.
            let count = unsafe { self.completion.consume(&mut self.scratch[..]) };
            free_all(&mut self.lent, lent, &self.scratch[..count]);
            self.sending -= (count as u32).min(self.sending);
            if count < BATCH {
                break;
            }
        }
    }

    /// Asks the kernel to send what is in the tx ring.
    fn kick(&mut self) -> Result<(), PortGone> {
        while self.unsent > 0 {
            if !self.tx.needs_wakeup() {
                self.unsent = 0;
                break;
            }
            match poke_send(self.socket()) {
                Ok(()) => self.unsent = 0,
                // The budget of one call is used up.
                Err(libc::EAGAIN) => self.unsent = self.unsent.saturating_sub(self.send_budget),
                // The peer cannot keep up, or the link is down: later.
                Err(libc::ENOBUFS | libc::EBUSY | libc::ENETDOWN | libc::EINTR) => break,
                Err(code) => return Err(self.gone(code)),
            }
        }
        Ok(())
    }

    fn socket(&self) -> RawFd {
        self.tx.fd().as_raw_fd()
    }

    fn gone(&self, code: i32) -> PortGone {
        let cause = io::Error::from_raw_os_error(code);
        PortGone(format!("interface {} is gone: {cause}", self.interface))
    }
}

impl Port for AfXdpPort {
    fn receive(
        &mut self,
        lent: &mut Lent<'_>,
        most: usize,
        frames: &mut Vec<Frame>,
    ) -> Result<(), PortGone> {
        let most = most.min(BATCH);
        // SAFETY: the frames come back to us, filled by the kernel.
        let count = unsafe { self.rx.consume(&mut self.scratch[..most]) };
        for descriptor in &self.scratch[..count] {
            let length = descriptor.lengths().data();
            if let Some(frame) = take_back(&mut self.lent, lent, descriptor, length) {
                frames.push(frame);
            }
        }
        self.filled -= (count as u32).min(self.filled);
        self.top_up(lent);
        self.empty_rounds = if count > 0 { 0 } else { self.empty_rounds + 1 };
        if self.empty_rounds >= ROUNDS_BEFORE_CHECK {
            self.empty_rounds = 0;
            // An interface that is deleted leaves its socket bound to nothing.
            if let Err(code @ (libc::ENXIO | libc::EBADF)) = poke_receive(self.socket()) {
                return Err(self.gone(code));
            }
        }
        Ok(())
    }

    fn send(&mut self, lent: &mut Lent<'_>, frames: &mut Vec<Frame>) -> Result<(), PortGone> {
        self.reap(lent);
        let room = (RING - self.sending).min(frames.len() as u32) as usize;
        let mut waiting = frames.drain(..room);
        loop {
            let mut count = 0;
            for frame in waiting.by_ref().take(BATCH) {
                let length = frame.len();
                let index = frame.into_index();
                let mut descriptor = self.descriptors[index as usize];
                // SAFETY: the frame is of this UMEM and in nobody's hands but ours.
                unsafe { self.umem.data_mut(&mut descriptor) }.cursor().set_pos(length);
                self.scratch[count] = descriptor;
                mark(&mut self.lent, index);
                count += 1;
            }
            if count == 0 {
                break;
            }
            // SAFETY: the frames are of this UMEM, and their handles were just given up.
            let taken = unsafe { self.tx.produce(&self.scratch[..count]) };
            self.sending += taken as u32;
            self.unsent += taken as u32;
            // There is room for all that were taken: `sending` never exceeds the ring.
            free_all(&mut self.lent, lent, &self.scratch[taken..count]);
        }
        drop(waiting);
        self.kick()
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the descriptor is the socket's, which lives as long as its queues do.
        Some(unsafe { BorrowedFd::borrow_raw(self.socket()) })
    }

    fn is_sending(&self) -> bool {
        self.sending > 0
    }

    fn missed(&self) -> u64 {
        let statistics = self.rx.fd().xdp_statistics().unwrap_or_default();
        // The ring that takes received frames was full, or there was no empty frame to take one
        // (which the kernel counts among the dropped as well, where the program runs natively).
        statistics.rx_ring_full()
            + statistics.rx_dropped().max(statistics.rx_fill_ring_empty_descs())
    }

    fn close(self: Box<Self>, lent: &mut Lent<'_>) {
        let Self { rx, tx, fill, completion, lent: bits, .. } = *self;
        // With the last queue the socket is closed, and the kernel lets go of its frames.
        drop((rx, tx, fill, completion));
        for (word, bits) in bits.iter().enumerate() {
            for bit in (0..64).filter(|bit| bits >> bit & 1 == 1) {
                // SAFETY: the bit says that the handle was given up to a ring, and the rings
                // are gone.
                lent.free.put(unsafe { lent.memory.reclaim(word as u32 * 64 + bit, 0, 0) });
            }
        }
    }
}

#[inline]
fn mark(bits: &mut [u64], index: u32) {
    bits[index as usize / 64] |= 1 << (index % 64);
}

/// Frees the frames of descriptors that the kernel returned, or had no room for.
#[inline]
fn free_all(bits: &mut [u64], lent: &mut Lent<'_>, descriptors: &[FrameDesc]) {
    for descriptor in descriptors {
        if let Some(frame) = take_back(bits, lent, descriptor, 0) {
            lent.free.put(frame);
        }
    }
}

/// The frame that the kernel returned; `None` for a descriptor that was not lent to it.
#[inline]
fn take_back(
    bits: &mut [u64],
    lent: &Lent<'_>,
    descriptor: &FrameDesc,
    length: usize,
) -> Option<Frame> {
    let (index, start) = (descriptor.addr() / FRAME_SIZE, descriptor.addr() % FRAME_SIZE);
    let word = bits.get_mut(index / 64)?;
    let bit = 1_u64 << (index % 64);
    let was_lent = *word & bit != 0 && start + length <= FRAME_SIZE;
    *word &= !bit;
    // SAFETY: the bit says that the handle was given up to a ring; it is cleared now.
    was_lent.then(|| unsafe { lent.memory.reclaim(index as u32, start, length) })
}

fn poke_send(socket: RawFd) -> Result<(), i32> {
    // SAFETY: an empty message; the descriptor is open.
    let sent = unsafe {
        libc::sendto(socket, std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0)
    };
    if sent >= 0 { Ok(()) } else { Err(last_code()) }
}

fn poke_receive(socket: RawFd) -> Result<(), i32> {
    // SAFETY: nothing is written; the descriptor is open.
    let received = unsafe {
        libc::recvfrom(
            socket,
            std::ptr::null_mut(),
            0,
            libc::MSG_DONTWAIT,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
        )
    };
    if received >= 0 { Ok(()) } else { Err(last_code()) }
}

fn last_code() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Lets one call send more frames, where the kernel offers that; says how many.
fn raise_send_budget(socket: RawFd) -> u32 {
    const SOL_XDP: i32 = 283;
    const XDP_MAX_TX_SKB_BUDGET: i32 = 9;
    // SAFETY: the value is a 32-bit number that outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket,
            SOL_XDP,
            XDP_MAX_TX_SKB_BUDGET,
            std::ptr::from_ref(&SEND_BUDGET).cast(),
            size_of::<u32>() as u32,
        )
    };
    if result == 0 { SEND_BUDGET } else { USUAL_SEND_BUDGET }
}
