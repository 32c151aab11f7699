//! An AF_XDP socket: its four rings, and its wake-up calls.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XDP_PGOFF_RX_RING,
    XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpDesc,
    XdpUmemReg,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
    sockopt,
};

use super::ring::{Consumer, Producer, Ring};

/// A socket that is not bound yet; it has its rings, and may have brought a UMEM.
pub(super) struct Socket {
    /// Empty frames for the kernel, by their offsets in the UMEM.
    pub(super) fill: Producer<u64>,
    /// Frames the kernel has sent.
    pub(super) completion: Consumer<u64>,
    /// Received packets.
    pub(super) rx: Consumer<XdpDesc>,
    /// Packets to send.
    pub(super) tx: Producer<XdpDesc>,
    // Closed last: the rings are its memory.
    descriptor: OwnedFd,
}

impl Socket {
    /// A socket with rings of `ring` entries. `umem` registers a UMEM with it; without one it
    /// must be bound to that of another socket.
    pub(super) fn new(ring: u32, umem: Option<XdpUmemReg>) -> io::Result<Self> {
        let descriptor =
            socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        if let Some(umem) = umem {
            sockopt::set_xdp_umem_reg(&descriptor, umem)?;
        }
        sockopt::set_xdp_umem_fill_ring_size(&descriptor, ring)?;
        sockopt::set_xdp_umem_completion_ring_size(&descriptor, ring)?;
        sockopt::set_xdp_rx_ring_size(&descriptor, ring)?;
        sockopt::set_xdp_tx_ring_size(&descriptor, ring)?;
        let offsets = sockopt::xdp_mmap_offsets(&descriptor)?;
        let fd = descriptor.as_fd();
        Ok(Self {
            fill: Producer::new(Ring::map(fd, XDP_UMEM_PGOFF_FILL_RING, ring, offsets.fr)?),
            completion: Consumer::new(Ring::map(
                fd,
                XDP_UMEM_PGOFF_COMPLETION_RING,
                ring,
                offsets.cr,
            )?),
            rx: Consumer::new(Ring::map(fd, XDP_PGOFF_RX_RING, ring, offsets.rx)?),
            tx: Producer::new(Ring::map(fd, XDP_PGOFF_TX_RING, ring, offsets.tx)?),
            descriptor,
        })
    }

    /// Binds a socket that brought its UMEM to a queue of an interface, in this mode.
    pub(super) fn bind(&self, index: u32, queue: u32, mode: SocketAddrXdpFlags) -> io::Result<()> {
        let flags = mode | SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
        let address = SocketAddrXdp::new(flags, index, queue);
        until_free(|| bind(&self.descriptor, &address))
    }

    /// Binds the socket to a queue of an interface, over the UMEM that `owner` brought and in
    /// the mode that it was bound in: the kernel takes no other.
    pub(super) fn bind_shared(&self, index: u32, queue: u32, owner: &Self) -> io::Result<()> {
        let address = SocketAddrXdpWithSharedUmem {
            addr: SocketAddrXdp::new(SocketAddrXdpFlags::XDP_SHARED_UMEM, index, queue),
            shared_umem_fd: owner.descriptor.as_fd(),
        };
        until_free(|| bind(&self.descriptor, &address))
    }

    /// Wakes the kernel to send what is in the tx ring.
    pub(super) fn poke_send(&self) -> Result<(), i32> {
        send(&self.descriptor, &[], SendFlags::DONTWAIT).map(drop).map_err(|e| e.raw_os_error())
    }

    /// Wakes the kernel to read the fill ring.
    pub(super) fn poke_receive(&self) -> Result<(), i32> {
        let nothing: &mut [u8] = &mut [];
        let received = recv(&self.descriptor, nothing, RecvFlags::DONTWAIT);
        received.map(drop).map_err(|e| e.raw_os_error())
    }

    /// Frames that were dropped before they came into the rx ring.
    pub(super) fn missed(&self) -> u64 {
        let Ok(statistics) = sockopt::xdp_statistics(&self.descriptor) else { return 0 };
        // The rx ring was full, or there was no empty frame to take one (which the kernel counts
        // among the dropped as well, where the program runs natively).
        statistics.rx_ring_full.unwrap_or(0)
            + statistics.rx_dropped.max(statistics.rx_fill_ring_empty_descs.unwrap_or(0))
    }

    /// Raises the number of frames that one call sends from 32, where the kernel can (Linux 6.17).
    pub(super) fn raise_send_budget(&self, budget: u32) {
        const XDP_MAX_TX_SKB_BUDGET: i32 = 9;
        // SAFETY: the value is a 32-bit number that outlives the call.
        let _ = unsafe {
            libc::setsockopt(
                self.descriptor.as_raw_fd(),
                libc::SOL_XDP,
                XDP_MAX_TX_SKB_BUDGET,
                std::ptr::from_ref(&budget).cast(),
                size_of::<u32>() as u32,
            )
        };
    }
}

/// Time for which a queue may stay busy after its last socket was closed.
const UNTIL_FREE: Duration = Duration::from_secs(1);

/// Binds again while the queue is busy, for a while.
fn until_free(bind: impl Fn() -> Result<(), Errno>) -> io::Result<()> {
    let deadline = Instant::now() + UNTIL_FREE;
    loop {
        match bind() {
            Err(Errno::BUSY) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            result => return Ok(result?),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
