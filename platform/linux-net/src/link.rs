//! Interfaces: finding, changing, deleting.

use std::os::fd::AsFd;

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    InfoData, InfoGeneve, InfoVxlan, LinkAttribute, LinkExtentMask, LinkFlags, LinkHeader,
    LinkInfo, LinkMessage, LinkXdp,
};

use super::address;
use super::bridge::passes_to_filters;
use super::error::Error;
use super::netlink::Netlink;
use super::route::{self, Route};
use super::sys;
use crate::MacAddress;

/// An interface as the kernel described it at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Number of the interface in its namespace, from 1 (`ifindex`).
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its Ethernet address; `None` for interfaces without one.
    pub mac: Option<MacAddress>,
    /// Largest packet in bytes, without the Ethernet header.
    pub mtu: u32,
    /// Switched on by configuration.
    pub up: bool,
    /// Switched on, with a carrier.
    pub running: bool,
    /// Uses ARP.
    pub arp: bool,
    /// The loopback interface.
    pub is_loopback: bool,
    /// The driver's kind (`veth`, `dummy`, …); empty for physical interfaces.
    pub kind: String,
    /// Free text (`ip link set … alias`).
    pub alias: String,
    /// Index of the other end of a veth pair, in that end's namespace.
    pub peer: Option<u32>,
    /// Index of the bridge or other interface that it is a port of.
    pub controller: Option<u32>,
    /// True for a bridge whose own settings pass frames to the hooks of IPv4 and IPv6.
    pub filters_bridged: bool,
    /// For a VXLAN or Geneve device: the UDP port of its tunnels.
    pub tunnel_port: Option<u16>,
    /// Number of the XDP program that is attached to it.
    pub xdp_program: Option<u32>,
}

/// Returns whether the kernel accepts `name` for an interface: 1 to 15 bytes, no `/`,
/// `:`, blank or control character, not `.` or `..` (`dev_valid_name` in the
/// kernel's net/core/dev.c), and printable ASCII on top of that.
pub fn valid_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() < libc::IFNAMSIZ
        && name != "."
        && name != ".."
        && name.bytes().all(|c| c.is_ascii_graphic() && c != b'/' && c != b':')
}

/// The number of queues that an interface uses, of the direction with more of them; `None` if its driver does
/// not say, or there is no such interface in the calling thread's network namespace.
pub fn queues(interface: &str) -> Option<u32> {
    let socket = sys::control_socket().ok()?;
    let [receiving, sending, combined] = sys::channels(socket.as_fd(), interface).ok()?;
    Some(receiving.max(sending) + combined).filter(|count| *count > 0)
}

