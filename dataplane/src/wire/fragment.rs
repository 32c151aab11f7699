//! Cuts IPv4 packets into fragments (RFC 791, section 3.2; RFC 1812, section 5.2.6).

use std::iter::from_fn;

use super::checksum;

/// Length of an IPv4 header without options.
const HEADER: usize = 20;
const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET: u16 = 0x1fff;

/// Whether a router may cut this IPv4 packet: its sender permits it, and it has no options, of
/// which fragments would have some.
pub(crate) fn is_divisible(ip: &[u8]) -> bool {
    ip.first() == Some(&0x45)
        && ip.len() > HEADER
        && u16::from_be_bytes([ip[6], ip[7]]) & DONT_FRAGMENT == 0
}

/// The fragments of a [divisible](is_divisible) packet, in order, each with its own header and of
/// no more than `most` bytes. Of a fragment, they are fragments of the same datagram. None if
/// `most` leaves no room for data.
pub(crate) fn fragments(ip: &[u8], most: usize) -> impl Iterator<Item = Vec<u8>> {
    let (header, data) = ip.split_at(HEADER);
    let room = most.saturating_sub(HEADER) & !7;
    let word = u16::from_be_bytes([header[6], header[7]]);
    let mut at = 0;
    from_fn(move || {
        if at >= data.len() || room == 0 {
            return None;
        }
        let end = data.len().min(at + room);
        let mut fragment = [header, &data[at..end]].concat();
        let more = if end < data.len() { MORE_FRAGMENTS } else { word & MORE_FRAGMENTS };
        let place = (word & OFFSET).wrapping_add((at / 8) as u16) & OFFSET | more;
        fragment[2..4].copy_from_slice(&((HEADER + end - at) as u16).to_be_bytes());
        fragment[6..8].copy_from_slice(&place.to_be_bytes());
        fragment[10..12].fill(0);
        let sum = !checksum::fold(checksum::sum(&fragment[..HEADER]));
        fragment[10..12].copy_from_slice(&sum.to_be_bytes());
        at = end;
        Some(fragment)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use testkit::packet::{divisible, udp};

    use super::*;

    /// Offset in bytes, whether more follow, and data.
    fn parts(fragment: &[u8]) -> (usize, bool, &[u8]) {
        let word = u16::from_be_bytes([fragment[6], fragment[7]]);
        (usize::from(word & OFFSET) * 8, word & MORE_FRAGMENTS != 0, &fragment[HEADER..])
    }

    proptest! {
        #[test]
        fn fragments_add_up_to_the_packet(length in 0..5000_usize, most in 28..1600_usize) {
            let data: Vec<u8> = (0..length).map(|n| n as u8).collect();
            let frame = divisible(udp("192.0.2.1:1", "192.0.2.2:2").payload(&data).ip_id(7).build());
            let ip = &frame[14..];
            // Fragments may be cut again.
            let once = fragments(ip, most);
            let twice: Vec<Vec<u8>> = once.flat_map(|it| fragments(&it, 28).collect::<Vec<_>>()).collect();
            let cut: Vec<Vec<u8>> = fragments(ip, most).collect();
            for all in [cut, twice] {
                let mut whole: Vec<u8> = Vec::new();
                for (n, fragment) in all.iter().enumerate() {
                    prop_assert!(fragment.len() <= most);
                    prop_assert_eq!(checksum::fold(checksum::sum(&fragment[..HEADER])), 0xffff);
                    prop_assert_eq!(usize::from(u16::from_be_bytes([fragment[2], fragment[3]])), fragment.len());
                    let (offset, more, data) = parts(fragment);
                    prop_assert_eq!((offset, more), (whole.len(), n + 1 < all.len()));
                    whole.extend(data);
                }
                prop_assert_eq!(&whole, &ip[HEADER..]);
            }
        }
    }

    #[test]
    fn what_must_not_be_cut_is_not() {
        let mut frame = divisible(udp("192.0.2.1:1", "192.0.2.2:2").payload(&[1; 100]).build());
        assert!(is_divisible(&frame[14..]));
        assert_eq!(fragments(&frame[14..], 27).count(), 0);
        frame[14 + 6] |= 0x40;
        assert!(!is_divisible(&frame[14..]));
        let v6 = udp("[fd00::1]:1", "[fd00::2]:2").payload(&[1; 100]).build();
        assert!(!is_divisible(&v6[14..]));
    }
}
