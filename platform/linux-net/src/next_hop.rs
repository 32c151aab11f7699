//! Queries the kernel's routing decision.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric, RouteType,
    RouteVia,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::error::Error;
use super::link::Link;
use super::netlink::{self, Netlink};
use super::route::ip;
use crate::MacAddress;

/// The next hop towards an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextHop {
    /// Number of the interface that packets leave by (`ifindex`).
    pub link: u32,
    /// The source address of this host on that route.
    pub source: Option<IpAddr>,
    /// The neighbour that receives the packet: a gateway, or the address itself.
    pub neighbour: IpAddr,
    /// Its Ethernet address; `None` while the kernel resolves it.
    pub mac: Option<MacAddress>,
    /// Bytes of the longest packet that the kernel sends on that route, if it knows of a bound
    /// besides the interface's: one of the route's, or one that path MTU discovery found.
    pub mtu: Option<u32>,
}

impl Netlink {
    /// Returns the next hop of packets to `address` (`ip route get`). Starts resolving the
    /// neighbour's Ethernet address if it is not known.
    ///
    /// # Errors
    /// Fails if there is no route, or the address is this host's own.
    pub fn next_hop(&mut self, address: IpAddr) -> Result<NextHop, Error> {
        let what = format!("find the way to {address}");
        let mut query = RouteMessage::default();
        query.header.address_family = netlink::family(address);
        query.header.destination_prefix_length = IpNet::from(address).prefix_len();
        query.attributes.push(RouteAttribute::Destination(address.into()));
        let RouteNetlinkMessage::NewRoute(route) =
            self.one(&what, RouteNetlinkMessage::GetRoute(query))?
        else {
            return Err(Error::invalid(what, "the kernel answered with something else"));
        };
        if route.header.kind != RouteType::Unicast {
            let why = format!("the kernel's route is of kind {:?}", route.header.kind);
            return Err(Error::invalid(what, why));
        }
        let mut hop = NextHop { link: 0, source: None, neighbour: address, mac: None, mtu: None };
        for attribute in &route.attributes {
            match attribute {
                RouteAttribute::Oif(link) => hop.link = *link,
                RouteAttribute::Metrics(metrics) => {
                    hop.mtu = metrics.iter().find_map(|metric| match metric {
                        RouteMetric::Mtu(mtu) => Some(*mtu).filter(|mtu| *mtu > 0),
                        _ => None,
                    });
                }
                RouteAttribute::PrefSource(source) => hop.source = ip(source),
                RouteAttribute::Gateway(gateway) => hop.neighbour = ip(gateway).unwrap_or(address),
                // A gateway of the other family (RFC 5549).
                RouteAttribute::Via(RouteVia::Inet(gateway)) => hop.neighbour = (*gateway).into(),
                RouteAttribute::Via(RouteVia::Inet6(gateway)) => hop.neighbour = (*gateway).into(),
                _ => {}
            }
        }
        hop.mac = self.neighbour(hop.link, hop.neighbour)?.and_then(|found| found.mac);
        if hop.mac.is_none() {
            self.resolve(hop.link, hop.neighbour)?;
        }
        Ok(hop)
    }

    /// Returns the interface with one of `addresses`, in their order, else that of the default
    /// route with the lowest metric, IPv4 before IPv6. `None` if there is neither. Interfaces without
    /// neighbours, such as loopback with an address that a routing daemon announces, are passed over.
    ///
    /// # Errors
    /// Fails if the kernel refuses to answer.
    pub fn uplink(&mut self, addresses: &[IpAddr]) -> Result<Option<Link>, Error> {
        let own = self.addresses()?;
        let links = self.links()?;
        let link = |index: u32| links.iter().find(|link| link.index == index);
        let has = |wanted: &IpAddr| {
            let found = own.iter().filter(|found| found.address.addr() == *wanted);
            found.filter_map(|found| link(found.link)).find(|link| link.arp && !link.is_loopback)
        };
        Ok(match addresses.iter().find_map(has) {
            Some(link) => Some(link.clone()),
            None => self.default_link()?.and_then(link).cloned(),
        })
    }

    fn default_link(&mut self) -> Result<Option<u32>, Error> {
        let query = RouteNetlinkMessage::GetRoute(RouteMessage::default());
        let answers = self.all("list routes", query)?;
        let ways = answers.iter().filter_map(|answer| match answer {
            RouteNetlinkMessage::NewRoute(message) => default_way(message),
            _ => None,
        });
        Ok(ways.min().map(|(.., link)| link))
    }
}

/// Returns a default route of the main table as a sort key: no carrier, IPv6, metric, interface.
fn default_way(route: &RouteMessage) -> Option<(bool, bool, u32, u32)> {
    let header = &route.header;
    let is_default = header.destination_prefix_length == 0
        && header.table == RouteHeader::RT_TABLE_MAIN
        && header.kind == RouteType::Unicast;
    let is_dead = header.flags.intersects(RouteFlags::Dead | RouteFlags::Linkdown);
    let is_v6 = match header.address_family {
        AddressFamily::Inet => false,
        AddressFamily::Inet6 => true,
        _ => return None,
    };
    let (mut metric, mut link) = (0, None);
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Priority(priority) => metric = *priority,
            RouteAttribute::Oif(index) => link = Some(*index),
            // The first of several equal routes.
            RouteAttribute::MultiPath(ways) => {
                link = link.or(ways.first().map(|way| way.interface_index));
            }
            RouteAttribute::Destination(RouteAddress::Inet(_) | RouteAddress::Inet6(_)) => {
                return None;
            }
            _ => {}
        }
    }
    is_default.then_some((is_dead, is_v6, metric, link?))
}
