//! Veth pairs: two connected interfaces.

use std::os::fd::{AsFd, AsRawFd};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkInfo, LinkMessage,
};

use super::error::Error;
use super::link::valid_name;
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
    /// Creates the pair; both ends are down and without addresses.
    ///
    /// # Errors
    /// [`Error::is_exists`] if either name is taken; the kernel then made nothing.
    pub fn create_veth(&mut self, pair: &VethPair<'_>) -> Result<(), Error> {
        self.create_veth_with_queues(pair, 1)
    }

    /// The same with so many queues for each direction.
    pub(crate) fn create_veth_with_queues(
        &mut self,
        pair: &VethPair<'_>,
        queues: u32,
    ) -> Result<(), Error> {
        let what = format!("create veth pair {} and {}", pair.near.name, pair.far.name);
        for end in [&pair.near, &pair.far] {
            if !valid_name(&end.name) {
                return Err(Error::invalid(what, format!("'{}' is no interface name", end.name)));
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
