//! The identity of a fragmented datagram, which all its fragments share.

use acl::Address;

use super::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_QINQ, ETHERTYPE_VLAN, be16};
use super::{Fragment, Headers, parse_into};

/// A datagram that was fragmented on its way (RFC 791, section 3.2; RFC 8200, section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Datagram {
    source: Address,
    destination: Address,
    identification: u32,
    protocol: u8,
}

/// The datagram of a fragment; `None` for whole packets, and for what is dropped anyway. The frame
/// is the first of a packet of `length` bytes.
#[inline]
pub(crate) fn of_fragment(frame: &[u8], length: usize) -> Option<Datagram> {
    may_be_fragment(frame).then(|| read(frame, length)).flatten()
}

/// A quick test that matches every fragment, and few other packets.
#[inline]
fn may_be_fragment(frame: &[u8]) -> bool {
    /// More fragments, or an offset.
    const IN_PARTS: u16 = 0x3fff;
    match be16(frame, 12) {
        Some(ETHERTYPE_IPV4) => be16(frame, 20).is_some_and(|word| word & IN_PARTS != 0),
        // Headers in front of which, or as which, a fragment header may stand.
        Some(ETHERTYPE_IPV6) => matches!(frame.get(20), Some(0 | 43 | 44 | 51 | 60)),
        Some(ETHERTYPE_VLAN | ETHERTYPE_QINQ) => true,
        _ => false,
    }
}

#[inline(never)]
fn read(frame: &[u8], length: usize) -> Option<Datagram> {
    let mut headers = Headers::NONE;
    parse_into(frame, length, &mut headers).ok()?;
    let (Fragment::First(identification) | Fragment::Later(identification)) = headers.fragment
    else {
        return None;
    };
    let flow = headers.flow;
    Some(Datagram {
        source: flow.source,
        destination: flow.destination,
        identification,
        protocol: flow.protocol,
    })
}

#[cfg(test)]
mod tests {
    use testkit::packet::udp;

    use super::*;

    fn of(frame: &[u8]) -> Option<Datagram> {
        of_fragment(frame, frame.len())
    }

    #[test]
    fn fragments_of_a_datagram_have_it_in_common_and_whole_packets_have_none() {
        for (from, to) in [("10.1.0.2:4000", "10.1.0.3:53"), ("[fd00::2]:4000", "[fd00::3]:53")] {
            let packet = || udp(from, to).payload(&[7; 64]);
            assert_eq!(of(&packet().build()), None);
            let pieces = packet().ip_id(9).fragments(32);
            let first = of(&pieces[0]).expect("a fragment");
            assert!(pieces.len() > 1 && pieces.iter().all(|piece| of(piece) == Some(first)));
            let other = packet().ip_id(10).fragments(32);
            assert_ne!(of(&other[0]), Some(first));
            let mut tagged = pieces[1].clone();
            tagged.splice(12..12, [0x81, 0, 0, 5]);
            assert_eq!(of(&tagged), Some(first));
            for length in 0..pieces[0].len() {
                assert_eq!(of(&pieces[0][..length]), None, "cut at {length}");
            }
        }
    }
}
