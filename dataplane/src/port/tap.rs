//! TAP: an interface of the kernel whose wire ends here (Documentation/networking/tuntap.rst).
//!
//! Slower than AF_XDP, a system call a frame each way, but it needs no peer interface and no
//! XDP. The kernel hands frames over whole: checksums completed, segments cut.

#![allow(unsafe_code, reason = "naming the interface is an ioctl")]

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use rustix::io::{Errno, readv, writev};

use super::{Lent, Port, PortGone};
use crate::Frame;
use crate::frame::Chain;

/// A port over a TAP interface, which is there for as long as the port is.
pub struct TapPort {
    interface: String,
    device: File,
    /// Takes what does not fit into the first frame of a packet.
    spill: Box<[u8]>,
    missed: u64,
}

/// Longer than any frame the kernel sends.
const SPILL: usize = 65536;

impl TapPort {
    /// Makes the interface. It has no address and is down.
    ///
    /// # Errors
    /// If the name is no name for an interface, or taken, or the caller may not (CAP_NET_ADMIN).
    pub fn open(interface: &str) -> io::Result<Self> {
        let failed = |error: io::Error| {
            io::Error::new(error.kind(), format!("make the TAP interface {interface}: {error}"))
        };
        let device = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open("/dev/net/tun")
            .map_err(failed)?;
        attach(&device, interface).map_err(failed)?;
        Ok(Self {
            interface: interface.to_owned(),
            device,
            spill: vec![0; SPILL].into(),
            missed: 0,
        })
    }

    fn gone(&self, error: Errno) -> PortGone {
        PortGone(format!("interface {} is gone: {error}", self.interface))
    }
}

fn attach(device: &File, interface: &str) -> io::Result<()> {
    let mut name = [0; libc::IFNAMSIZ];
    if interface.is_empty() || interface.len() >= name.len() || interface.contains(['\0', '%']) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (slot, byte) in name.iter_mut().zip(interface.bytes()) {
        *slot = byte as libc::c_char;
    }
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_TUN_EXCL;
    let ifru_flags = flags as libc::c_short;
    let request =
        libc::ifreq { ifr_name: name, ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags } };
    // SAFETY: TUNSETIFF reads and writes the request, which outlives the call.
    let result =
        unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF as _, &raw const request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A packet whose first frame is full; `None` if there are no frames for the rest.
fn go_on(lent: &mut Lent<'_>, first: Frame, rest: &[u8]) -> Option<Frame> {
    let mut chain = Chain::new(first);
    for part in rest.chunks(lent.memory.capacity()) {
        match lent.filled(part) {
            Some(next) => chain.push(lent.memory, next),
            None => {
                lent.free.put(chain.finish());
                return None;
            }
        }
    }
    Some(chain.finish())
}

impl Port for TapPort {
    fn receive(
        &mut self,
        lent: &mut Lent<'_>,
        most: usize,
        frames: &mut Vec<Frame>,
    ) -> Result<(), PortGone> {
        let mut count = 0;
        while count < most
            && let Some(mut frame) = lent.free.take()
        {
            let capacity = lent.memory.capacity();
            lent.memory.set_length(&mut frame, capacity);
            let mut room = [
                IoSliceMut::new(lent.memory.bytes_mut(&mut frame)),
                IoSliceMut::new(&mut self.spill),
            ];
            match readv(&self.device, &mut room) {
                Ok(length) if length <= capacity => {
                    lent.memory.set_length(&mut frame, length);
                    frames.push(frame);
                    count += 1;
                    continue;
                }
                Ok(length) => {
                    match go_on(lent, frame, &self.spill[..length - capacity]) {
                        Some(frame) => frames.push(frame),
                        None => self.missed += 1,
                    }
                    count += 1;
                    continue;
                }
                Err(Errno::AGAIN | Errno::INTR | Errno::IO) => lent.free.put(frame),
                Err(error) => {
                    lent.free.put(frame);
                    return Err(self.gone(error));
                }
            }
            break;
        }
        Ok(())
    }

    fn send(&mut self, lent: &mut Lent<'_>, frames: &mut Vec<Frame>) -> Result<(), PortGone> {
        let mut sent = 0;
        let mut result = Ok(());
        for frame in &*frames {
            let chunks: Vec<_> = lent.memory.chunks(frame).map(IoSlice::new).collect();
            match writev(&self.device, &chunks) {
                // The interface is down, or does not take such a frame: it is dropped there.
                Ok(_) | Err(Errno::IO | Errno::INVAL) => sent += 1,
                Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM) => break,
                Err(error) => {
                    result = Err(self.gone(error));
                    break;
                }
            }
        }
        frames.drain(..sent).for_each(|frame| lent.free.put(frame));
        result
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        Some(self.device.as_fd())
    }

    fn missed(&self) -> u64 {
        self.missed
    }

    fn close(self: Box<Self>, _lent: &mut Lent<'_>) {}
}
