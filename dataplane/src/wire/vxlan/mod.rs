//! VXLAN (RFC 7348): packets between nodes travel inside UDP.
//!
//! ```text
//! Ethernet │ IPv4 or IPv6 │ UDP │ VXLAN │ Ethernet │ the packet
//! ```
//!
//! The UDP checksum is zero, which is allowed over IPv6 too where both ends agree (RFC 6935).
//! The outer packet carries the inner one's traffic class; a congestion mark that it gets on its
//! way is combined with the inner one's at the end of the tunnel (RFC 6040).
//!
//! Tunnel packets leave with the largest hop limit, so that a receiver on the same link can detect
//! a router in between (RFC 5082).

mod outer;

use acl::Address;

use super::{ETHERNET, Headers, Mac, checksum, protocol};
pub(crate) use outer::{Outer, may_be_to};

/// The parameters of an overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Vxlan {
    /// VXLAN network identifier, 24 bits.
    pub network: u32,
    /// UDP port of tunnel ends.
    pub port: u16,
    /// Whether the group policy field (draft-smith-vxlan-group-policy) carries the low 16 bits of
    /// the source's identity.
    pub group: bool,
}

const UDP: usize = 8;
const VXLAN: usize = 8;
const V4: usize = 20;
const V6: usize = 40;

/// The network identifier is valid.
const VALID: u8 = 0x08;
/// The group policy field is valid.
const GROUP: u8 = 0x80;
/// Hop limit of outer packets.
pub const HOP_LIMIT: u8 = 255;

/// The ends of a tunnel for one packet.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// MAC address of the uplink itself.
    pub source_mac: Mac,
    /// MAC address of the next hop.
    pub next_hop: Mac,
    /// This node's end.
    pub source: Address,
    /// The other node's end, of the same family.
    pub destination: Address,
}

impl Ends {
    /// The outer Ethernet header.
    #[inline(always)]
    fn ethernet(&self, ethertype: [u8; 2]) -> [u8; ETHERNET] {
        let mut header = [0; ETHERNET];
        header[..6].copy_from_slice(&self.next_hop);
        header[6..12].copy_from_slice(&self.source_mac);
        header[12..].copy_from_slice(&ethertype);
        header
    }
}

impl Vxlan {
    /// Bytes that stand in front of a frame in a tunnel, the outer Ethernet header included.
    pub const fn front(v4: bool) -> usize {
        ETHERNET + if v4 { V4 } else { V6 } + UDP + VXLAN
    }

    /// Bytes by which the largest packet inside is smaller than the largest one outside.
    pub const fn overhead(v4: bool) -> usize {
        Self::front(v4)
    }

    /// Writes what stands in front of the frame inside; see [`Front::write`].
    pub fn write(
        &self,
        packet: &mut [u8],
        length: usize,
        ends: &Ends,
        hash: u64,
        class: u8,
        group: u16,
    ) {
        Front::new(self, ends).write(packet, length, hash, class, group);
    }

    #[inline]
    fn write_tunnel(&self, tunnel: &mut [u8; UDP + VXLAN], length: u16, hash: u64, group: u16) {
        tunnel[..2].copy_from_slice(&Self::source_port(hash).to_be_bytes());
        tunnel[2..4].copy_from_slice(&self.port.to_be_bytes());
        tunnel[4..6].copy_from_slice(&length.to_be_bytes());
        tunnel[6..8].fill(0);
        tunnel[8..].copy_from_slice(&self.header(group));
    }

    /// The port that packets of a connection with this hash leave from: one of the dynamic ports,
    /// 49152 to 65535 (RFC 6335).
    pub const fn source_port(hash: u64) -> u16 {
        0xc000 | (hash >> 40) as u16 & 0x3fff
    }

