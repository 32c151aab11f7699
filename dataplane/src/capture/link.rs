//! Link types of captures, and their packets as Ethernet frames.
//!
//! `tcpdump -i any` writes Linux's cooked headers, captures of tunnels have none. Such a packet gets an Ethernet
//! header for the switch.
//!
//! Source: <https://www.tcpdump.org/linktypes.html>.

use super::Direction;
use crate::SWITCH_MAC;

/// What packets of an interface begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkType {
    /// An Ethernet header.
    Ethernet,
    /// The header of IPv4 or IPv6 (LINKTYPE_RAW, LINKTYPE_IPV4, LINKTYPE_IPV6).
    Raw,
    /// A cooked header (LINKTYPE_LINUX_SLL).
    Cooked,
    /// A cooked header of version 2 (LINKTYPE_LINUX_SLL2).
    Cooked2,
}

/// Bytes of an Ethernet header.
const ETHERNET_HEADER: usize = 14;
/// The packet type of what the machine itself sent (PACKET_OUTGOING).
const OUTGOING: u16 = 4;

impl LinkType {
    /// The link type of this number; `None` for one whose packets are not understood.
    pub(super) const fn of(number: u16) -> Option<Self> {
        match number {
            1 => Some(Self::Ethernet),
            // Some systems have raw IP under numbers of their own.
            12 | 14 | 101 | 228 | 229 => Some(Self::Raw),
            113 => Some(Self::Cooked),
            276 => Some(Self::Cooked2),
            _ => None,
        }
    }

    /// Rewrites the bytes of a packet to those of an Ethernet frame; returns by how many bytes the header is longer than
    /// the capture's, and the direction that a cooked header has. A packet shorter than its header stays as it is.
    pub(super) fn rewrite(self, data: &mut Vec<u8>) -> (i64, Option<Direction>) {
        let word = |at: usize| {
            data.get(at..at + 2).and_then(|it| it.first_chunk()).map(|it| u16::from_be_bytes(*it))
        };
        let (header, kind, packet_type) = match self {
            Self::Ethernet => return (0, None),
            Self::Raw => {
                let version = data.first().map(|byte| byte >> 4);
                let kind = if version == Some(6) { 0x86dd } else { 0x0800 };
                (0, Some(kind), None)
            }
            Self::Cooked => (16, word(14), word(0)),
            Self::Cooked2 => (20, word(0), data.get(10).map(|byte| u16::from(*byte))),
        };
        let Some(kind) = kind.filter(|_| data.len() >= header) else { return (0, None) };
        let mut ethernet = [0; ETHERNET_HEADER];
        ethernet[..6].copy_from_slice(&SWITCH_MAC);
        ethernet[12..].copy_from_slice(&kind.to_be_bytes());
        data.splice(..header, ethernet);
        let direction = packet_type.map(|it| match it {
            OUTGOING => Direction::Out,
            _ => Direction::In,
        });
        (ETHERNET_HEADER as i64 - header as i64, direction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IP: [u8; 3] = [0x45, 1, 2];

    #[test]
    fn headers_become_those_of_ethernet() {
        let cooked = [&[0, 4, 0, 1, 0, 6, 1, 2, 3, 4, 5, 6, 0, 0, 8, 0][..], &IP].concat();
        let cooked2 =
            [&[0x86, 0xdd, 0, 0, 0, 0, 0, 7, 0, 1, 0, 6, 1, 2, 3, 4, 5, 6, 0, 0][..], &IP].concat();
        for (number, data, kind, direction, longer) in [
            (101, IP.to_vec(), [8, 0], None, 14),
            (113, cooked, [8, 0], Some(Direction::Out), -2),
            (276, cooked2, [0x86, 0xdd], Some(Direction::In), -6),
        ] {
            let mut frame = data;
            let link = LinkType::of(number).unwrap();
            assert_eq!(link.rewrite(&mut frame), (longer, direction), "{number}");
            assert_eq!((&frame[12..14], &frame[14..]), (&kind[..], &IP[..]), "{number}");
        }
        assert_eq!(LinkType::of(127), None);
    }

    #[test]
    fn a_packet_shorter_than_its_header_stays() {
        for link in [LinkType::Cooked, LinkType::Cooked2] {
            let mut data = vec![0; 9];
            assert_eq!(link.rewrite(&mut data), (0, None));
            assert_eq!(data.len(), 9);
        }
    }
}
