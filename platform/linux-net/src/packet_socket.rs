//! Packet sockets that send frames with unfinished checksums (packet(7), `PACKET_VNET_HDR`).

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use super::error::Error;
use super::sys;

/// Bytes of the header in front of each frame: `struct virtio_net_hdr` of linux/virtio_net.h.
const HEADER: usize = 10;
/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the checksum is unfinished.
const NEEDS_CHECKSUM: u8 = 1;

/// A checksum that the kernel writes when the frame leaves for an interface that does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnfinishedChecksum {
    /// Offset in the frame of the first byte that it covers.
    pub start: u16,
    /// Offset of its field from there.
    pub field: u16,
}

/// A packet socket of one interface; it receives what comes in there.
#[derive(Debug)]
pub struct PacketSocket(File);

impl PacketSocket {
    /// Opens a socket of an interface of the calling thread's network namespace, by its index.
    ///
    /// # Errors
    /// Without CAP_NET_RAW, or if there is no such interface.
    pub fn open(ifindex: u32) -> Result<Self, Error> {
        let attempt = || format!("open a packet socket of interface {ifindex}");
        sys::packet_socket(ifindex).map(Self).map_err(|cause| Error::new(attempt(), cause))
    }

    /// Sends a frame, from its Ethernet header on.
    ///
    /// # Errors
    /// The kernel's, for instance if the checksum's field is not in the frame.
    pub fn send(&self, frame: &[u8], checksum: UnfinishedChecksum) -> Result<(), Error> {
        let mut message = vec![0; HEADER];
        message[0] = NEEDS_CHECKSUM;
        message[6..8].copy_from_slice(&checksum.start.to_ne_bytes());
        message[8..10].copy_from_slice(&checksum.field.to_ne_bytes());
        message.extend_from_slice(frame);
        (&self.0).write_all(&message).map_err(|cause| Error::new("send a frame", cause))
    }

    /// The next frame of at most 2,048 bytes, from its Ethernet header on; `None` if none comes in
    /// time.
    ///
    /// # Errors
    /// The kernel's.
    pub fn receive(&self, timeout: Duration) -> Result<Option<Vec<u8>>, Error> {
        self.read_within(timeout).map_err(|cause| Error::new("receive a frame", cause))
    }

    fn read_within(&self, timeout: Duration) -> io::Result<Option<Vec<u8>>> {
        if !sys::readable(self.0.as_fd(), Some(timeout))? {
            return Ok(None);
        }
        let mut message = vec![0; HEADER + 2048];
        let length = (&self.0).read(&mut message)?;
        Ok(message.get(HEADER..length).map(<[u8]>::to_vec))
    }
}
