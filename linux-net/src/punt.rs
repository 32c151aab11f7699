//! The punt link: the way between pods behind programs in the kernel (flow offload) and the switch.
//!
//! ```text
//!   switch ══ AF_XDP ══ podgate-punt ────veth──── podgate-pods ── programs ── all pods
//! ```
//!
//! One link serves all pods. Both ends are closed to the kernel's own stack: neither has an address,
//! ARP or IPv6. The pair stays when the switch ends; what pods send then goes nowhere.

use super::error::Error;
use super::host_port::close_to_the_kernel;
use super::netlink::Netlink;
use super::offload::{switch_off_offloads, switch_off_segmentation};
use super::veth::{VethEnd, VethPair};
use super::{Link, fnv};
use crate::{MAX_MTU, MacAddress};

/// Name of the switch's end.
pub const SWITCH_END: &str = "podgate-punt";
/// Name of the end that programs redirect to.
pub const KERNEL_END: &str = "podgate-pods";

/// The link as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PuntLink {
    /// The switch's end.
    pub switch: Link,
    /// The other one.
    pub kernel: Link,
}

/// Makes the link with so many queues, or brings the existing one into this state. Both ends are
/// left down if they are new.
///
/// # Errors
/// If the kernel refuses a step, or an interface of one of the names exists that is not the other
/// one's peer.
pub fn set_up(queues: u32) -> Result<PuntLink, Error> {
    let mut netlink = Netlink::open()?;
    if netlink.find_link(SWITCH_END)?.is_none() && netlink.find_link(KERNEL_END)?.is_none() {
        let end = |name: &str| VethEnd {
            name: name.to_owned(),
            mac: MacAddress::local(fnv::hash(&["podgate punt link", name])),
        };
        let (near, far) = (end(SWITCH_END), end(KERNEL_END));
        let pair = VethPair { near, far, far_namespace: None, mtu: MAX_MTU };
        netlink.create_veth_with_queues(&pair, queues.max(1))?;
    }
    let (switch, kernel) = (netlink.link(SWITCH_END)?, netlink.link(KERNEL_END)?);
    for (link, peer) in [(&switch, &kernel), (&kernel, &switch)] {
        if link.kind != "veth" || link.peer != Some(peer.index) {
            let why = format!("it exists and is not the other end of {}", peer.name);
            return Err(Error::invalid(format!("use interface {} as punt link", link.name), why));
        }
        close_to_the_kernel(&link.name)?;
        netlink.switch_off_arp(link.index)?;
        if link.mtu != MAX_MTU {
            netlink.set_mtu(link.index, MAX_MTU)?;
        }
    }
    switch_off_segmentation(SWITCH_END)?;
    // The kernel finishes what pods leave to hardware: checksums, segments, tags.
    switch_off_offloads(KERNEL_END)?;
    netlink.put_queue(kernel.index)?;
    Ok(PuntLink { switch: netlink.link(SWITCH_END)?, kernel: netlink.link(KERNEL_END)? })
}
