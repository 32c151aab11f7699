//! Routes of the main table.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteScope,
    RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::error::Error;
use super::netlink::{self, Netlink};

/// A unicast route of the main table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// Destination network; `0.0.0.0/0` or `::/0` is the default route.
    pub destination: IpNet,
    /// The next hop; `None`: the destination itself is on the link.
    pub gateway: Option<IpAddr>,
    /// Number of the interface the packets leave by (`ifindex`).
    pub link: u32,
    /// Treat the gateway as a neighbour on the link even if no other route does.
    pub on_link: bool,
    /// Preferred source address (`src`).
    pub source: Option<IpAddr>,
    /// Type of service of the packets it is for; 0: of all (RFC 1349, IPv4 alone).
    pub tos: u8,
    /// Number of the nexthop object that gateway and interface are from (`ip nexthop`).
    pub nexthop: Option<u32>,
}

impl Route {
    /// A route to addresses that are neighbours on the link.
    pub fn direct(destination: IpNet, link: u32) -> Self {
        let (gateway, source, nexthop) = (None, None, None);
        Self { destination, gateway, link, on_link: false, source, tos: 0, nexthop }
    }

    /// A route through a next hop that is treated as a neighbour on the link.
    pub fn via(destination: IpNet, gateway: IpAddr, link: u32) -> Self {
        Self { gateway: Some(gateway), on_link: true, ..Self::direct(destination, link) }
    }

    /// Returns whether the kernel made the route, for an interface or one of its addresses.
    pub fn is_kernels(&self) -> bool {
        match self.destination {
            IpNet::V4(_) => false,
            IpNet::V6(v6) => v6.addr().is_unicast_link_local() || v6.addr().is_multicast(),
        }
    }
}

impl Netlink {
    /// Adds a route.
    ///
    /// # Errors
    /// [`Error::is_exists`] if the destination has a route of the same priority.
    pub fn add_route(&mut self, route: &Route) -> Result<(), Error> {
        let (what, message) = addition(route)?;
        self.change(&what, message, NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Adds a route, or puts it in the place of the one the destination has.
    ///
    /// # Errors
    /// Fails if the kernel refuses, for instance because the interface is down.
    pub(crate) fn put_route(&mut self, route: &Route) -> Result<(), Error> {
        let message = RouteNetlinkMessage::NewRoute(message(route)?);
        self.change(&describe("put", route), message, NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Deletes a route, also one of another program.
    ///
    /// # Errors
    /// [`Error::is_not_found`] if it is not there.
    pub fn delete_route(&mut self, route: &Route) -> Result<(), Error> {
        let mut message = message(route)?;
        // The kernel compares the given fields: its own routes have another protocol and scope.
        message.header.protocol = RouteProtocol::Unspec;
        message.header.scope = RouteScope::NoWhere;
        self.change(&describe("delete", route), RouteNetlinkMessage::DelRoute(message), 0)
    }

    /// The unicast routes of the main table, both families. Exceptions (cached path MTUs and redirects of
    /// single destinations, `ip route show cache`) are not among them: they belong to a route, and end by
    /// themselves.
    ///
    /// # Errors
    /// Fails if the kernel refuses to answer.
    pub fn routes(&mut self) -> Result<Vec<Route>, Error> {
        let query = RouteNetlinkMessage::GetRoute(RouteMessage::default());
        let answers = self.all("list routes", query)?;
        let route = |answer: &RouteNetlinkMessage| match answer {
            RouteNetlinkMessage::NewRoute(message) => read(message),
            _ => None,
        };
        Ok(answers.iter().filter_map(route).collect())
    }
}

fn describe(verb: &str, route: &Route) -> String {
    let mut text = format!("{verb} route to {}", route.destination);
    if let Some(gateway) = route.gateway {
        text += &format!(" via {gateway}");
    }
    text + &format!(" on interface {}", route.link)
}

/// Returns the request that adds a route, and its name for errors.
pub(super) fn addition(route: &Route) -> Result<(String, RouteNetlinkMessage), Error> {
    Ok((describe("add", route), RouteNetlinkMessage::NewRoute(message(route)?)))
}

fn message(route: &Route) -> Result<RouteMessage, Error> {
    let v4 = route.destination.addr().is_ipv4();
    for other in [route.gateway, route.source].into_iter().flatten() {
        if other.is_ipv4() != v4 {
            let why = format!("{other} is of the other address family");
            return Err(Error::invalid(describe("use", route), why));
        }
    }
    let mut message = RouteMessage::default();
    message.header = RouteHeader {
        address_family: netlink::family(route.destination.addr()),
        destination_prefix_length: route.destination.prefix_len(),
        tos: route.tos,
        table: RouteHeader::RT_TABLE_MAIN,
        protocol: RouteProtocol::Static,
        scope: if route.gateway.is_some() { RouteScope::Universe } else { RouteScope::Link },
        kind: RouteType::Unicast,
        flags: if route.on_link { RouteFlags::Onlink } else { RouteFlags::empty() },
        ..Default::default()
    };
    if route.destination.prefix_len() > 0 {
        let network = RouteAddress::from(route.destination.network());
        message.attributes.push(RouteAttribute::Destination(network));
    }
    if let Some(source) = route.source {
        message.attributes.push(RouteAttribute::PrefSource(source.into()));
    }
    // The kernel takes either the object or its content.
    if let Some(nexthop) = route.nexthop {
        message.attributes.push(RouteAttribute::NhId(nexthop));
        return Ok(message);
    }
    if let Some(gateway) = route.gateway {
        message.attributes.push(RouteAttribute::Gateway(gateway.into()));
    }
    message.attributes.push(RouteAttribute::Oif(route.link));
    Ok(message)
}

fn read(message: &RouteMessage) -> Option<Route> {
    let header = &message.header;
    let is_exception = header.flags.contains(RouteFlags::Cloned);
    if header.table != RouteHeader::RT_TABLE_MAIN
        || header.kind != RouteType::Unicast
        || is_exception
    {
        return None;
    }
    let any = match header.address_family {
        AddressFamily::Inet => IpAddr::from([0; 4]),
        AddressFamily::Inet6 => IpAddr::from([0; 16]),
        _ => return None,
    };
    let mut route = Route {
        on_link: header.flags.contains(RouteFlags::Onlink),
        tos: header.tos,
        ..Route::direct(IpNet::new(any, 0).ok()?, 0)
    };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(address) => {
                let prefix = header.destination_prefix_length;
                route.destination = IpNet::new(ip(address)?, prefix).ok()?;
            }
            RouteAttribute::Gateway(address) => route.gateway = Some(ip(address)?),
            RouteAttribute::PrefSource(address) => route.source = Some(ip(address)?),
            RouteAttribute::Oif(link) => route.link = *link,
            RouteAttribute::NhId(number) => route.nexthop = Some(*number),
            _ => {}
        }
    }
    Some(route)
}

pub(super) fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some(IpAddr::V4(*v4)),
        RouteAddress::Inet6(v6) => Some(IpAddr::V6(*v6)),
        _ => None,
    }
}
