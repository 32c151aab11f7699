//! The generation of the kernel's nftables ruleset, which every program's transactions increment
//! (linux/netfilter/nf_tables.h, `NFT_MSG_GETGEN`).

use std::io;

use netlink_packet_core::{NLM_F_REQUEST, NlasIterator};
use netlink_sys::{Socket, protocols::NETLINK_NETFILTER};

use super::error::Error;
use super::raw_netlink::{self, GENERIC, answer, message, messages};

/// A netfilter netlink socket of the calling thread's network namespace.
#[derive(Debug)]
pub(super) struct Ruleset {
    socket: Socket,
}

const WHAT: &str = "read the nftables ruleset's generation";
/// `NFNL_SUBSYS_NFTABLES << 8`.
const SUBSYSTEM: u16 = 10 << 8;
const NFT_MSG_NEWGEN: u16 = SUBSYSTEM | 15;
const NFT_MSG_GETGEN: u16 = SUBSYSTEM | 16;
const NFTA_GEN_ID: u16 = 1;

impl Ruleset {
    /// Opens a socket.
    ///
    /// # Errors
    /// Fails if the kernel gives none.
    pub(super) fn open() -> Result<Self, Error> {
        let socket = raw_netlink::open(NETLINK_NETFILTER)
            .map_err(|cause| Error::new("open a netfilter socket", cause))?;
        Ok(Self { socket })
    }

    /// The generation now.
    ///
    /// # Errors
    /// Fails if the kernel does not answer, or with something else.
    pub(super) fn generation(&mut self) -> Result<u32, Error> {
        self.request().map_err(|cause| Error::new(WHAT, cause))
    }

    fn request(&self) -> io::Result<u32> {
        self.socket.send(&message(NFT_MSG_GETGEN, NLM_F_REQUEST, &[0; GENERIC]), 0)?;
        generation_in(&answer(&self.socket)?)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the answer is none"))
    }
}

fn generation_in(answer: &[u8]) -> Option<u32> {
    let (_, body) = messages(answer).into_iter().find(|(kind, _)| *kind == NFT_MSG_NEWGEN)?;
    let mut attributes = NlasIterator::new(body.get(GENERIC..)?).map_while(Result::ok);
    let generation = attributes.find(|attribute| attribute.kind() == NFTA_GEN_ID)?;
    Some(u32::from_be_bytes(generation.value().try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::super::raw_netlink::attribute;
    use super::*;

    #[test]
    fn the_generation_is_found_among_the_attributes() {
        let mut body = vec![0; GENERIC];
        assert_eq!(generation_in(&message(NFT_MSG_NEWGEN, 0, &body)), None, "no attribute");
        body.extend(attribute(2, &[1, 2]));
        body.extend(attribute(NFTA_GEN_ID, &7u32.to_be_bytes()));
        let answer = message(NFT_MSG_NEWGEN, 0, &body);
        assert_eq!(generation_in(&answer), Some(7));
        for length in 0..answer.len() {
            assert_eq!(generation_in(&answer[..length]), None, "{length}");
        }
        for length in 0..body.len() {
            let shorter = message(NFT_MSG_NEWGEN, 0, &body[..length]);
            assert_eq!(generation_in(&shorter), None, "{length}");
        }
        assert_eq!(generation_in(&message(NFT_MSG_GETGEN, 0, &body)), None, "another message");
    }
}
