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

use acl::Address;

use super::{ETHERNET, Flow, Headers, Kind, Mac, checksum, ip, protocol};

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
/// Adjacency limit of outer packets.
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

    /// Where the frame inside begins, if the packet is one of this overlay's.
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

/// The traffic class (RFC 2474, RFC 3168) of an IP packet.
pub fn class(frame: &[u8], headers: &Headers) -> u8 {
    let l3 = usize::from(headers.l3);
    match headers.kind {
        Kind::Ipv4 => frame[l3 + 1],
        _ => frame[l3] << 4 | frame[l3 + 1] >> 4,
    }
}

/// The congestion field of a traffic class (RFC 3168, section 5).
const CONGESTION: u8 = 0b11;
const NOT_CAPABLE: u8 = 0b00;
const CAPABLE_0: u8 = 0b10;
const CAPABLE_1: u8 = 0b01;

/// Combines the congestion mark of a tunnel packet with that of the packet inside (RFC 6040,
/// figure 4). `false` if the packet inside must be dropped: it met congestion and cannot say so.
#[must_use]
#[inline(always)]
pub fn combine_congestion(inner: &mut [u8], headers: &Headers, outer_class: u8) -> bool {
    let old = class(inner, headers);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::parse;

    const OVERLAY: Vxlan = Vxlan { network: 0x12_3456, port: 4789, group: true };

    fn ends(source: &str, destination: &str) -> Ends {
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
            assert_eq!(class(&packet, &headers), 0b10);
            let inside = OVERLAY.inside(&packet, &headers).unwrap();
            assert_eq!(packet[inside..], inner);
            assert_eq!(packet[inside - 8..inside - 4], [0x88, 0, 0xbe, 0xef]);
            let other = Vxlan { network: 1, ..OVERLAY };
            assert_eq!(other.inside(&packet, &headers), None);
            let other = Vxlan { port: 8472, ..OVERLAY };
            assert_eq!(other.inside(&packet, &headers), None);
        }
    }

    /// What the quick way takes the general way takes too.
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
                assert!(headers.ttl == 255 && headers.fragment == super::super::Fragment::Whole);
                assert_eq!(
                    (class(&packet, &headers) ^ packet[FRONT_V4 + ETHERNET + 1]) & CONGESTION,
                    0
                );
            }
        }
        assert!(taken > 10_000, "{taken}");
    }
}
