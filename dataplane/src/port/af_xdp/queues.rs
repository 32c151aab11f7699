//! Opens ports on one queue of an interface or on all: a socket for each in the program's XSKMAP.

use std::io;

use rustix::net::xdp::SocketAddrXdpFlags;

use super::dispatcher::XskMapSlot;
use super::queue::AfXdpPort;
use super::socket::Socket;
use super::umem::{RING, Umem, index_of};
use super::{AfXdpError, PortOptions, XdpMode};

impl Umem {
    /// Attaches the XDP program to `interface` and opens a port on its queue 0.
    ///
    /// Frames that arrive before this returns are dropped or passed on as
    /// [`PortOptions::fallback`] says.
    pub fn open(&self, interface: &str, options: &PortOptions) -> Result<AfXdpPort, AfXdpError> {
        let index = index_of(interface)?;
        let dispatcher = self.dispatcher(options.fallback)?;
        let attached = dispatcher.attach(interface, index)?;
        let socket = Socket::new(RING, None)
            .and_then(|socket| socket.bind_shared(index, 0, &self.anchor).map(|()| socket))
            .map_err(|cause| {
                AfXdpError::new(format!("bind an AF_XDP socket to {interface}"), cause)
            })?;
        let slot = dispatcher.slot(index, 0, &socket)?;
        let mode = XdpMode { attached, zero_copy: false };
        let port = AfXdpPort::new(self, interface, socket, mode, options.fill, Some(slot));
        Ok(self.towards_a_kernel(port))
    }

    /// As [`open`](Self::open), on each of the interface's queues; a port's index is its queue's
    /// number. Each has its own fill ring.
    ///
    /// # Errors
    /// If the interface is not there, or the program's map is full.
    pub fn open_queues(
        &self,
        interface: &str,
        options: &PortOptions,
    ) -> Result<Vec<AfXdpPort>, AfXdpError> {
        let index = index_of(interface)?;
        let dispatcher = self.dispatcher(options.fallback)?;
        let attached = dispatcher.attach(interface, index)?;
        let mode = XdpMode { attached, zero_copy: false };
        let enter = |queue, socket: &Socket| dispatcher.slot(index, queue, socket).map(Some);
        let ports = self.open_all(interface, index, mode, None, options.fill, enter)?;
        Ok(ports.into_iter().map(|port| self.towards_a_kernel(port)).collect())
    }

    /// Makes the port leave partial checksums to the kernel at the interface's other end.
    pub(super) fn towards_a_kernel(&self, port: AfXdpPort) -> AfXdpPort {
        if self.takes_metadata() { port.offloading_checksums() } else { port }
    }

    /// A port for each queue, that of the first over the socket `first` if there is one: its UMEM
    /// is then that of all. `enter` enters a queue's socket in the XSKMAP.
    pub(super) fn open_all(
        &self,
        interface: &str,
        index: u32,
        mode: XdpMode,
        first: Option<Socket>,
        fill: u32,
        enter: impl Fn(u32, &Socket) -> Result<Option<XskMapSlot>, AfXdpError>,
    ) -> Result<Vec<AfXdpPort>, AfXdpError> {
        let sockets = self.bind_all(interface, index, first)?;
        let port = |(queue, socket): (usize, Socket)| {
            let slot = enter(queue as u32, &socket)?;
            Ok(AfXdpPort::new(self, interface, socket, mode, fill, slot))
        };
        sockets.into_iter().enumerate().map(port).collect()
    }

    /// Registers the same memory a second time, for an interface in zero-copy mode: a UMEM has one
    /// mode, and that of the pods is copy mode. Returns the socket of the first queue.
    pub(super) fn bind_own(&self, index: u32) -> Option<Socket> {
        let socket = Socket::new(RING, Some(self.registration)).ok()?;
        let mode = SocketAddrXdpFlags::XDP_ZEROCOPY;
        let bound = socket.bind(index, 0, mode | SocketAddrXdpFlags::XDP_USE_SG);
        bound.or_else(|_| socket.bind(index, 0, mode)).ok().map(|()| socket)
    }

    fn bind_all(
        &self,
        interface: &str,
        index: u32,
        first: Option<Socket>,
    ) -> Result<Vec<Socket>, AfXdpError> {
        let failed = |queue: usize| {
            move |cause| {
                let attempt = format!("bind an AF_XDP socket to {interface}, queue {queue}");
                AfXdpError::new(attempt, cause)
            }
        };
        let has_own = first.is_some();
        let mut sockets: Vec<Socket> = first.into_iter().collect();
        loop {
            let queue = sockets.len();
            let owner = if has_own { &sockets[0] } else { &self.anchor };
            let socket = Socket::new(RING, None).map_err(failed(queue))?;
            match socket.bind_shared(index, queue as u32, owner) {
                Ok(()) => sockets.push(socket),
                // There is no such queue.
                Err(error) if queue > 0 && error.kind() == io::ErrorKind::InvalidInput => break,
                Err(error) => return Err(failed(queue)(error)),
            }
        }
        Ok(sockets)
    }
}
