//! Sends arbitrary frames by an interface, and receives those that arrive.
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
    /// Fails if there is no such interface, or the kernel gives no such socket.
    pub fn open(interface: &str) -> io::Result<Self> {
        // Bound to no protocol, it receives nothing.
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
    /// The kernel's: it takes no frame shorter than an Ethernet header or longer than the
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

/// A packet socket that receives what comes in by one interface of the caller's network namespace.
/// Needs root.
#[derive(Debug)]
pub struct RawReceiver {
    socket: OwnedFd,
}

impl RawReceiver {
    /// Buffer for unread frames, in bytes.
    const ROOM: libc::c_int = 256 << 20;

    /// # Errors
    /// Fails if there is no such interface, or the kernel gives no such socket.
    pub fn open(interface: &str) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
        let index = name_to_index(&socket, interface)?;
        let set = |level, option, value: libc::c_int| {
            // SAFETY: the option's value is there for the length of the call, with its size.
            let result = unsafe {
                libc::setsockopt(
                    socket.as_raw_fd(),
                    level,
                    option,
                    (&raw const value).cast(),
                    size_of::<libc::c_int>() as u32,
                )
            };
            if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
        };
        set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, Self::ROOM)?;
        set(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
        // SAFETY: a structure of integers; zeroes are valid for each.
        let mut at: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        at.sll_family = libc::AF_PACKET as u16;
        at.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        at.sll_ifindex = index as i32;
        // SAFETY: the address is there for the length of the call, with the size given.
        let bound = unsafe {
            libc::bind(
                socket.as_raw_fd(),
                (&raw const at).cast(),
                size_of::<libc::sockaddr_ll>() as u32,
            )
        };
        if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(Self { socket }) }
    }

    /// The next frame that came in, from its Ethernet header on; `None` if there is no more.
    ///
    /// # Errors
    /// The kernel's.
    pub fn receive(&self) -> io::Result<Option<Vec<u8>>> {
        let mut frame = vec![0; 2048];
        match rustix::net::recv(&self.socket, &mut frame, rustix::net::RecvFlags::empty()) {
            Ok((length, _)) => {
                frame.truncate(length);
                Ok(Some(frame))
            }
            Err(rustix::io::Errno::AGAIN) => Ok(None),
            Err(error) => Err(error.into()),
        }
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
