//! The memory that all AF_XDP sockets of a switch share.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use linux_net::Link;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::net::xdp::{SocketAddrXdpFlags, XdpUmemReg, XdpUmemRegFlags};

use super::AfXdpError;
use super::aside::Aside;
use super::program::{self, Fallback, Program, everything};
use super::programs::Programs;
use super::socket::Socket;
use crate::frame::RESERVED;
use crate::{Frame, Memory, kernel};

/// Bytes of a frame, headroom included: a page, the most that the kernel takes. An Ethernet frame
/// of the usual MTU would fit into half of it, but long packets cost the kernel a page for each of
/// their frames, however much is in it.
pub(super) const FRAME_SIZE: usize = 4096;
/// Descriptors of each ring.
pub(super) const RING: u32 = 2048;
/// The part of all frames that ports may take beyond their usual share while they are busy.
const SPARE_PART: u32 = 8;
/// Descriptors of the rings that see no packet.
const ANCHOR_RING: u32 = 8;
const HUGEPAGE: usize = 2 << 20;
/// A flag of linux/if_xdp.h: `tx_metadata_len` counts. Such bytes may stand in front of a packet.
const XDP_UMEM_TX_METADATA_LEN: u32 = 1 << 2;

/// Size of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UmemConfig {
    /// Frames (of 4096 bytes) for all ports together.
    pub frames: u32,
    /// Whether to use hugepages.
    pub hugepages: bool,
}

/// A UMEM and what new sockets over it need.
pub struct Umem {
    pub(super) frames: u32,
    /// Whether the kernel takes metadata of the packets it is to send (Linux 6.8).
    takes_metadata: bool,
    /// Whether packets may stretch over several frames (Linux 6.6).
    takes_long_packets: bool,
    /// Frames that busy ports may still take beyond their usual share.
    pub(super) spare: Arc<AtomicU32>,
    /// Frames of closed queues that the kernel may not have released yet.
    pub(super) aside: Arc<Aside>,
    /// The socket that registered the UMEM. It is bound to the loopback interface, which is never
    /// removed, and receives no frame: bound to a pod's interface, no port could be opened once
    /// that pod is gone.
    pub(super) anchor: Socket,
    /// Registers the same memory again, for interfaces in zero-copy mode.
    pub(super) registration: XdpUmemReg,
    /// The memory that `registration` describes.
    _region: Arc<Region>,
    pub(super) programs: Arc<Programs>,
}

impl Umem {
    /// Notes which XDP programs on these interfaces of this network an earlier process left there.
    /// Called while the process may still read programs' names (CAP_SYS_ADMIN).
    pub fn recognize_programs(links: &[Link]) {
        program::recognize(links);
    }

    /// Maps and registers the memory, and takes the place that one switch in a network namespace has.
    pub fn create(config: &UmemConfig) -> Result<(Self, Arc<Memory>, Vec<Frame>), AfXdpError> {
        RegisteredUmem::create(config)?.bind(Programs::default())
    }

    /// Frames for all ports together.
    pub fn frames(&self) -> u32 {
        self.frames
    }

    /// Whether packets may stretch over several frames (`XDP_USE_SG`, Linux 6.6).
    pub fn takes_long_packets(&self) -> bool {
        self.takes_long_packets
    }

    /// Whether a checksum may be left to the receiving kernel (`XDP_TX_METADATA`, Linux 6.8).
    pub fn takes_metadata(&self) -> bool {
        self.takes_metadata
    }

    /// Name of the XDP program on `interface` that is not Podgate's. Without CAP_SYS_ADMIN every
    /// program counts as another's, by its number.
    ///
    /// # Errors
    /// If there is no such interface.
    pub fn foreign_program(interface: &str) -> Result<Option<String>, AfXdpError> {
        Ok(program::foreign(index_of(interface)?))
    }

    /// Takes the uplink's program that an earlier process left off an interface that is the uplink
    /// no more; returns whether one was there.
    ///
    /// # Errors
    /// If the kernel does not remove it.
    pub fn release_former_uplink(link: &Link) -> Result<bool, AfXdpError> {
        let was_left = program::was_left_as_uplink(link);
        if was_left {
            program::detach(&link.name, link.index)?;
        }
        Ok(was_left)
    }

    /// Closes an interface: what arrives is dropped until a port is opened on it.
    pub fn close(interface: &str) -> Result<(), AfXdpError> {
        let index = index_of(interface)?;
        Program::load(&everything(Fallback::Drop))?.attach(interface, index).map(drop)
    }

    /// Name of the XDP program on an interface if it is Podgate's, of whatever process. Recognising
    /// it needs CAP_SYS_ADMIN.
    ///
    /// # Errors
    /// If there is no such interface.
    pub fn own_program(interface: &str) -> Result<Option<String>, AfXdpError> {
        Ok(program::own(index_of(interface)?))
    }

    /// Detaches the XDP program from an interface if it is Podgate's; returns its name.
    ///
    /// # Errors
    /// If there is no such interface, or the kernel keeps the program.
    pub fn detach_own(interface: &str) -> Result<Option<String>, AfXdpError> {
        let index = index_of(interface)?;
        let Some(name) = program::own(index) else { return Ok(None) };
        program::detach(interface, index).map(|()| Some(name))
    }

