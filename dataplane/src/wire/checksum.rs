//! The Internet checksum (RFC 1071, RFC 1624).

use super::{Headers, Kind};

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
pub fn fold(sum: u64) -> u16 {
    let (half, carries) = (sum as u32).overflowing_add((sum >> 32) as u32);
    let half = half + u32::from(carries);
    let (folded, carries) = (half as u16).overflowing_add((half >> 16) as u16);
    folded + u16::from(carries)
}

/// Whether a sum is zero in one's complement: a multiple of 0xffff.
#[inline(always)]
pub(super) fn is_zero(sum: u64) -> bool {
    // Only the quotients of multiples are as small as that (Hacker's Delight, section 10-17).
    const INVERSE: u64 = 0xfffe_fffe_fffe_ffff;
    sum.wrapping_mul(INVERSE) <= u64::MAX / 0xffff
}

/// Whether a sum may fold to `folded`, which has 16 bits.
#[inline(always)]
pub(super) fn may_equal(sum: u64, folded: u64) -> bool {
    is_zero(sum + (folded ^ 0xffff))
}

/// The sum of the pseudo header: the 8 (IPv4) or 32 (IPv6) address bytes, protocol and length.
#[inline]
pub fn pseudo(addresses: &[u8], protocol: u8, length: usize) -> u64 {
    sum(addresses) + u64::from(protocol) + length as u64
}

/// A sum over the 16-bit words of a number, not folded: words of 32 bits fold to the same.
#[inline]
pub fn sum_of(number: u128) -> u64 {
    let halves = [(number >> 64) as u64, number as u64];
    halves.iter().map(|half| (half >> 32) + (half & 0xffff_ffff)).sum()
}

/// The change of a sum when a number in it becomes another one (RFC 1624, equation 3: what is taken
/// away is added as its complement).
#[inline]
pub fn change(old: u128, new: u128) -> u64 {
    sum_of(new) + (4 * 0xffff_ffff - sum_of(old))
}

/// The same for a number of two words.
#[inline]
pub fn change_of_32(old: u32, new: u32) -> u64 {
    u64::from(new) + u64::from(!old)
}

/// A finished checksum after the sum of what it covers has changed by `change`, over bytes at an even
/// distance from its start (RFC 1624, equation 3).
#[inline]
pub fn updated(checksum: u16, change: u64) -> u16 {
    !fold(u64::from(!checksum) + change)
}

/// Lowers the time to live (or hop limit) by one and mends the IPv4 checksum (RFC 1624).
#[inline]
pub fn decrement_ttl(packet: &mut [u8], headers: &Headers) {
    decrement_ttl_at(packet, headers.l3.into(), headers.kind);
}

/// The same where the IP header starts at `l3`.
#[inline(always)]
pub(crate) fn decrement_ttl_at(packet: &mut [u8], l3: usize, kind: Kind) {
    let header = &mut packet[l3..l3 + 12];
    if kind == Kind::Ipv4 {
        header[8] -= 1;
        // Such sums are the same in either order of bytes (RFC 1071, section 2).
        let old = u16::from_ne_bytes([header[10], header[11]]);
        let (new, carries) = old.overflowing_add(0x0100_u16.to_be());
        let new = new + u16::from(carries);
        header[10..12].copy_from_slice(&new.to_ne_bytes());
    } else {
        header[7] -= 1;
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

/// Offset of the checksum in a UDP header.
pub(super) const UDP_FIELD: usize = 6;
/// Offset of the checksum in a TCP header.
pub(super) const TCP_FIELD: usize = 16;

/// The checksum over what sums up to `sum`, for a field at this place in its header. A computed
/// zero means "no checksum" to UDP, which has its other form instead (RFC 768).
#[inline]
pub fn finished(sum: u64, field: usize) -> u16 {
    match !fold(sum) {
        0 if field == UDP_FIELD => 0xffff,
        checksum => checksum,
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
        fn multiples_are_found(quotient in 0..u64::MAX / 0xffff, other: u64) {
            prop_assert!(is_zero(quotient * 0xffff));
            prop_assert_eq!(is_zero(other), other % 0xffff == 0);
        }

        #[test]
        fn sums_as_the_rfc_does(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(fold(sum(&bytes)), plain(&bytes));
        }
    }

    proptest! {
        #[test]
        fn a_replaced_part_changes_the_checksum_as_a_new_sum_would(
            mut bytes in proptest::collection::vec(any::<u8>(), 24..64),
            at in 0..3_usize,
            new: u128,
        ) {
            // A datagram of zeros only has two checksums that mean the same.
            bytes[23] |= 1;
            let before = !fold(sum(&bytes));
            let part = 2 * at..2 * at + 16;
            let old = u128::from_be_bytes(bytes[part.clone()].try_into().unwrap());
            bytes[part].copy_from_slice(&new.to_be_bytes());
            prop_assert_eq!(updated(before, change(old, new)), !fold(sum(&bytes)));
            let (before, last) = (!fold(sum(&bytes)), (old >> 96) as u32);
            bytes[2 * at..2 * at + 4].copy_from_slice(&last.to_be_bytes());
            let changed = change_of_32((new >> 96) as u32, last);
            prop_assert_eq!(updated(before, changed), !fold(sum(&bytes)));
        }
    }

    #[test]
    fn the_example_of_the_rfc() {
        assert_eq!(fold(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7])), 0xddf2);
    }
}
