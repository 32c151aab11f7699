//! Frames out of an interface just as they are, whatever they say.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// A packet socket (packet(7)) that sends from one interface of the caller's network namespace,
/// and receives nothing. Needs root.
#[derive(Debug)]
pub struct RawSender {
    socket: OwnedFd,
    to: libc::sockaddr_ll,
}

impl RawSender {
    /// # Errors
    /// If there is no such interface, or the kernel gives no such socket.
    pub fn open(interface: &str) -> io::Result<Self> {
        // Of no protocol: it hears of none.
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
        let index = name_to_index(&socket, interface)?;
        // SAFETY: a structure of integers; zeroes are valid for each.
        let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_ifindex = index as i32;
        Ok(Self { socket, to })
    }

    /// Sends a frame, from its Ethernet header on.
    ///
    /// # Errors
    /// What the kernel says: it takes no frame shorter than an Ethernet header or longer than the
    /// interface allows, and has no room now and then.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        // SAFETY: the frame and the address are there for the length of the call, with the
        // lengths given.
        let sent = unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const self.to).cast(),
                size_of::<libc::sockaddr_ll>() as u32,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Namespace;

    #[test]
    fn frames_leave_as_they_are() {
        crate::requires_root!();
        let (one, two) = (Namespace::new("raw"), Namespace::new("raw"));
        let make = format!("ip link add raw0 type veth peer name raw1 netns {}", two.name());
        one.exec(make.split(' '));
        one.exec(["ip", "link", "set", "raw0", "up"]);
        two.exec(["ip", "link", "set", "raw1", "up"]);
        let received = || -> u64 {
            let text = two.exec(["cat", "/sys/class/net/raw1/statistics/rx_bytes"]);
            text.trim().parse().unwrap()
        };
        one.enter(|| {
            let sender = RawSender::open("raw0").unwrap();
            assert!(sender.send(&[0; 3]).is_err());
            // More than the kernels say to each other about themselves.
            (0..100).for_each(|_| sender.send(&[0xab; 1000]).unwrap());
            assert!(RawSender::open("missing").is_err());
        });
        assert!(received() >= 100 * 1000, "{}", received());
    }
}