impl Netlink {
    /// The interface called `name`, or `None` if there is none.
    ///
    /// # Errors
    /// Fails if the kernel refuses to answer.
    pub fn find_link(&mut self, name: &str) -> Result<Option<Link>, Error> {
        match self.link(name) {
            Ok(link) => Ok(Some(link)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The interface called `name`.
    ///
    /// # Errors
    /// [`Error::is_not_found`] if there is none.
    pub fn link(&mut self, name: &str) -> Result<Link, Error> {
        let what = format!("look up interface {name}");
        if !valid_name(name) {
            return Err(Error::new(what, std::io::Error::from_raw_os_error(libc::ENODEV)));
        }
        self.look_up(&what, message(0, vec![LinkAttribute::IfName(name.to_owned())]))
    }

    /// The interface with this number.
    ///
    /// # Errors
    /// [`Error::is_not_found`] if there is none.
    pub fn link_of(&mut self, index: u32) -> Result<Link, Error> {
        self.look_up(&format!("look up interface {index}"), message(index, Vec::new()))
    }

    fn look_up(&mut self, what: &str, query: LinkMessage) -> Result<Link, Error> {
        match self.one(what, RouteNetlinkMessage::GetLink(query))? {
            RouteNetlinkMessage::NewLink(message) => Ok(Link::from_message(&message)),
            _ => Err(Error::invalid(what, "the kernel answered with something else")),
        }
    }

    /// All interfaces of the namespace.
    ///
    /// # Errors
    /// Fails if the kernel refuses to answer.
    pub fn links(&mut self) -> Result<Vec<Link>, Error> {
        // Summing the counters of all processors takes the kernel a while.
        let attributes = vec![LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats])];
        let query = RouteNetlinkMessage::GetLink(message(0, attributes));
        let answers = self.all("list interfaces", query)?;
        let link = |answer| match answer {
            RouteNetlinkMessage::NewLink(message) => Some(Link::from_message(&message)),
            _ => None,
        };
        Ok(answers.into_iter().filter_map(link).collect())
    }

    /// Switches an interface on.
    ///
    /// # Errors
    /// Fails if it is gone or the kernel refuses.
    pub fn set_up(&mut self, index: u32) -> Result<(), Error> {
        let (what, message) = set_up(index);
        self.change(&what, message, 0)
    }

    /// Switches an interface off.
    ///
    /// # Errors
    /// Fails if it is gone or the kernel refuses.
    pub fn set_down(&mut self, index: u32) -> Result<(), Error> {
        let what = format!("switch off interface {index}");
        self.set_flags(&what, index, LinkFlags::empty(), LinkFlags::Up)
    }

    /// Disables ARP on an interface.
    ///
    /// # Errors
    /// Fails if it is gone or the kernel refuses.
    pub(crate) fn switch_off_arp(&mut self, index: u32) -> Result<(), Error> {
        let what = format!("switch off ARP on interface {index}");
        self.set_flags(&what, index, LinkFlags::Noarp, LinkFlags::Noarp)
    }

    /// Sets the largest packet of an interface, in bytes without the Ethernet header.
    ///
    /// # Errors
    /// Fails if it is gone or its driver refuses the size.
    pub fn set_mtu(&mut self, index: u32, mtu: u32) -> Result<(), Error> {
        let message = message(index, vec![LinkAttribute::Mtu(mtu)]);
        let what = format!("set the MTU of interface {index} to {mtu}");
        self.change(&what, RouteNetlinkMessage::SetLink(message), 0)
    }

    /// Writes an interface's alias, at most 255 bytes, and disables ARP on it, with one change.
    ///
    /// # Errors
    /// Fails if it is gone or the text is too long.
    pub fn set_alias_without_arp(&mut self, index: u32, alias: &str) -> Result<(), Error> {
        let mut message = message(index, vec![LinkAttribute::IfAlias(alias.to_owned())]);
        (message.header.flags, message.header.change_mask) = (LinkFlags::Noarp, LinkFlags::Noarp);
        let what = format!("set the alias of interface {index} to '{alias}', without ARP");
        self.change(&what, RouteNetlinkMessage::SetLink(message), 0)
    }

    /// Switches an interface on, and adds addresses and then routes, with one call.
    ///
    /// # Errors
    /// The first one, if it is gone or the kernel refuses.
    pub fn set_up_with(
        &mut self,
        index: u32,
        addresses: &[IpNet],
        routes: &[Route],
    ) -> Result<(), Error> {
        let mut changes = vec![set_up(index)];
        changes.extend(addresses.iter().map(|address| address::addition(index, *address)));
        for route in routes {
            changes.push(route::addition(route)?);
        }
        let new = NLM_F_CREATE | NLM_F_EXCL;
        self.change_all(changes, new).into_iter().collect()
    }

    /// Deletes an interface; of a veth pair, both ends.
    ///
    /// # Errors
    /// [`Error::is_not_found`] if it is gone already.
    pub fn delete_link(&mut self, index: u32) -> Result<(), Error> {
        let what = format!("delete interface {index}");
        self.change(&what, RouteNetlinkMessage::DelLink(message(index, Vec::new())), 0)
    }

    fn set_flags(
        &mut self,
        what: &str,
        index: u32,
        flags: LinkFlags,
        mask: LinkFlags,
    ) -> Result<(), Error> {
        self.change(what, with_flags(index, flags, mask), 0)
    }
}

/// Returns the request that switches an interface on, and its name for errors.
fn set_up(index: u32) -> (String, RouteNetlinkMessage) {
    let message = with_flags(index, LinkFlags::Up, LinkFlags::Up);
    (format!("switch on interface {index}"), message)
}

fn with_flags(index: u32, flags: LinkFlags, mask: LinkFlags) -> RouteNetlinkMessage {
    let mut message = LinkMessage::default();
    message.header = LinkHeader { index, flags, change_mask: mask, ..Default::default() };
    RouteNetlinkMessage::SetLink(message)
}

impl Link {
    pub(super) fn from_message(message: &LinkMessage) -> Self {
        let flags = message.header.flags;
        let mut link = Self {
            index: message.header.index,
            name: String::new(),
            mac: None,
            mtu: 0,
            up: flags.contains(LinkFlags::Up),
            // Not the operational state, which the kernel computes some time after the fact.
            running: flags.contains(LinkFlags::Up | LinkFlags::LowerUp),
            arp: !flags.contains(LinkFlags::Noarp),
            is_loopback: flags.contains(LinkFlags::Loopback),
            kind: String::new(),
            alias: String::new(),
            peer: None,
            controller: None,
            filters_bridged: false,
            tunnel_port: None,
            xdp_program: None,
        };
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name.clone_from(name),
                LinkAttribute::Address(bytes) => link.mac = MacAddress::of(bytes),
                LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
                LinkAttribute::IfAlias(alias) => link.alias.clone_from(alias),
                LinkAttribute::Link(peer) => link.peer = Some(*peer),
                LinkAttribute::Controller(index) => link.controller = Some(*index),
                LinkAttribute::Xdp(attributes) => {
                    link.xdp_program = attributes.iter().find_map(|attribute| match attribute {
                        LinkXdp::ProgId(number) if *number != 0 => Some(*number),
                        _ => None,
                    });
                }
                LinkAttribute::LinkInfo(infos) => {
                    for info in infos {
                        match info {
                            LinkInfo::Kind(kind) => link.kind = kind.to_string(),
                            LinkInfo::Data(InfoData::Bridge(data)) => {
                                link.filters_bridged = passes_to_filters(data);
                            }
                            LinkInfo::Data(data) => link.tunnel_port = tunnel_port(data),
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        link
    }
}

/// A message about an interface.
pub(super) fn message(index: u32, attributes: Vec<LinkAttribute>) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.attributes = attributes;
    message
}

fn tunnel_port(data: &InfoData) -> Option<u16> {
    match data {
        InfoData::Vxlan(infos) => infos.iter().find_map(|info| match info {
            InfoVxlan::Port(port) => Some(*port),
            _ => None,
        }),
        InfoData::Geneve(infos) => infos.iter().find_map(|info| match info {
            InfoGeneve::Port(port) => Some(*port),
            _ => None,
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_kernel_would_refuse() {
        for name in ["eth0", "pg0123456789abc", "a.b-c_d@9"] {
            assert!(valid_name(name), "{name}");
        }
        for name in ["", ".", "..", "0123456789abcdef", "a/b", "a:b", "a b", "a\n", "a\0", "größe"]
        {
            assert!(!valid_name(name), "{name}");
        }
    }

    #[test]
    fn tunnels_have_a_port() {
        let vxlan = vec![InfoVxlan::Id(1), InfoVxlan::Port(8472)];
        assert_eq!(tunnel_port(&InfoData::Vxlan(vxlan)), Some(8472));
        let geneve = vec![InfoGeneve::Id(1), InfoGeneve::Port(6081)];
        assert_eq!(tunnel_port(&InfoData::Geneve(geneve)), Some(6081));
        assert_eq!(tunnel_port(&InfoData::Vlan(Vec::new())), None);
    }
}
