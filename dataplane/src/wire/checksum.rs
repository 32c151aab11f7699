//! The Internet checksum (RFC 1071, RFC 1624) and the completion of checksums that a
//! sender left to hardware that is not there.

use super::{Fragment, Headers, Kind, protocol};
use crate::frame::PartialChecksum;
use crate::{Frame, Memory};

/// The one's complement sum of big-endian 16-bit words, not folded. A last odd byte counts as
/// the high half of a word.
#[inline]
pub fn sum(bytes: &[u8]) -> u64 {
    // Words are added four at a time in native order; the carries of the 32-bit halves gather
    // in the upper part of the accumulators.
    let mut chunks = bytes.chunks_exact(8);
    let (mut low, mut high) = (0_u64, 0_u64);
    for chunk in &mut chunks {
        let word = u64::from_ne_bytes(chunk.try_into().expect("eight bytes"));
        low += word & 0xffff_ffff;
        high += word >> 32;
    }
    let mut rest = [0_u8; 8];
    rest[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
    let word = u64::from_ne_bytes(rest);
    let native = fold(low + high + (word & 0xffff_ffff) + (word >> 32));
    u64::from(u16::from_be_bytes(native.to_ne_bytes()))
}

/// Folds a sum into 16 bits.
#[inline]
pub fn fold(mut sum: u64) -> u16 {
    sum = (sum & 0xffff_ffff) + (sum >> 32);
    sum = (sum & 0xffff_ffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

/// The sum of the pseudo header: the 8 (IPv4) or 32 (IPv6) address bytes, protocol and length.
#[inline]
pub fn pseudo(addresses: &[u8], protocol: u8, length: usize) -> u64 {
    sum(addresses) + u64::from(protocol) + length as u64
}

/// A finished checksum after `old` bytes, at an even distance from its start, have become `new`
/// (RFC 1624, equation 3).
#[inline]
pub fn replace(checksum: u16, old: &[u8], new: &[u8]) -> u16 {
    !fold(u64::from(!checksum) + u64::from(!fold(sum(old))) + sum(new))
}

/// Lowers the time to live (or hop limit) by one and mends the IPv4 checksum (RFC 1624).
#[inline]
pub fn decrement_ttl(packet: &mut [u8], headers: &Headers) {
    let l3 = usize::from(headers.l3);
    if headers.kind == Kind::Ipv4 {
        let header = &mut packet[l3..l3 + 12];
        header[8] -= 1;
        // Such sums are the same in either order of bytes (RFC 1071, section 2).
        let old = u16::from_ne_bytes([header[10], header[11]]);
        let (new, carries) = old.overflowing_add(0x0100_u16.to_be());
        let new = new + u16::from(carries);
        header[10..12].copy_from_slice(&new.to_ne_bytes());
    } else {
        packet[l3 + 7] -= 1;
    }
}

/// A sum over bytes that come in pieces.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    total: u64,
    /// Whether the next piece begins in the middle of a word.
    is_odd: bool,
}

impl Sum {
    /// Adds the next piece.
    #[inline]
    pub fn add(&mut self, bytes: &[u8]) {
        let sum = fold(sum(bytes));
        // The sum of bytes that stand one place off is the sum with its bytes exchanged (RFC
        // 1071, section 2).
        self.total += u64::from(if self.is_odd { sum.swap_bytes() } else { sum });
        self.is_odd ^= bytes.len() % 2 == 1;
    }

    /// All pieces together, not folded.
    pub fn total(&self) -> u64 {
        self.total
    }
}

/// A TCP or UDP checksum that its sender left unfinished.
///
/// A kernel that counts on hardware (and veth claims to be such) leaves the folded sum of the
/// pseudo header in the field. Finding exactly that is the sign; recomputing a checksum that
/// was finished and happens to look so changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// Where the checksum stands in the packet, and in its header.
    at: usize,
    field: usize,
    pseudo: u64,
}

/// Where UDP has its checksum.
const UDP_FIELD: usize = 6;

/// The checksum over what sums up to `sum`, for a field at this place in its header. A computed
/// zero means "no checksum" to UDP, which has its other form instead (RFC 768).
#[inline]
pub fn finished(sum: u64, field: usize) -> u16 {
    match !fold(sum) {
        0 if field == UDP_FIELD => 0xffff,
        checksum => checksum,
    }
}

/// The packet's checksum if it was left unfinished.
#[inline(always)]
pub fn unfinished(packet: &[u8], headers: &Headers) -> Option<Unfinished> {
    let field = field(headers)?;
    let at = usize::from(headers.l4) + field;
    let pseudo = pseudo_of(packet, headers);
    let stated = u16::from_be_bytes([packet[at], packet[at + 1]]);
    // One's complement numbers are the same if they are modulo 0xffff; the exact comparison is made
    // only where that is so.
    let may_be = (pseudo + u64::from(!stated)).is_multiple_of(0xffff);
    (may_be && stated == fold(pseudo)).then_some(Unfinished { at, field, pseudo })
}

/// Where the checksum stands in a TCP or UDP header.
#[inline]
fn field(headers: &Headers) -> Option<usize> {
    match headers.flow.protocol {
        _ if headers.fragment != Fragment::Whole => None,
        protocol::TCP => Some(16),
        protocol::UDP => Some(UDP_FIELD),
        _ => None,
    }
}

/// The sum of a packet's pseudo header.
#[inline]
fn pseudo_of(packet: &[u8], headers: &Headers) -> u64 {
    let l3 = usize::from(headers.l3);
    match headers.kind {
        Kind::Ipv4 => {
            // Two words of 32 bits fold to the same sum as four of 16.
            let addresses: [u8; 8] = packet[l3 + 12..l3 + 20].try_into().expect("eight bytes");
            let both = u64::from_be_bytes(addresses);
            (both >> 32)
                + (both & 0xffff_ffff)
                + u64::from(headers.flow.protocol)
                + headers.payload() as u64
        }
        _ => pseudo(&packet[l3 + 8..l3 + 40], headers.flow.protocol, headers.payload()),
    }
}

/// Sees to a checksum that its sender left unfinished: notes that it still is if it `may_stay` so
/// ([`Memory::complete_checksum`] completes it later), completes it otherwise.
#[inline]
pub fn settle(memory: &Memory, frame: &mut Frame, headers: &Headers, may_stay: bool) {
    let Some(unfinished) = unfinished(memory.bytes(frame), headers) else { return };
    // What completes it later sums up to the end of the frame.
    let may_stay = may_stay && usize::from(headers.end) == frame.len();
    let field = unfinished.at as u16 - headers.l4;
    match PartialChecksum::new(headers.l4, field) {
        Some(open) if may_stay => memory.set_partial_checksum(frame, open),
        _ if frame.is_chain() => drop(complete_chain(memory, frame, headers)),
        _ => drop(complete(memory.bytes_mut(frame), headers)),
    }
}

/// Makes the sum of the pseudo header, which stands in the place of an unfinished checksum, that
/// of the packet's present addresses.
pub fn renew_pseudo(packet: &mut [u8], headers: &Headers) {
    if let Some(field) = field(headers) {
        let at = usize::from(headers.l4) + field;
        let sum = fold(pseudo_of(packet, headers));
        packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
}

impl Unfinished {
    /// Completes it in a packet that stands in one frame.
    #[inline(never)]
    fn complete(self, packet: &mut [u8], headers: &Headers) {
        packet[self.at..self.at + 2].fill(0);
        let rest = sum(&packet[usize::from(headers.l4)..usize::from(headers.end)]);
        self.write(packet, rest);
    }

    /// Writes the checksum, where `rest` is the sum of all bytes behind the IP header but of the
    /// field itself, which is taken for zero.
    fn write(self, packet: &mut [u8], rest: u64) {
        let whole = finished(self.pseudo + rest, self.field);
        packet[self.at..self.at + 2].copy_from_slice(&whole.to_be_bytes());
    }
}

/// Completes a TCP or UDP checksum that its sender left unfinished, in a packet that stands in
/// one frame. `true` if one was completed.
#[inline]
pub fn complete(packet: &mut [u8], headers: &Headers) -> bool {
    let Some(unfinished) = unfinished(packet, headers) else { return false };
    unfinished.complete(packet, headers);
    true
}

/// The same for a packet that stretches over several frames.
pub fn complete_chain(memory: &Memory, frame: &mut Frame, headers: &Headers) -> bool {
    let Some(unfinished) = unfinished(memory.bytes(frame), headers) else { return false };
    memory.bytes_mut(frame)[unfinished.at..unfinished.at + 2].fill(0);
    let mut rest = Sum::default();
    for_each_piece(memory, frame, headers, |piece| rest.add(piece));
    unfinished.write(memory.bytes_mut(frame), rest.total());
    true
}

/// Calls `each` with the pieces of what follows the IP header.
pub(super) fn for_each_piece(
    memory: &Memory,
    frame: &Frame,
    headers: &Headers,
    mut each: impl FnMut(&[u8]),
) {
    let (mut skip, mut left) = (usize::from(headers.l4), headers.payload());
    for chunk in memory.chunks(frame) {
        let piece = &chunk[skip.min(chunk.len())..];
        let piece = &piece[..piece.len().min(left)];
        each(piece);
        skip -= skip.min(chunk.len());
        left -= piece.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Straight from RFC 1071, section 4.1.
    fn plain(bytes: &[u8]) -> u16 {
        let mut sum = 0_u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
        }
        while sum >> 16 != 0 {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    proptest! {
        #[test]
        fn pieces_sum_as_the_whole_does(
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..8),
        ) {
            let mut sum = Sum::default();
            pieces.iter().for_each(|piece| sum.add(piece));
            prop_assert_eq!(fold(sum.total()), plain(&pieces.concat()));
        }

        #[test]
        fn sums_as_the_rfc_does(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(fold(sum(&bytes)), plain(&bytes));
        }
    }

    proptest! {
        #[test]
        fn a_replaced_part_changes_the_checksum_as_a_new_sum_would(
            mut bytes in proptest::collection::vec(any::<u8>(), 8..64),
            at in 0..2_usize,
            new in any::<[u8; 4]>(),
        ) {
            // A datagram of zeros only has two checksums that mean the same.
            bytes[7] |= 1;
            let before = !fold(sum(&bytes));
            let old = bytes[2 * at..2 * at + 4].to_vec();
            bytes[2 * at..2 * at + 4].copy_from_slice(&new);
            prop_assert_eq!(replace(before, &old, &new), !fold(sum(&bytes)));
        }
    }

    #[test]
    fn the_example_of_the_rfc() {
        assert_eq!(fold(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7])), 0xddf2);
    }
}
