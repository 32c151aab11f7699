//! Veth pairs: two connected interfaces.

use std::os::fd::{AsFd, AsRawFd};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkInfo, LinkMessage,
};

use super::error::Error;
use super::fnv;
use super::link::{Link, valid_name};
use super::namespace::Namespace;
use super::netlink::Netlink;
use crate::MacAddress;

/// One end of a pair to be made.
#[derive(Debug, Clone)]
pub struct VethEnd {
    /// Name of the interface, at most 15 bytes.
    pub name: String,
    /// Its Ethernet address.
    pub mac: MacAddress,
}

/// A veth pair to be made.
///
/// Both ends get one receive and one transmit queue: the switch serves one
/// queue per pod, and the kernel would otherwise make one per core.
#[derive(Debug)]
pub struct VethPair<'a> {
    /// The end in the namespace of the [`Netlink`] socket.
    pub near: VethEnd,
    /// The other end.
    pub far: VethEnd,
    /// The namespace the far end is created in; `None`: that of the near end. It never exists
    /// elsewhere, so no other program can act on it.
    pub far_namespace: Option<&'a Namespace>,
    /// Largest packet in bytes, without the Ethernet header.
    pub mtu: u32,
}

impl Netlink {
    /// The two ends of a pair for `purpose` in the socket's namespace, made with so many queues if
    /// neither is there. Their Ethernet addresses follow from their names.
    ///
    /// # Errors
    /// Fails if an interface of one of the names exists that is not the other one's peer.
    pub(crate) fn own_pair(
        &mut self,
        purpose: &str,
        names: [&str; 2],
        queues: u32,
        mtu: u32,
    ) -> Result<[Link; 2], Error> {
        let [near, far] = names;
        if self.find_link(near)?.is_none() && self.find_link(far)?.is_none() {
            let [near, far] = names.map(|name| VethEnd {
                name: name.to_owned(),
                mac: MacAddress::local(fnv::hash(&[&format!("podgate {purpose}"), name])),
            });
            let pair = VethPair { near, far, far_namespace: None, mtu };
            self.create_veth_with_queues(&pair, queues)?;
        }
        let (near, far) = (self.link(near)?, self.link(far)?);
        for (link, peer) in [(&near, &far), (&far, &near)] {
            if link.kind != "veth" || link.peer != Some(peer.index) {
                let why = format!("it exists and is not the other end of {}", peer.name);
                return Err(Error::invalid(
                    format!("use interface {} as {purpose}", link.name),
                    why,
                ));
            }
        }
        Ok([near, far])
    }

    /// Creates the pair; both ends are down and without addresses.
    ///
    /// # Errors
    /// [`Error::is_exists`] if either name is taken; the kernel then made nothing.
    pub fn create_veth(&mut self, pair: &VethPair<'_>) -> Result<(), Error> {
        self.create_veth_with_queues(pair, 1)
    }

    /// The same with so many queues for each direction.
    fn create_veth_with_queues(&mut self, pair: &VethPair<'_>, queues: u32) -> Result<(), Error> {
        let what = format!("create veth pair {} and {}", pair.near.name, pair.far.name);
        for end in [&pair.near, &pair.far] {
            if !valid_name(&end.name) {
                return Err(Error::invalid(
                    what,
                    format!("'{}' is not a valid interface name", end.name),
                ));
            }
        }
        let mut far = end_message(&pair.far, pair.mtu, queues);
        if let Some(namespace) = pair.far_namespace {
            far.attributes.push(LinkAttribute::NetNsFd(namespace.as_fd().as_raw_fd()));
        }
        let mut near = end_message(&pair.near, pair.mtu, queues);
        near.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(far))),
        ]));
        self.change(&what, RouteNetlinkMessage::NewLink(near), NLM_F_CREATE | NLM_F_EXCL)
    }
}

fn end_message(end: &VethEnd, mtu: u32, queues: u32) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes = vec![
        LinkAttribute::IfName(end.name.clone()),
        LinkAttribute::Address(end.mac.0.to_vec()),
        LinkAttribute::Mtu(mtu),
        LinkAttribute::NumTxQueues(queues),
        LinkAttribute::NumRxQueues(queues),
    ];
    message
}
