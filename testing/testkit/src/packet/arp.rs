//! ARP over Ethernet for IPv4 (RFC 826).

use std::net::Ipv4Addr;

use super::{Mac, SWITCH_MAC, mac_of};

const BROADCAST: Mac = [0xff; 6];

/// An ARP packet being put together.
#[derive(Clone, Debug)]
pub struct Arp {
    destination: Mac,
    source: Mac,
    operation: u16,
    sender: (Mac, Ipv4Addr),
    target: (Mac, Ipv4Addr),
}

/// An ARP request of `sender` for `target`.
#[track_caller]
pub fn arp_request(sender: &str, target: &str) -> Arp {
    let (sender, target) = (address(sender), address(target));
    let mac = mac_of(sender.into());
    Arp {
        destination: BROADCAST,
        source: mac,
        operation: 1,
        sender: (mac, sender),
        target: ([0; 6], target),
    }
}

/// An ARP reply from `sender` to `target`.
#[track_caller]
pub fn arp_reply(sender: &str, target: &str) -> Arp {
    let mut arp = arp_request(sender, target);
    arp.operation = 2;
    arp.destination = SWITCH_MAC;
    arp.target.0 = SWITCH_MAC;
    arp
}

/// An ARP probe for `address` (RFC 5227, section 2.1.1).
#[track_caller]
pub fn arp_probe(address: &str) -> Arp {
    let mut arp = arp_request(address, address);
    arp.sender.1 = Ipv4Addr::UNSPECIFIED;
    arp
}

/// `address` is mine, says its owner (RFC 5227, section 2.3).
#[track_caller]
pub fn arp_announcement(address: &str) -> Arp {
    arp_request(address, address)
}

impl Arp {
    /// Sets the source MAC address of the frame, leaving what the packet says.
    pub fn from_mac(mut self, mac: Mac) -> Self {
        self.source = mac;
        self
    }

    /// Sets the sender's MAC address inside the packet, leaving the frame's.
    pub fn sender_mac(mut self, mac: Mac) -> Self {
        self.sender.0 = mac;
        self
    }

    /// The whole frame.
    pub fn build(&self) -> Vec<u8> {
        let mut frame = [self.destination, self.source].concat();
        // Ethernet type ARP; hardware Ethernet, protocol IPv4 and their address lengths.
        frame.extend([0x08, 0x06, 0, 1, 0x08, 0, 6, 4]);
        frame.extend(self.operation.to_be_bytes());
        for (mac, address) in [self.sender, self.target] {
            frame.extend(mac);
            frame.extend(address.octets());
        }
        frame
    }
}

impl From<Arp> for Vec<u8> {
    fn from(arp: Arp) -> Self {
        arp.build()
    }
}

#[track_caller]
fn address(text: &str) -> Ipv4Addr {
    text.parse().unwrap_or_else(|_| panic!("{text:?} is not an IPv4 address"))
}
