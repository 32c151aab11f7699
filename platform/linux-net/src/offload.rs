//! Offloads of an interface.
//!
//! A veth end leaves checksums, segmentation and VLAN tags to the other end, which it expects to be
//! a kernel. A switch that reads frames there would get packets of 64 KiB with partial checksums
//! and without tags. With the offloads off, the sender completes its packets itself.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;

use super::error::Error;
use super::sys;

/// Largest MTU, in bytes, whose packets the switch takes in one frame. Pods with a larger one leave checksums to the
/// switch. The dataplane has the same constant; the agent asserts that they are equal.
pub const SINGLE_FRAME_MTU: u16 = 3500;

/// Switches off everything an interface would leave to hardware when it sends (checksums, scatter-gather, every kind of
/// segmentation, VLAN tags), and the merging of received packets (GRO); then makes sure that all of it is off.
///
/// Acts in the calling thread's network namespace.
///
/// # Errors
/// Fails if the interface is gone, or an offload cannot be switched off; names it.
pub fn switch_off_offloads(interface: &str) -> Result<(), Error> {
    switch_off(interface, is_offload)
}

/// The same except for scatter-gather, which saves linearising a long packet, and the checksum
/// offload, which the kernel requires for it. For the switch's end of a pair, by which only the
/// switch sends, and for pods with long packets, whose partial checksums the switch completes. (A
/// partial SCTP checksum is not recognisable, so that offload is off.)
///
/// # Errors
/// As [`switch_off_offloads`].
pub fn switch_off_segmentation(interface: &str) -> Result<(), Error> {
    switch_off(interface, |name| is_offload(name) && !lets_pieces_out(name))
}

/// Leaves VLAN tags in the frames that an interface receives. A tag that hardware takes off is beside the frame, where
/// XDP programs and AF_XDP sockets do not see it: frames of every VLAN would look alike.
///
/// # Errors
/// Fails if the interface is gone, or its hardware strips them always.
pub fn keep_vlan_tags(interface: &str) -> Result<(), Error> {
    switch_off(interface, takes_tags_off)
}

/// Chooses between the two for an end that sends packets of up to `mtu` bytes to the switch.
///
/// # Errors
/// As [`switch_off_offloads`].
pub fn switch_off_towards_switch(interface: &str, mtu: u32) -> Result<(), Error> {
    if mtu > SINGLE_FRAME_MTU.into() {
        switch_off_segmentation(interface)
    } else {
        switch_off_offloads(interface)
    }
}

/// Restores the offloads that a new interface has, for pods' ends whose packets another kernel receives instead of the
/// switch. Features that the driver lacks stay off.
///
/// # Errors
/// Fails if the interface is gone.
pub fn switch_on_offloads(interface: &str) -> Result<(), Error> {
    let failed = |cause| Error::new(format!("switch on offloads of interface {interface}"), cause);
    let socket = sys::control_socket().map_err(failed)?;
    let names = feature_names(socket.as_fd(), interface).map_err(failed)?;
    let is_sending = |name: &str| is_offload(name) && name.starts_with("tx-");
    let on = bits(names, is_sending);
    sys::switch_features(socket.as_fd(), interface, &on, true).map_err(failed)
}

/// The names of features, by their bits. They are the same for all devices, so the kernel is asked once.
fn feature_names(socket: BorrowedFd<'_>, interface: &str) -> io::Result<&'static [String]> {
    static NAMES: OnceLock<Vec<String>> = OnceLock::new();
    match NAMES.get() {
        Some(names) => Ok(names),
        None => sys::feature_names(socket, interface).map(|names| &**NAMES.get_or_init(|| names)),
    }
}

/// Returns the features whose name is wanted as a bit set, 32 bits a word.
fn bits(names: &[String], is_wanted: impl Fn(&str) -> bool) -> Vec<u32> {
    let mut bits = vec![0; names.len().div_ceil(32)];
    for (bit, _) in names.iter().enumerate().filter(|(_, name)| is_wanted(name)) {
        bits[bit / 32] |= 1 << (bit % 32);
    }
    bits
}

fn switch_off(interface: &str, is_wanted: impl Fn(&str) -> bool) -> Result<(), Error> {
    let failed = |cause| Error::new(format!("switch off offloads of interface {interface}"), cause);
    let socket = sys::control_socket().map_err(failed)?;
    let names = feature_names(socket.as_fd(), interface).map_err(failed)?;
    let off = bits(names, is_wanted);
    sys::switch_features(socket.as_fd(), interface, &off, false).map_err(failed)?;
    let active = sys::active_features(socket.as_fd(), interface, off.len()).map_err(failed)?;
    let left: Vec<&str> = names
        .iter()
        .enumerate()
        .filter(|(bit, _)| active[bit / 32] & off[bit / 32] & 1 << (bit % 32) != 0)
        .map(|(_, name)| name.as_str())
        .collect();
    if left.is_empty() {
        return Ok(());
    }
    let what = format!("switch off offloads of interface {interface}");
    Err(Error::invalid(what, format!("{} stay on", left.join(", "))))
}

/// Returns whether a feature (named as in the kernel's net/ethtool/common.c) emits partial frames
/// or merges received ones.
fn is_offload(name: &str) -> bool {
    const STARTS: [&str; 5] = ["tx-checksum", "tx-scatter-gather", "tx-gso", "tx-vlan", "rx-gro"];
    STARTS.iter().any(|start| name.starts_with(start))
        || name.starts_with("tx-") && name.ends_with("-segmentation")
}

fn takes_tags_off(name: &str) -> bool {
    name.starts_with("rx-vlan") && name.ends_with("-hw-parse")
}

fn lets_pieces_out(name: &str) -> bool {
    name != "tx-checksum-sctp"
        && (name.starts_with("tx-checksum") || name.starts_with("tx-scatter-gather"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_features_are_offloads() {
        for name in ["tx-checksum-sctp", "tx-tcp6-segmentation", "tx-gso-list", "rx-gro-list"] {
            assert!(is_offload(name), "{name}");
        }
        for name in ["rx-checksum", "highdma", "tx-nocache-copy", "tx-lockless", "loopback"] {
            assert!(!is_offload(name), "{name}");
        }
        assert!(["rx-vlan-hw-parse", "rx-vlan-stag-hw-parse"].into_iter().all(takes_tags_off));
        assert!(!["rx-vlan-filter", "tx-vlan-hw-insert"].into_iter().any(takes_tags_off));
    }
}