    /// The VXLAN header; `group` is in it where the overlay has group policies.
    pub fn header(&self, group: u16) -> [u8; VXLAN] {
        let [a, b, c, d] = (self.network << 8).to_be_bytes();
        let (flags, [high, low]) = match self.group {
            true => (VALID | GROUP, group.to_be_bytes()),
            false => (VALID, [0; 2]),
        };
        [flags, 0, high, low, a, b, c, d]
    }

    /// Offset of the frame inside, if the packet is one of this overlay's.
    pub fn inside(&self, frame: &[u8], headers: &Headers) -> Option<usize> {
        let is_ours =
            headers.flow.protocol == protocol::UDP && headers.flow.destination_port == self.port;
        let at = usize::from(headers.l4) + UDP;
        let header = frame.get(at..at + VXLAN)?;
        let network = u32::from_be_bytes([0, header[4], header[5], header[6]]);
        let inside = at + VXLAN;
        let is_whole = inside + ETHERNET <= usize::from(headers.end);
        (is_ours && is_whole && header[0] & VALID != 0 && network == self.network).then_some(inside)
    }
}

const FRONT_V4: usize = Vxlan::front(true);
const FRONT_V6: usize = Vxlan::front(false);

/// The headers in front of the frames of one tunnel: made once for many packets, but for what differs
/// from one to the next.
#[derive(Clone, Copy, Debug)]
pub struct Front {
    overlay: Vxlan,
    ends: Ends,
    /// Towards an end of IPv4, without lengths, traffic class, checksum, source port and group.
    v4: [u8; FRONT_V4],
    /// The sum over the IPv4 header in it.
    sum: u64,
}

impl Front {
    /// The headers of the tunnel between these ends.
    pub fn new(overlay: &Vxlan, ends: &Ends) -> Self {
        const IP: usize = ETHERNET;
        /// The other end does not reassemble fragments.
        const DO_NOT_FRAGMENT: u16 = 0x4000;
        let mut v4 = [0; FRONT_V4];
        v4[..ETHERNET].copy_from_slice(&ends.ethernet([0x08, 0x00]));
        v4[IP] = 0x45;
        v4[IP + 6..IP + 8].copy_from_slice(&DO_NOT_FRAGMENT.to_be_bytes());
        v4[IP + 8..IP + 10].copy_from_slice(&[HOP_LIMIT, protocol::UDP]);
        let [source, destination] = [ends.source, ends.destination].map(|it| it.bits() as u32);
        v4[IP + 12..IP + 16].copy_from_slice(&source.to_be_bytes());
        v4[IP + 16..IP + 20].copy_from_slice(&destination.to_be_bytes());
        let sum = checksum::sum(&v4[IP..IP + V4]);
        overlay.write_tunnel(v4.last_chunk_mut().expect("UDP and VXLAN"), 0, 0, 0);
        Self { overlay: *overlay, ends: *ends, v4, sum }
    }

    /// Its length in bytes.
    #[inline]
    pub fn length(&self) -> usize {
        Vxlan::front(self.ends.destination.is_v4())
    }

    /// Writes it into a packet of `length` bytes, which it is the first [`Self::length`] of.
    ///
    /// `hash` is the inner connection's: packets of one connection keep their order on the
    /// underlay, others may take other paths (RFC 7348, section 4.1). `class` is the inner packet's
    /// traffic class.
    #[inline(always)]
    pub fn write(&self, packet: &mut [u8], length: usize, hash: u64, class: u8, group: u16) {
        let udp_length = (UDP + VXLAN + length - self.length()) as u16;
        match self.ends.destination.is_v4() {
            true => {
                let front = packet.first_chunk_mut().expect("what stands in front");
                self.write_v4(front, udp_length, hash, class, group);
            }
            false => {
                let front = packet.first_chunk_mut().expect("what stands in front");
                self.write_v6(front, udp_length, hash, class, group);
            }
        }
    }

    // Fields stand at fixed places, so that nothing is checked but the length of the whole.

