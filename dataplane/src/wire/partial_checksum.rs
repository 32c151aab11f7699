//! Partial checksums (Linux: `CHECKSUM_PARTIAL`): detection and completion.
//!
//! A kernel that counts on hardware (veth claims to be such) leaves the folded sum of the pseudo
//! header in the checksum field of TCP and UDP. Exactly that value is the sign of a partial checksum;
//! completing a complete checksum that happens to have it does not change it.

use std::num::NonZero;

use super::checksum::{TCP_FIELD, UDP_FIELD, finished, fold, may_equal, pseudo, sum, sum_of};
use super::{Flow, Fragment, Headers, Kind, protocol};

/// Coverage and place of a checksum that is still to be completed.
///
/// The field holds the folded sum of the pseudo header; the bytes from `start` to the packet's end
/// are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialChecksum {
    start: NonZero<u16>,
    field: u16,
}

impl PartialChecksum {
    /// A checksum over all bytes from `start` on, with its field at `start + field`. Returns `None`
    /// for offset 0, where no checksum starts.
    pub fn new(start: u16, field: u16) -> Option<Self> {
        NonZero::new(start).map(|start| Self { start, field })
    }

    /// Offset of the first byte covered, from the packet's start.
    pub fn start(self) -> usize {
        usize::from(self.start.get())
    }

    /// Offset of the checksum from [`PartialChecksum::start`].
    pub fn field(self) -> usize {
        usize::from(self.field)
    }

    /// Completes the checksum in a packet of one frame, or in a copy of a whole packet. It covers
    /// all bytes of the slice from `start` on.
    #[inline(never)]
    pub fn complete(self, packet: &mut [u8]) {
        self.write(packet, sum(&packet[self.start()..]));
    }

    /// Writes the checksum, where `sum` covers all bytes from `start` on.
    pub(crate) fn write(self, packet: &mut [u8], sum: u64) {
        let whole = finished(sum, self.field());
        let at = self.start() + self.field();
        packet[at..at + 2].copy_from_slice(&whole.to_be_bytes());
    }
}

/// Finds the packet's partial checksum.
#[inline]
pub fn find(packet: &[u8], headers: &Headers) -> Option<PartialChecksum> {
    let field = field(headers)?;
    let at = usize::from(headers.l4) + field;
    let pseudo = match headers.kind {
        // Two words of 32 bits fold to the same sum as four of 16.
        Kind::Ipv4 => {
            let low = |address: acl::Address| address.bits() as u64 & 0xffff_ffff;
            low(headers.flow.source)
                + low(headers.flow.destination)
                + u64::from(headers.flow.protocol)
                + headers.payload() as u64
        }
        _ => {
            let Flow { source, destination, protocol, .. } = &headers.flow;
            sum_of(source.bits())
                + sum_of(destination.bits())
                + u64::from(*protocol)
                + headers.payload() as u64
        }
    };
    let stated: [u8; 2] = packet[at..at + 2].try_into().expect("two bytes");
    let stated = u16::from_be_bytes(stated);
    let is_partial = may_equal(pseudo, stated.into()) && stated == fold(pseudo);
    if is_partial { PartialChecksum::new(headers.l4, field as u16) } else { None }
}

/// Completes the packet's checksum if it is partial, in a packet of one frame. Returns whether it
/// was.
#[inline]
pub fn complete(packet: &mut [u8], headers: &Headers) -> bool {
    let Some(partial) = find(packet, headers) else { return false };
    partial.complete(&mut packet[..usize::from(headers.end)]);
    true
}

/// Replaces the sum of the pseudo header in the field of a partial checksum by that of the packet's
/// present addresses.
pub fn renew_pseudo(packet: &mut [u8], headers: &Headers) {
    if let Some(field) = field(headers) {
        let at = usize::from(headers.l4) + field;
        let sum = fold(pseudo_of(packet, headers));
        packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Offset of the checksum in the packet's TCP or UDP header.
#[inline]
fn field(headers: &Headers) -> Option<usize> {
    match headers.flow.protocol {
        _ if headers.fragment != Fragment::Whole => None,
        protocol::TCP => Some(TCP_FIELD),
        protocol::UDP => Some(UDP_FIELD),
        _ => None,
    }
}

/// The sum of a packet's pseudo header.
#[inline(never)]
fn pseudo_of(packet: &[u8], headers: &Headers) -> u64 {
    let l3 = usize::from(headers.l3);
    let addresses = match headers.kind {
        Kind::Ipv4 => &packet[l3 + 12..l3 + 20],
        _ => &packet[l3 + 8..l3 + 40],
    };
    pseudo(addresses, headers.flow.protocol, headers.payload())
}
