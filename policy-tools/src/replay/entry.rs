//! Entry port of a captured packet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use dataplane::capture::Record;
use dataplane::{PortId, Snapshot};

/// The port named by the capture's interface, else the one that owns the source address, else
/// the uplink.
pub(super) fn port(snapshot: &Snapshot, record: &Record) -> PortId {
    let named = record.interface.as_deref().and_then(|name| snapshot.port_named(name));
    let owner = || source(&record.data).and_then(|address| snapshot.owner(address.into()));
    named.or_else(owner).or(snapshot.uplink()).unwrap_or(PortId::NONE)
}

/// The source address of a frame, however broken the rest of it: IPv4, IPv6 or the sender of
/// an ARP packet, behind any VLAN tags.
fn source(frame: &[u8]) -> Option<IpAddr> {
    let mut at = 12;
    loop {
        let kind: [u8; 2] = *frame.get(at..)?.first_chunk()?;
        let packet = frame.get(at + 2..)?;
        return match u16::from_be_bytes(kind) {
            0x8100 | 0x88a8 => {
                at += 4;
                continue;
            }
            0x0800 => v4(packet, 12),
            0x0806 => v4(packet, 14),
            0x86dd => {
                let octets: [u8; 16] = *packet.get(8..)?.first_chunk()?;
                Some(Ipv6Addr::from(octets).into())
            }
            _ => None,
        };
    }
}

fn v4(packet: &[u8], at: usize) -> Option<IpAddr> {
    let octets: [u8; 4] = *packet.get(at..)?.first_chunk()?;
    Some(Ipv4Addr::from(octets).into())
}

#[cfg(test)]
mod tests {
    use testkit::packet::{arp_request, cut, tcp, udp};

    use super::*;

    fn text(frame: impl Into<Vec<u8>>) -> Option<String> {
        source(&frame.into()).map(|address| address.to_string())
    }

    #[test]
    fn the_source_is_found_behind_tags_and_in_broken_packets() {
        let packet = tcp("10.1.1.2:1", "10.1.1.3:2").syn();
        assert_eq!(text(packet.clone()).as_deref(), Some("10.1.1.2"));
        assert_eq!(text(packet.clone().vlan(1).vlan(2)).as_deref(), Some("10.1.1.2"));
        assert_eq!(text(cut(packet.clone(), 30)).as_deref(), Some("10.1.1.2"));
        assert_eq!(text(udp("[fd00::2]:1", "[fd00::3]:2")).as_deref(), Some("fd00::2"));
        assert_eq!(text(arp_request("10.1.1.2", "10.1.1.3")).as_deref(), Some("10.1.1.2"));
    }

    #[test]
    fn where_there_is_none() {
        let packet = tcp("10.1.1.2:1", "10.1.1.3:2").syn().vlan(1);
        for length in 0..30 {
            assert_eq!(text(cut(packet.clone(), length)), None, "{length}");
        }
    }
}
