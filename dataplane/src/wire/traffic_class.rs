//! The traffic class of IP packets (RFC 2474), and the congestion mark in it (RFC 3168).

use super::{Headers, Kind, checksum};

/// The traffic class of an IP packet.
pub fn of(frame: &[u8], headers: &Headers) -> u8 {
    let l3 = usize::from(headers.l3);
    match headers.kind {
        Kind::Ipv4 => frame[l3 + 1],
        _ => frame[l3] << 4 | frame[l3 + 1] >> 4,
    }
}

/// The congestion field of a traffic class (RFC 3168, section 5).
pub(super) const CONGESTION: u8 = 0b11;
const NOT_CAPABLE: u8 = 0b00;
const CAPABLE_0: u8 = 0b10;
const CAPABLE_1: u8 = 0b01;

/// Combines the congestion mark of a tunnel packet with that of the packet inside (RFC 6040,
/// figure 4). `false` if the packet inside must be dropped: it met congestion and cannot say so.
#[must_use]
#[inline(always)]
pub fn combine_congestion(inner: &mut [u8], headers: &Headers, outer_class: u8) -> bool {
    let old = of(inner, headers);
    if (old ^ outer_class) & CONGESTION == 0 {
        return true;
    }
    let mark = match (old & CONGESTION, outer_class & CONGESTION) {
        (NOT_CAPABLE, CONGESTION) => return false,
        (NOT_CAPABLE, _) => NOT_CAPABLE,
        (_, CONGESTION) => CONGESTION,
        (CAPABLE_0, CAPABLE_1) => CAPABLE_1,
        (mark, _) => mark,
    };
    if mark != old & CONGESTION {
        set_class(inner, headers, old & !CONGESTION | mark);
    }
    true
}

/// Writes the traffic class of an IP packet.
fn set_class(packet: &mut [u8], headers: &Headers, new: u8) {
    let l3 = usize::from(headers.l3);
    match headers.kind {
        Kind::Ipv4 => {
            let old = std::mem::replace(&mut packet[l3 + 1], new);
            let sum = u16::from_be_bytes([packet[l3 + 10], packet[l3 + 11]]);
            let sum = checksum::updated(sum, checksum::change_of_32(old.into(), new.into()));
            packet[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
        }
        _ => {
            packet[l3] = packet[l3] & 0xf0 | new >> 4;
            packet[l3 + 1] = packet[l3 + 1] & 0x0f | new << 4;
        }
    }
}
