//! Transport headers with their checksums.

use std::net::IpAddr;

use etherparse::checksum::Sum16BitWords;
use etherparse::{IpNumber, TcpHeader};

/// A transport header, without the payload.
#[derive(Clone, Debug)]
pub(super) enum Transport {
    Tcp(Box<TcpHeader>),
    Udp { ports: [u16; 2] },
    Sctp { ports: [u16; 2], chunk: u8 },
    Icmp { kind: u8, code: u8, rest: [u8; 4] },
    Other(u8),
}

impl Transport {
    /// The protocol number between addresses of `source`'s family.
    pub(super) fn protocol(&self, source: IpAddr) -> u8 {
        match self {
            Self::Tcp(_) => IpNumber::TCP.0,
            Self::Udp { .. } => IpNumber::UDP.0,
            Self::Sctp { .. } => IpNumber::SCTP.0,
            Self::Icmp { .. } if source.is_ipv4() => IpNumber::ICMP.0,
            Self::Icmp { .. } => IpNumber::IPV6_ICMP.0,
            Self::Other(number) => *number,
        }
    }

    /// Header and payload, with checksums.
    pub(super) fn bytes(&self, source: IpAddr, destination: IpAddr, payload: &[u8]) -> Vec<u8> {
        let summed = |mut bytes: Vec<u8>, at: usize, pseudo: bool| {
            let start =
                if pseudo { self.pseudo_header(source, destination, bytes.len()) } else { vec![] };
            let sum = Sum16BitWords::new().add_slice(&start).add_slice(&bytes);
            // The sum is in the byte order of the machine, as the bytes were.
            let sum = match self {
                // In UDP, zero stands for "no checksum" (RFC 768).
                Self::Udp { .. } => sum.to_ones_complement_with_no_zero(),
                _ => sum.ones_complement(),
            };
            bytes[at..at + 2].copy_from_slice(&sum.to_ne_bytes());
            bytes
        };
        match self {
            Self::Tcp(header) => {
                let header = TcpHeader { checksum: 0, ..(**header).clone() };
                summed([&header.to_bytes(), payload].concat(), 16, true)
            }
            Self::Udp { ports: [from, to] } => {
                let length = 8 + payload.len() as u16;
                let header = [from, to, &length, &0].map(|field| field.to_be_bytes());
                summed([header.as_flattened(), payload].concat(), 6, true)
            }
            Self::Icmp { kind, code, rest } => {
                let header = [&[*kind, *code, 0, 0], &rest[..], payload].concat();
                summed(header, 2, source.is_ipv6())
            }
            Self::Sctp { ports, chunk } => sctp(*ports, *chunk, payload),
            Self::Other(_) => payload.to_vec(),
        }
    }

    /// RFC 9293, section 3.1 (IPv4) and RFC 8200, section 8.1 (IPv6).
    fn pseudo_header(&self, source: IpAddr, destination: IpAddr, length: usize) -> Vec<u8> {
        let protocol = self.protocol(source);
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let tail = [&[0, protocol], &(length as u16).to_be_bytes()[..]].concat();
                [&source.octets()[..], &destination.octets(), &tail].concat()
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let tail = [&(length as u32).to_be_bytes()[..], &[0, 0, 0, protocol]].concat();
                [&source.octets()[..], &destination.octets(), &tail].concat()
            }
            _ => unreachable!("packets have addresses of one family"),
        }
    }
}

/// Common header and one chunk that holds the payload (RFC 9260, section 3).
fn sctp([from, to]: [u16; 2], chunk: u8, payload: &[u8]) -> Vec<u8> {
    let tag: u32 = if chunk == 1 { 0 } else { 0x7067 };
    let mut bytes = [from.to_be_bytes(), to.to_be_bytes()].concat();
    bytes.extend(tag.to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend([chunk, 0]);
    bytes.extend((4 + payload.len() as u16).to_be_bytes());
    bytes.extend(payload);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    let sum = crc32c(&bytes).to_le_bytes();
    bytes[8..12].copy_from_slice(&sum);
    bytes
}

/// CRC-32C (RFC 9260, appendix A), bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            let carry = crc & 1;
            crc >>= 1;
            if carry == 1 {
                crc ^= 0x82f6_3b78;
            }
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::crc32c;

    #[test]
    fn crc32c_of_the_usual_check_value() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }
}
