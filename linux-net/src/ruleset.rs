//! The generation of the kernel's nftables ruleset, which every program's transactions increment
//! (linux/netfilter/nf_tables.h, `NFT_MSG_GETGEN`).

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};

use super::error::Error;
use super::sys;

/// A netfilter netlink socket of the calling thread's network namespace.
#[derive(Debug)]
pub(super) struct Ruleset {
    socket: Socket,
}

const WHAT: &str = "read the nftables ruleset's generation";
/// Timeout of an answer; the kernel normally answers at once.
const TIMEOUT: Duration = Duration::from_secs(10);
/// `NFNL_SUBSYS_NFTABLES << 8`.
const SUBSYSTEM: u16 = 10 << 8;
const NFT_MSG_NEWGEN: u16 = SUBSYSTEM | 15;
const NFT_MSG_GETGEN: u16 = SUBSYSTEM | 16;
const NLM_F_REQUEST: u16 = 1;
const NFTA_GEN_ID: u16 = 1;
/// `struct nlmsghdr`, then `struct nfgenmsg`.
const HEADER_BYTES: usize = 16;
const HEADERS_BYTES: usize = HEADER_BYTES + 4;

impl Ruleset {
    /// Opens a socket.
    ///
    /// # Errors
    /// If the kernel gives none.
    pub(super) fn open() -> Result<Self, Error> {
        let open = || {
            let mut socket = Socket::new(NETLINK_NETFILTER)?;
            socket.bind(&SocketAddr::new(0, 0))?;
            Ok(socket)
        };
        let socket = open().map_err(|cause| Error::new("open a netfilter socket", cause))?;
        Ok(Self { socket })
    }

    /// The generation now.
    ///
    /// # Errors
    /// If the kernel does not answer, or with something else.
    pub(super) fn generation(&mut self) -> Result<u32, Error> {
        self.request().map_err(|cause| Error::new(WHAT, cause))
    }

    fn request(&self) -> io::Result<u32> {
        let mut request = Vec::with_capacity(HEADERS_BYTES);
        request.extend((HEADERS_BYTES as u32).to_ne_bytes());
        request.extend(NFT_MSG_GETGEN.to_ne_bytes());
        request.extend(NLM_F_REQUEST.to_ne_bytes());
        request.extend([0; 8 + 4]);
        self.socket.send_to(&request, &SocketAddr::new(0, 0), 0)?;
        if !sys::readable(self.socket.as_fd(), Some(TIMEOUT))? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut answer = Vec::with_capacity(4096);
        self.socket.recv(&mut answer, 0)?;
        generation_in(&answer)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the answer is none"))
    }
}

fn generation_in(answer: &[u8]) -> Option<u32> {
    let word = |at: usize| Some(u16::from_ne_bytes(answer.get(at..at + 2)?.try_into().ok()?));
    if word(4)? != NFT_MSG_NEWGEN {
        return None;
    }
    let mut at = HEADERS_BYTES;
    loop {
        let (length, kind) = (usize::from(word(at)?), word(at + 2)?);
        if kind == NFTA_GEN_ID {
            let value = answer.get(at + 4..at + 8)?;
            return Some(u32::from_be_bytes(value.try_into().ok()?));
        }
        at += length.max(4).next_multiple_of(4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generation_is_found_among_the_attributes() {
        let mut answer = vec![0; HEADERS_BYTES];
        answer[4..6].copy_from_slice(&NFT_MSG_NEWGEN.to_ne_bytes());
        assert_eq!(generation_in(&answer), None, "no attribute");
        answer.extend([6u16.to_ne_bytes(), 2u16.to_ne_bytes()].concat());
        answer.extend([1, 2, 0, 0]);
        answer.extend([8u16.to_ne_bytes(), NFTA_GEN_ID.to_ne_bytes()].concat());
        answer.extend(7u32.to_be_bytes());
        assert_eq!(generation_in(&answer), Some(7));
        for length in 0..answer.len() {
            assert_eq!(generation_in(&answer[..length]), None, "{length}");
        }
        answer[4] = 0;
        assert_eq!(generation_in(&answer), None, "another message");
    }
}
