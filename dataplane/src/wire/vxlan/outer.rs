//! Outer headers that a fast path of the parser recognizes.

use acl::Address;

use super::{FRONT_V4, UDP, V4, VALID, Vxlan};
use crate::wire::traffic_class::CONGESTION;
use crate::wire::{ETHERNET, Flow, ip, protocol};

/// Whether a frame, if it is of plain IPv4 and of UDP or TCP, is to this port, which is in the order of the wire.
#[inline(always)]
pub(crate) fn may_be_to(port: u32, frame: &[u8]) -> bool {
    const PORT: usize = ETHERNET + V4 + 2;
    let Some(start) = frame.first_chunk::<{ PORT + 6 }>() else { return false };
    u32::from(u16::from_ne_bytes([start[PORT], start[PORT + 1]])) == port
}

/// The outer headers that all packets of one tunnel over IPv4 have: a fast path of the parser and of
/// [`Vxlan::inside`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outer {
    /// Both addresses, as they stand in the header.
    ends: [u8; 8],
    /// Destination port, as it stands in the header.
    port: [u8; 2],
    network: u32,
    least_hop_limit: u8,
}

impl Outer {
    /// Bytes in front of the frame inside.
    pub(crate) const LENGTH: usize = FRONT_V4;
    /// Number of tunnels that have places; see [`Self::place_of`].
    pub(crate) const PLACES: usize = 16;

    /// The place among [`Self::PLACES`] of the tunnel that a packet may be of, by the last byte of its source.
    #[inline(always)]
    pub(crate) fn place_of(frame: &[u8]) -> usize {
        const LAST: usize = ETHERNET + 15;
        usize::from(frame.get(LAST).copied().unwrap_or_default()) % Self::PLACES
    }

    /// The place of this tunnel.
    pub(crate) fn place(&self) -> usize {
        usize::from(self.ends[3]) % Self::PLACES
    }

    /// The tunnel whose packets show this flow, which a parser took.
    pub(crate) fn new(overlay: &Vxlan, flow: &Flow, least_hop_limit: u8) -> Self {
        let v4 = |address: Address| address.bits() as u32;
        let ends = u64::from(v4(flow.source)) << 32 | u64::from(v4(flow.destination));
        let Vxlan { network, port, .. } = *overlay;
        Self { ends: ends.to_be_bytes(), port: port.to_be_bytes(), network, least_hop_limit }
    }

    /// Whether a packet of `length` bytes, of which `frame` is the first, is one of the tunnel's, has
    /// nothing wrong with it, and the packet inside, if it is of IPv4, has the same congestion mark.
    #[inline(always)]
    pub(crate) fn is_of(&self, frame: &[u8], length: usize) -> bool {
        const IP: usize = ETHERNET;
        const TUNNEL: usize = IP + V4;
        const INSIDE: usize = FRONT_V4 + ETHERNET;
        let Some(start) = frame.first_chunk::<{ INSIDE + 2 }>() else { return false };
        let short = |at: usize| usize::from(u16::from_be_bytes([start[at], start[at + 1]]));
        let word = |at: usize| {
            u32::from_be_bytes([start[at], start[at + 1], start[at + 2], start[at + 3]])
        };
        let (total, datagram) = (short(IP + 2), short(TUNNEL + 4));
        // Evaluated without branches: nearly all packets pass.
        (start[IP + 12..IP + 20] == self.ends)
            & (start[TUNNEL + 2..TUNNEL + 4] == self.port)
            & (start[12..15] == [8, 0, 0x45])
            & (start[6] & 1 == 0)
            & !ip::is_fragment(&start[IP..TUNNEL])
            & (start[IP + 8] >= self.least_hop_limit)
            & (start[IP + 9] == protocol::UDP)
            & (IP + total <= length)
            & (length <= usize::from(u16::MAX))
            & (INSIDE <= IP + total)
            & (datagram >= UDP)
            & (V4 + datagram <= total)
            & ip::header_sums_up(&start[IP..TUNNEL])
            & (start[TUNNEL + UDP] & VALID != 0)
            & (word(TUNNEL + UDP + 4) >> 8 == self.network)
            & ((start[IP + 1] ^ start[INSIDE + 1]) & CONGESTION == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{OVERLAY, ends};
    use super::*;
    use crate::wire::{Fragment, checksum, parse, traffic_class};

    /// The general parser takes every packet that the fast path takes.
    #[test]
    fn the_quick_way_is_the_general_way() {
        let inner = testkit::packet::udp("10.1.0.2:5", "10.1.0.3:7").payload(b"abc").build();
        let ends = ends("192.0.2.1", "192.0.2.2");
        let mut sound = vec![0; FRONT_V4];
        sound.extend_from_slice(&inner);
        let length = sound.len();
        OVERLAY.write(&mut sound, length, &ends, u64::MAX, 0, 7);
        let outer = Outer::new(&OVERLAY, &parse(&sound).unwrap().flow, 255);
        assert!(outer.is_of(&sound, length) && may_be_to(4789_u16.to_be().into(), &sound));
        let mut taken = 0;
        // Every byte of the headers with every value, the checksum mended or not, and cut short.
        for (at, value) in
            (0..FRONT_V4 + 2 + ETHERNET).flat_map(|at| (0..=255).map(move |it| (at, it)))
        {
            for (mends, length) in [(false, length), (true, length), (true, FRONT_V4 + 9)] {
                let mut packet = sound.clone();
                packet[at] = value;
                if mends {
                    packet[ETHERNET + 10..ETHERNET + 12].fill(0);
                    let sum = !checksum::fold(checksum::sum(&packet[ETHERNET..ETHERNET + V4]));
                    packet[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&sum.to_be_bytes());
                }
                packet.truncate(length);
                if !outer.is_of(&packet, length) {
                    continue;
                }
                taken += 1;
                let headers = parse(&packet).expect("what the general parser takes");
                assert_eq!(OVERLAY.inside(&packet, &headers), Some(FRONT_V4));
                let ends_at = (headers.flow.source, headers.flow.destination);
                assert_eq!(ends_at, (ends.source, ends.destination));
                assert!(headers.ttl == 255 && headers.fragment == Fragment::Whole);
                assert_eq!(
                    (traffic_class::of(&packet, &headers) ^ packet[FRONT_V4 + ETHERNET + 1])
                        & CONGESTION,
                    0
                );
            }
        }
        assert!(taken > 10_000, "{taken}");
    }
}