    /// Detaches the XDP program from an interface: frames reach the kernel again.
    pub fn detach(interface: &str) -> Result<(), AfXdpError> {
        program::detach(interface, index_of(interface)?)
    }
}

/// A UMEM that is registered and in no switch's use yet: a successor makes it beside the running switch.
pub struct RegisteredUmem {
    frames: u32,
    anchor: Socket,
    takes_metadata: bool,
    registration: XdpUmemReg,
    region: Arc<Region>,
}

impl RegisteredUmem {
    /// Maps and registers the memory.
    ///
    /// # Errors
    /// If there is too little memory, the kernel refuses, or has a fault that forbids AF_XDP
    /// ([`kernel::refuses_af_xdp`]).
    pub fn create(config: &UmemConfig) -> Result<Self, AfXdpError> {
        if let Some(fault) = kernel::refuses_af_xdp() {
            let cause = io::Error::new(io::ErrorKind::Unsupported, fault.to_string());
            return Err(AfXdpError::new("open AF_XDP sockets", cause));
        }
        lift_memory_limit();
        let UmemConfig { frames: count, hugepages } = *config;
        let failed = |cause| {
            let pages = if hugepages { " in hugepages" } else { "" };
            let attempt = format!("create a UMEM of {count} frames of {FRAME_SIZE} bytes{pages}");
            AfXdpError::new(attempt, cause)
        };
        if count == 0 {
            return Err(failed(io::ErrorKind::InvalidInput.into()));
        }
        let length = FRAME_SIZE * count as usize;
        let region = Arc::new(Region::map(length, hugepages).map_err(failed)?);
        let registration = XdpUmemReg {
            addr: region.base.as_ptr() as u64,
            len: length as u64,
            chunk_size: FRAME_SIZE as u32,
            // Beyond what XDP keeps itself.
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        let with_metadata = XdpUmemReg {
            flags: XdpUmemRegFlags::from_bits_retain(XDP_UMEM_TX_METADATA_LEN),
            tx_metadata_len: RESERVED as u32,
            ..registration
        };
        let (anchor, takes_metadata) = match Socket::new(ANCHOR_RING, Some(with_metadata)) {
            Ok(anchor) => (anchor, true),
            Err(_) => (Socket::new(ANCHOR_RING, Some(registration)).map_err(failed)?, false),
        };
        Ok(Self { frames: count, anchor, takes_metadata, registration, region })
    }

    /// Takes the place that one switch in a network namespace has; its ports get these programs.
    ///
    /// # Errors
    /// If another one has it.
    pub fn bind(self, programs: Programs) -> Result<(Umem, Arc<Memory>, Vec<Frame>), AfXdpError> {
        // The kernel gives every socket of a shared UMEM the mode of the first; pod interfaces
        // (veth) have copy mode only. Before Linux 6.6 no packet stretches over several frames.
        let (lo, copy) = (index_of("lo")?, SocketAddrXdpFlags::XDP_COPY);
        let Self { frames: count, anchor, takes_metadata, registration, region } = self;
        let bound = anchor.bind(lo, 0, copy | SocketAddrXdpFlags::XDP_USE_SG).map(|()| true);
        let bound = bound.or_else(|error| match error.kind() {
            io::ErrorKind::InvalidInput => anchor.bind(lo, 0, copy).map(|()| false),
            _ => Err(error),
        });
        let takes_long_packets = bound.map_err(|cause| {
            let attempt = match cause.kind() {
                io::ErrorKind::ResourceBusy => {
                    "another podgate, or another program with AF_XDP on lo, runs on this node"
                }
                _ => "bind an AF_XDP socket to lo",
            };
            AfXdpError::new(attempt, cause)
        })?;
        let base = region.base;
        // SAFETY: the region has exactly this layout, is mapped for as long as the owner lives, and
        // is accessed only by the holders of frames and, through the rings, by the kernel.
        let (memory, handles) =
            unsafe { Memory::from_raw(base, FRAME_SIZE, count, Box::new(Arc::clone(&region))) };
        let umem = Umem {
            frames: count,
            takes_metadata,
            takes_long_packets,
            spare: Arc::new(AtomicU32::new(count / SPARE_PART)),
            aside: Arc::default(),
            anchor,
            registration,
            _region: region,
            programs: Arc::new(programs),
        };
        Ok((umem, memory, handles))
    }
}

/// The mapped memory.
struct Region {
    base: NonNull<u8>,
    length: usize,
}

impl Region {
    fn map(length: usize, hugepages: bool) -> io::Result<Self> {
        let length = if hugepages { length.next_multiple_of(HUGEPAGE) } else { length };
        let kind = if hugepages { MapFlags::HUGETLB } else { MapFlags::empty() };
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE | kind;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), length, access, flags) }?;
        Ok(Self { base: NonNull::new(base.cast()).expect("nothing is mapped at 0"), length })
    }
}

// SAFETY: the value only keeps the region mapped.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`, unmapped once. The kernel holds the pages of a UMEM for as
        // long as a socket uses it.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
    }
}

pub(super) fn index_of(interface: &str) -> Result<u32, AfXdpError> {
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
