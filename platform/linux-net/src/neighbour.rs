//! Neighbours on a link: addresses and the Ethernet addresses behind them (ARP, RFC 826;
//! neighbour discovery, RFC 4861).

use std::net::IpAddr;

use netlink_packet_core::NLM_F_CREATE;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};

use super::error::Error;
use super::netlink::{self, Netlink};
use crate::MacAddress;

/// An entry of the kernel's neighbour table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbour {
    /// Number of its interface (`ifindex`).
    pub link: u32,
    /// Its address.
    pub address: IpAddr,
    /// MAC address of frames for it; `None` while the kernel has none.
    pub mac: Option<MacAddress>,
}

impl Netlink {
    /// Returns the kernel's entry for a neighbour; `None` if there is none.
    ///
    /// # Errors
    /// Fails if the kernel refuses to answer.
    pub fn neighbour(&mut self, link: u32, address: IpAddr) -> Result<Option<Neighbour>, Error> {
        let what = format!("look up neighbour {address} on interface {link}");
        match self.one(&what, RouteNetlinkMessage::GetNeighbour(message(link, address))) {
            Ok(RouteNetlinkMessage::NewNeighbour(message)) => Ok(read_neighbour(&message)),
            Ok(_) => Err(Error::invalid(what, "the kernel answered with something else")),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes the kernel resolve or verify a neighbour, as if it had a packet for it; the result
    /// arrives as an event.
    ///
    /// # Errors
    /// Fails if the interface is gone or does not use ARP.
    pub fn resolve(&mut self, link: u32, address: IpAddr) -> Result<(), Error> {
        let what = format!("resolve neighbour {address} on interface {link}");
        let mut message = message(link, address);
        message.header.flags = NeighbourFlags::Use;
        self.change(&what, RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE)
    }
}

fn message(link: u32, address: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = netlink::family(address);
    message.header.ifindex = link;
    message.attributes.push(NeighbourAttribute::Destination(address.into()));
    message
}

/// Converts a message to a neighbour; `None` for entries of bridges and the like.
pub(super) fn read_neighbour(message: &NeighbourMessage) -> Option<Neighbour> {
    let mut address = None;
    let mut mac = None;
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => {
                address = Some(IpAddr::V4(*v4));
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => {
                address = Some(IpAddr::V6(*v6));
            }
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = MacAddress::of(bytes),
            _ => {}
        }
    }
    // Stale addresses are valid until they are refuted.
    let is_known = matches!(
        message.header.state,
        NeighbourState::Reachable
            | NeighbourState::Stale
            | NeighbourState::Delay
            | NeighbourState::Probe
            | NeighbourState::Permanent
            // Set by hand, and not to be verified.
            | NeighbourState::Noarp
    );
    let link = message.header.ifindex;
    Some(Neighbour { link, address: address?, mac: mac.filter(|_| is_known) })
}
