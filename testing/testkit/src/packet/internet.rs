//! IPv4 and IPv6 headers around a transport.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::{IpFragOffset, IpNumber, Ipv4Header, Ipv4Options, Ipv6Header};

const FRAGMENT: u8 = 44;

/// Fields of an IP header, without lengths and checksums.
#[derive(Clone, Debug)]
pub(super) struct Internet {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) hop_limit: u8,
    pub(super) identification: u32,
    /// IPv4 options.
    pub(super) options: Vec<u8>,
    /// IPv6 extension headers, from the outside in: number and body.
    pub(super) extensions: Vec<(u8, Vec<u8>)>,
}

impl Internet {
    #[track_caller]
    pub(super) fn new(source: IpAddr, destination: IpAddr) -> Self {
        assert_eq!(source.is_ipv4(), destination.is_ipv4(), "{source} and {destination} differ");
        Self {
            source,
            destination,
            hop_limit: 64,
            identification: 1,
            options: Vec::new(),
            extensions: Vec::new(),
        }
    }

    /// Bytes of all headers up to the transport.
    pub(super) fn header_length(&self) -> usize {
        self.around(IpNumber::UDP.0, &[]).len()
    }

    /// The headers and `bytes`.
    pub(super) fn around(&self, protocol: u8, bytes: &[u8]) -> Vec<u8> {
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                self.v4(source, destination, protocol, (0, false), bytes)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                self.v6(source, destination, &self.extensions, protocol, bytes)
            }
            _ => unreachable!("`new` takes one family"),
        }
    }

    /// The headers of a fragment and `bytes`.
    pub(super) fn around_fragment(
        &self,
        protocol: u8,
        offset: usize,
        more: bool,
        bytes: &[u8],
    ) -> Vec<u8> {
        assert!(offset.is_multiple_of(8), "fragments stand at multiples of 8 bytes");
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                self.v4(source, destination, protocol, (offset / 8, more), bytes)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                // RFC 8200, section 4.5; the first two bytes are put before this body.
                let mut header = (offset as u16 | u16::from(more)).to_be_bytes().to_vec();
                header.extend(self.identification.to_be_bytes());
                let mut extensions = self.extensions.clone();
                extensions.push((FRAGMENT, header));
                self.v6(source, destination, &extensions, protocol, bytes)
            }
            _ => unreachable!("`new` takes one family"),
        }
    }

    fn v4(
        &self,
        source: Ipv4Addr,
        destination: Ipv4Addr,
        protocol: u8,
        (offset, more): (usize, bool),
        bytes: &[u8],
    ) -> Vec<u8> {
        let offset = IpFragOffset::try_new(offset as u16).expect("offsets have 13 bits");
        let whole = offset == IpFragOffset::ZERO && !more;
        let mut header = Ipv4Header {
            total_len: (20 + self.options.len() + bytes.len()) as u16,
            identification: self.identification as u16,
            dont_fragment: whole,
            more_fragments: more,
            fragment_offset: offset,
            time_to_live: self.hop_limit,
            protocol: IpNumber(protocol),
            source: source.octets(),
            destination: destination.octets(),
            options: Ipv4Options::try_from(&self.options[..]).expect("options of up to 40 bytes"),
            ..Ipv4Header::default()
        };
        header.header_checksum = header.calc_header_checksum();
        [&header.to_bytes(), bytes].concat()
    }

    fn v6(
        &self,
        source: Ipv6Addr,
        destination: Ipv6Addr,
        extensions: &[(u8, Vec<u8>)],
        protocol: u8,
        bytes: &[u8],
    ) -> Vec<u8> {
        let mut chain = Vec::new();
        for (index, (number, body)) in extensions.iter().enumerate() {
            let next = extensions.get(index + 1).map_or(protocol, |(number, _)| *number);
            chain.extend(extension(*number, next, body));
        }
        chain.extend(bytes);
        let header = Ipv6Header {
            payload_length: chain.len() as u16,
            next_header: IpNumber(extensions.first().map_or(protocol, |(number, _)| *number)),
            hop_limit: self.hop_limit,
            source: source.octets(),
            destination: destination.octets(),
            ..Ipv6Header::default()
        };
        [&header.to_bytes()[..], &chain].concat()
    }
}

/// One extension header; all but the fragment header give their length in units of 8
/// bytes, the first not counted.
fn extension(number: u8, next: u8, body: &[u8]) -> Vec<u8> {
    let padding = (2 + body.len()).wrapping_neg() % 8;
    let length = match number {
        FRAGMENT => 0,
        _ => (2 + body.len() + padding) / 8 - 1,
    };
    let mut header = vec![next, length as u8];
    header.extend(body);
    match padding {
        0 => {}
        // Pad1 and PadN.
        1 => header.push(0),
        more => {
            header.extend([1, more as u8 - 2]);
            header.resize(header.len() + more - 2, 0);
        }
    }
    header
}