    #[inline(always)]
    fn write_v4(
        &self,
        front: &mut [u8; FRONT_V4],
        udp_length: u16,
        hash: u64,
        class: u8,
        group: u16,
    ) {
        const IP: usize = ETHERNET;
        const TUNNEL: usize = IP + V4;
        *front = self.v4;
        let length = V4 as u16 + udp_length;
        let sum = !checksum::fold(self.sum + u64::from(class) + u64::from(length));
        front[IP + 1] = class;
        front[IP + 2..IP + 4].copy_from_slice(&length.to_be_bytes());
        front[IP + 10..IP + 12].copy_from_slice(&sum.to_be_bytes());
        front[TUNNEL..TUNNEL + 2].copy_from_slice(&Vxlan::source_port(hash).to_be_bytes());
        front[TUNNEL + 4..TUNNEL + 6].copy_from_slice(&udp_length.to_be_bytes());
        if self.overlay.group {
            front[TUNNEL + UDP..].copy_from_slice(&self.overlay.header(group));
        }
    }

    #[inline(never)]
    fn write_v6(
        &self,
        front: &mut [u8; FRONT_V6],
        udp_length: u16,
        hash: u64,
        class: u8,
        group: u16,
    ) {
        const IP: usize = ETHERNET;
        let Self { overlay, ends, .. } = self;
        front[..ETHERNET].copy_from_slice(&ends.ethernet([0x86, 0xdd]));
        let start = 6 << 28 | u32::from(class) << 20;
        front[IP..IP + 4].copy_from_slice(&start.to_be_bytes());
        front[IP + 4..IP + 6].copy_from_slice(&udp_length.to_be_bytes());
        front[IP + 6..IP + 8].copy_from_slice(&[protocol::UDP, HOP_LIMIT]);
        front[IP + 8..IP + 24].copy_from_slice(&ends.source.bits().to_be_bytes());
        front[IP + 24..IP + 40].copy_from_slice(&ends.destination.bits().to_be_bytes());
        let tunnel = front.last_chunk_mut().expect("UDP and VXLAN");
        overlay.write_tunnel(tunnel, udp_length, hash, group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{parse, traffic_class};

    pub(super) const OVERLAY: Vxlan = Vxlan { network: 0x12_3456, port: 4789, group: true };

    pub(super) fn ends(source: &str, destination: &str) -> Ends {
        let address = |text: &str| text.parse::<std::net::IpAddr>().unwrap().into();
        Ends {
            source_mac: [2, 0, 0, 0, 0, 1],
            next_hop: [2, 0, 0, 0, 0, 2],
            source: address(source),
            destination: address(destination),
        }
    }

    #[test]
    fn a_frame_comes_out_as_it_went_in() {
        let inner = testkit::packet::udp("10.1.0.2:5", "10.2.0.3:53").payload(b"question").build();
        for (source, destination) in [("192.0.2.1", "192.0.2.2"), ("fd00::1", "fd00::2")] {
            let ends = ends(source, destination);
            let front = Vxlan::front(ends.destination.is_v4());
            let mut packet = vec![0xee; front];
            packet.extend(&inner);
            let length = packet.len();
            OVERLAY.write(&mut packet, length, &ends, u64::MAX, 0b10, 0xbeef);
            let headers = parse(&packet).unwrap();
            assert_eq!(
                (headers.flow.source, headers.flow.destination),
                (ends.source, ends.destination)
            );
            assert_eq!((headers.flow.source_port, headers.flow.destination_port), (65_535, 4789));
            assert_eq!(traffic_class::of(&packet, &headers), 0b10);
            let inside = OVERLAY.inside(&packet, &headers).unwrap();
            assert_eq!(packet[inside..], inner);
            assert_eq!(packet[inside - 8..inside - 4], [0x88, 0, 0xbe, 0xef]);
            let other = Vxlan { network: 1, ..OVERLAY };
            assert_eq!(other.inside(&packet, &headers), None);
            let other = Vxlan { port: 8472, ..OVERLAY };
            assert_eq!(other.inside(&packet, &headers), None);
        }
    }
}
