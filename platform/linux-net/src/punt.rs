//! The punt link connects pods behind programs in the kernel (flow offload) with the switch.
//!
//! ```text
//!   switch ══ AF_XDP ══ podgate-punt ────veth──── podgate-pods ── programs ── all pods
//! ```
//!
//! One link serves all pods. The uplink has one of its own, of the same shape:
//!
//! ```text
//!   switch ══ AF_XDP ══ podgate-uplink ──veth── podgate-wire ── programs ── uplink
//! ```
//!
//! Both ends of either are closed to the kernel's own stack: neither has an address, ARP or IPv6. The pair outlives the
//! switch; without one, frames on it are dropped.

use super::Link;
use super::error::Error;
use super::host_port::close_to_the_kernel;
use super::netlink::Netlink;
use super::offload::{switch_off_offloads, switch_off_segmentation};

/// Name of the switch's end.
pub const SWITCH_END: &str = "podgate-punt";
/// Name of the end that programs redirect to.
pub const KERNEL_END: &str = "podgate-pods";
/// Name of the switch's end of the uplink's link.
pub const UPLINK_SWITCH_END: &str = "podgate-uplink";
/// Name of the end of it that programs redirect to.
pub const UPLINK_KERNEL_END: &str = "podgate-wire";

/// The link as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PuntLink {
    /// The switch's end.
    pub switch: Link,
    /// The other one.
    pub kernel: Link,
}

/// Makes the link with so many queues and this MTU, or brings the existing one into this state. Both
/// ends are left down if they are new.
///
/// # Errors
/// Fails if the kernel refuses a step, or an interface of one of the names exists that is not the other
/// one's peer.
pub fn set_up(queues: u32, mtu: u32) -> Result<PuntLink, Error> {
    pair(&mut Netlink::open()?, SWITCH_END, KERNEL_END, queues, mtu)
}

/// Makes the uplink's link anew, with so many queues and this MTU. Both ends are left down.
///
/// # Errors
/// As [`set_up`].
pub fn set_up_uplink(queues: u32, mtu: u32) -> Result<PuntLink, Error> {
    let mut netlink = Netlink::open()?;
    // Queues are given to a new one only.
    if let Some(old) = netlink.find_link(UPLINK_SWITCH_END)?.filter(|link| link.kind == "veth") {
        netlink.delete_link(old.index)?;
    }
    pair(&mut netlink, UPLINK_SWITCH_END, UPLINK_KERNEL_END, queues, mtu)
}

/// Number of an interface's receive queues, in the network namespace that `/sys` shows; 1 if it
/// shows none.
pub fn receive_queues(interface: &str) -> u32 {
    let queues = std::fs::read_dir(format!("/sys/class/net/{interface}/queues"));
    let names = queues.into_iter().flatten().flatten().map(|queue| queue.file_name());
    let count = names.filter(|name| name.to_string_lossy().starts_with("rx-")).count();
    count.max(1) as u32
}

fn pair(
    netlink: &mut Netlink,
    switch_end: &str,
    kernel_end: &str,
    queues: u32,
    mtu: u32,
) -> Result<PuntLink, Error> {
    let ends = netlink.own_pair("punt link", [switch_end, kernel_end], queues.max(1), mtu)?;
    for link in &ends {
        close_to_the_kernel(&link.name)?;
        netlink.switch_off_arp(link.index)?;
        if link.mtu != mtu {
            netlink.set_mtu(link.index, mtu)?;
        }
    }
    switch_off_segmentation(switch_end)?;
    // The kernel completes offloads: checksums, segments, tags.
    switch_off_offloads(kernel_end)?;
    netlink.put_queue(ends[1].index)?;
    Ok(PuntLink { switch: netlink.link(switch_end)?, kernel: netlink.link(kernel_end)? })
}
