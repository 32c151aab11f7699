//! Addresses of interfaces.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeader, AddressHeaderFlags, AddressMessage, AddressScope,
};

use super::error::Error;
use super::netlink::{self, Netlink};

/// An address and the interface that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkAddress {
    /// Number of the interface (`ifindex`).
    pub link: u32,
    /// The address with the length of its network prefix.
    pub address: IpNet,
    /// The other end's address on a point-to-point link; the prefix is of its network then.
    pub peer: Option<IpAddr>,
    /// True if the kernel has not verified yet that the address is unique (RFC 4862, section 5.4), or found
    /// that it is not. No packet can leave from such an address.
    pub tentative: bool,
}

impl Netlink {
    /// Gives an interface an address. Nothing else follows from it: no route for
    /// its prefix is made, and an IPv6 address can be used at once, without
    /// duplicate address detection (RFC 4862, section 5.4).
    ///
    /// # Errors
    /// [`Error::is_exists`] if the interface has it already.
    pub fn add_address(&mut self, link: u32, address: IpNet) -> Result<(), Error> {
        let (what, message) = addition(link, address);
        self.change(&what, message, NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Takes an address from its interface.
    ///
    /// # Errors
    /// Fails if the interface does not have it (`EADDRNOTAVAIL`).
    pub(crate) fn delete_address(&mut self, own: &LinkAddress) -> Result<(), Error> {
        let LinkAddress { link, address, peer, .. } = *own;
        let what = format!("delete address {address} from interface {link}");
        self.change(&what, RouteNetlinkMessage::DelAddress(message(link, address, peer)), 0)
    }

    /// All addresses of all interfaces of the namespace, both families, link-local
    /// ones included, sorted by interface. In the host's namespace: the
    /// node's own addresses.
    ///
    /// # Errors
    /// Fails if the kernel refuses to answer.
    pub fn addresses(&mut self) -> Result<Vec<LinkAddress>, Error> {
        let query = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        let answers = self.all("list addresses", query)?;
        let mut found: Vec<_> = answers
            .iter()
            .filter_map(|answer| match answer {
                RouteNetlinkMessage::NewAddress(message) => read(message),
                _ => None,
            })
            .collect();
        found.sort();
        Ok(found)
    }
}

/// Returns the request that adds an address, and its name for errors.
pub(super) fn addition(link: u32, address: IpNet) -> (String, RouteNetlinkMessage) {
    let what = format!("add address {address} to interface {link}");
    (what, RouteNetlinkMessage::NewAddress(message(link, address, None)))
}

fn message(link: u32, address: IpNet, peer: Option<IpAddr>) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header = AddressHeader {
        family: netlink::family(address.addr()),
        prefix_len: address.prefix_len(),
        flags: AddressHeaderFlags::empty(),
        scope: scope(address.addr()),
        index: link,
    };
    // For a broadcast-capable interface both name the same address (rtnetlink(7)).
    message.attributes = vec![
        AddressAttribute::Address(peer.unwrap_or(address.addr())),
        AddressAttribute::Local(address.addr()),
        AddressAttribute::Flags(AddressFlags::Nodad | AddressFlags::Noprefixroute),
    ];
    message
}

fn scope(address: IpAddr) -> AddressScope {
    match address {
        IpAddr::V4(v4) if v4.is_link_local() => AddressScope::Link,
        IpAddr::V6(v6) if v6.is_unicast_link_local() => AddressScope::Link,
        IpAddr::V4(Ipv4Addr::LOCALHOST) | IpAddr::V6(Ipv6Addr::LOCALHOST) => AddressScope::Host,
        _ => AddressScope::Universe,
    }
}

fn read(message: &AddressMessage) -> Option<LinkAddress> {
    let mut own = None;
    let mut peer = None;
    let mut tentative = false;
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(address) => own = Some(*address),
            AddressAttribute::Address(address) => peer = Some(*address),
            AddressAttribute::Flags(flags) => {
                let unverified = AddressFlags::Tentative | AddressFlags::Dadfailed;
                // An optimistic address is used before it is verified (RFC 4429).
                tentative =
                    flags.intersects(unverified) && !flags.contains(AddressFlags::Optimistic);
            }
            _ => {}
        }
    }
    // IPv6 gives its own address as "address" unless the link is point to point.
    let address = IpNet::new(own.or(peer)?, message.header.prefix_len).ok()?;
    let peer = peer.filter(|peer| *peer != address.addr());
    Some(LinkAddress { link: message.header.index, address, peer, tentative })
}
