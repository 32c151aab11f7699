//! The memory that all AF_XDP sockets of a switch share.

use std::io;
use std::num::NonZeroU32;
use std::ptr::NonNull;
use std::sync::Arc;

use xsk_rs::config::{
    BindFlags, FrameSize, Interface, LibxdpFlags, QueueSize, SocketConfig, UmemConfig as XskUmem,
};
use xsk_rs::umem::frame::FrameDesc;

use super::program::{self, Fallback, Program};
use super::{AfXdpError, AfXdpPort, PortOptions};
use crate::frame::XDP_HEADROOM;
use crate::{Frame, Memory};

/// Bytes of a frame, headroom included: a page holds two, and an Ethernet frame of the usual
/// MTU fits.
pub(super) const FRAME_SIZE: usize = 2048;
/// Descriptors of each ring.
pub(super) const RING: u32 = 2048;

/// How large the memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UmemConfig {
    /// Frames (of 2048 bytes) for all ports together.
    pub frames: u32,
    /// Whether to ask for hugepages.
    pub hugepages: bool,
}

/// A UMEM and what new sockets over it need.
pub struct Umem {
    pub(super) umem: xsk_rs::Umem,
    /// The descriptor of each frame, with its usual start; xsk-rs makes them only here.
    pub(super) descriptors: Arc<[FrameDesc]>,
    /// The socket that the kernel knows the UMEM by. It is bound to the loopback interface,
    /// which never goes away, and sees no frame: were it a pod's, then no port could be opened
    /// any more once that pod is gone.
    _anchor: (xsk_rs::TxQueue, xsk_rs::RxQueue, Option<(xsk_rs::FillQueue, xsk_rs::CompQueue)>),
}

impl Umem {
    /// Maps and registers the memory.
    pub fn create(config: &UmemConfig) -> Result<(Self, Arc<Memory>, Vec<Frame>), AfXdpError> {
        lift_memory_limit();
        let count = NonZeroU32::new(config.frames).ok_or_else(|| {
            AfXdpError::new("create a UMEM of no frames", io::ErrorKind::InvalidInput.into())
        })?;
        let attempt = format!("create a UMEM of {count} frames of {FRAME_SIZE} bytes");
        let size = |frames: u32| QueueSize::new(frames).expect("a power of two");
        let layout = XskUmem::builder()
            .frame_size(FrameSize::new(FRAME_SIZE as u32).expect("a power of two"))
            .fill_queue_size(size(RING))
            .comp_queue_size(size(RING))
            .build()
            .expect("no headroom beyond XDP's");
        let (umem, descriptors) = xsk_rs::Umem::new(layout, count, config.hugepages)
            .map_err(|error| AfXdpError::new(attempt, cause_of(&error)))?;
        let interface = Interface::new(c"lo".to_owned());
        // SAFETY: no program is loaded by the library (`socket_config`).
        let anchor = unsafe { xsk_rs::Socket::new(socket_config(), &umem, &interface, 0) }
            .map_err(|error| {
                let cause = cause_of(&error);
                let why = match cause.kind() {
                    io::ErrorKind::ResourceBusy => {
                        ", which another switch or program with AF_XDP has in this network namespace"
                    }
                    _ => "",
                };
                AfXdpError::new(format!("bind the UMEM's own socket to lo{why}"), cause)
            })?;
        let base = base_of(&umem, descriptors[0]);
        // SAFETY: the region has exactly this layout, is mapped for as long as `umem` lives,
        // and is reached by nobody but the holders of frames and, through the rings, the kernel.
        let (memory, frames) =
            unsafe { Memory::from_raw(base, FRAME_SIZE, config.frames, Box::new(umem.clone())) };
        let this = Self { umem, descriptors: descriptors.into(), _anchor: anchor };
        Ok((this, memory, frames))
    }

    /// Puts the XDP program in front of `interface` (queue 0) and opens a port on it.
    ///
    /// Frames that arrive before this returns are dropped or passed on as
    /// [`PortOptions::fallback`] says.
    pub fn open(&self, interface: &str, options: &PortOptions) -> Result<AfXdpPort, AfXdpError> {
        let index = index_of(interface)?;
        let program = Program::load(options.fallback)?;
        let attached = program.attach(interface, index)?;
        AfXdpPort::open(self, interface, program, attached, options)
    }

    /// Closes an interface: what arrives is dropped until a port is opened on it.
    pub fn close(interface: &str) -> Result<(), AfXdpError> {
        let index = index_of(interface)?;
        Program::load(Fallback::Drop)?.attach(interface, index).map(drop)
    }

    /// Takes the XDP program off an interface: frames reach the kernel again.
    pub fn detach(interface: &str) -> Result<(), AfXdpError> {
        program::detach(interface, index_of(interface)?)
    }
}

pub(super) fn socket_config() -> SocketConfig {
    SocketConfig::builder()
        .rx_queue_size(QueueSize::new(RING).expect("a power of two"))
        .tx_queue_size(QueueSize::new(RING).expect("a power of two"))
        .libxdp_flags(LibxdpFlags::XSK_LIBXDP_FLAGS_INHIBIT_PROG_LOAD)
        // The kernel gives every socket of a shared UMEM the mode of the first; pod
        // interfaces (veth) have copy mode only.
        .bind_flags(BindFlags::XDP_COPY | BindFlags::XDP_USE_NEED_WAKEUP)
        .build()
}

/// The library wraps the system's error into its own.
pub(super) fn cause_of(error: &dyn std::error::Error) -> io::Error {
    let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    match source.and_then(io::Error::raw_os_error) {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::other(error.to_string()),
    }
}

fn base_of(umem: &xsk_rs::Umem, mut first: FrameDesc) -> NonNull<u8> {
    let start = first.addr();
    debug_assert_eq!(start, XDP_HEADROOM);
    // SAFETY: the descriptor is of this UMEM, and no frame is in use yet.
    let mut data = unsafe { umem.data_mut(&mut first) };
    data.cursor().set_pos(1);
    let data = data.contents_mut().as_mut_ptr();
    // SAFETY: the packet starts `start` bytes into the region.
    NonNull::new(unsafe { data.sub(start) }).expect("a mapped region is not at 0")
}

fn index_of(interface: &str) -> Result<u32, AfXdpError> {
    let attempt = || format!("find interface {interface}");
    let name = std::ffi::CString::new(interface)
        .map_err(|_| AfXdpError::new(attempt(), io::ErrorKind::InvalidInput.into()))?;
    // SAFETY: a C string that outlives the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(AfXdpError::last(attempt())),
        index => Ok(index),
    }
}

/// A UMEM counts against RLIMIT_MEMLOCK unless CAP_IPC_LOCK is held. Failing is no matter:
/// the registration says so if the limit is too low.
fn lift_memory_limit() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let _ = setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None });
}
