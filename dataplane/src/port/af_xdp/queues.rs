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
        let dispatcher = self.programs.dispatcher(options.fallback)?;
        let attached = dispatcher.attach(interface, index)?;
        let socket = Socket::new(RING, None)
            .and_then(|socket| socket.bind_shared(index, 0, &self.anchor).map(|()| socket))
            .map_err(|cause| {
                AfXdpError::new(format!("bind an AF_XDP socket to {interface}"), cause)
            })?;
        let slot = dispatcher.slot(index, 0, &socket)?;
        let mode = XdpMode { attached, zero_copy: false };
        let port =
            AfXdpPort::new(self, (interface, (index, 0)), socket, mode, options.fill, Some(slot));
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
        let dispatcher = self.programs.dispatcher(options.fallback)?;
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
            let place = (index, queue as u32);
            Ok(AfXdpPort::new(self, (interface, place), socket, mode, fill, slot))
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
        let has_own = first.is_some();
        let bind = |queue: usize, sockets: &[Socket]| {
            let owner = if has_own { &sockets[0] } else { &self.anchor };
            let socket = Socket::new(RING, None)?;
            socket.bind_shared(index, queue as u32, owner).map(|()| socket)
        };
        let sockets = first.into_iter().collect();
        bind_each(linux_net::queues(interface), sockets, bind).map_err(|(queue, cause)| {
            let attempt = format!("bind an AF_XDP socket to {interface}, queue {queue}");
            AfXdpError::new(attempt, cause)
        })
    }
}

/// Binds a socket to each queue that has none: to `count` of them, or until there is no further one. (To bind
/// one, the kernel sets memory aside for the whole UMEM, before it looks whether there is such a queue.)
fn bind_each<S>(
    count: Option<u32>,
    mut sockets: Vec<S>,
    mut bind: impl FnMut(usize, &[S]) -> io::Result<S>,
) -> Result<Vec<S>, (usize, io::Error)> {
    while count.is_none_or(|count| sockets.len() < count as usize) {
        let queue = sockets.len();
        match bind(queue, &sockets) {
            Ok(socket) => sockets.push(socket),
            // There is no such queue.
            Err(error) if queue > 0 && error.kind() == io::ErrorKind::InvalidInput => break,
            Err(error) => return Err((queue, error)),
        }
    }
    Ok(sockets)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Binds the queues of an interface with two of them; the numbers of those that were tried.
    fn tried(count: Option<u32>) -> (Vec<usize>, Vec<usize>) {
        let mut tried = Vec::new();
        let sockets = bind_each(count, Vec::new(), |queue, _| {
            tried.push(queue);
            if queue < 2 { Ok(queue) } else { Err(io::ErrorKind::InvalidInput.into()) }
        });
        (tried, sockets.unwrap())
    }

    #[test]
    fn no_queue_is_tried_that_is_known_to_be_missing() {
        assert_eq!(tried(Some(2)), (vec![0, 1], vec![0, 1]));
        assert_eq!(tried(None), (vec![0, 1, 2], vec![0, 1]), "the driver does not say");
        assert_eq!(tried(Some(3)), (vec![0, 1, 2], vec![0, 1]), "one has gone meanwhile");
        assert_eq!(tried(Some(1)), (vec![0], vec![0]));
    }

    #[test]
    fn a_queue_that_cannot_be_bound_is_named() {
        let bind = |queue: usize, _: &[usize]| match queue {
            0 => Ok(0),
            _ => Err(io::ErrorKind::ResourceBusy.into()),
        };
        let (queue, error) = bind_each(Some(2), Vec::new(), bind).unwrap_err();
        assert_eq!((queue, error.kind()), (1, io::ErrorKind::ResourceBusy));
    }
}
