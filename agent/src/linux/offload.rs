//! Offloads of an interface.
//!
//! A veth end leaves checksums, segmentation and VLAN tags to "hardware" that
//! does not exist: the other end is expected to be a kernel that knows. A
//! switch that takes frames from the other end would get packets of 64 KiB and
//! no tag; with these offloads off, the sender makes the packets itself.
//!
//! Checksums of TCP and UDP stay unfinished: the switch sees which are, and
//! completes them unless the receiver is a kernel that knows. So nobody has to
//! pass over the bytes, and the kernel, which allows the one only beside the
//! other, hands long packets over in pieces instead of copying them together.

use std::os::fd::AsFd;

use super::error::Error;
use super::sys;

/// Switches off what an interface would leave to hardware when it sends and the switch does not
/// see to (every kind of segmentation, VLAN tags, the checksum of SCTP), and the merging of
/// received packets (GRO); then makes sure that all of it is off.
///
/// Acts in the calling thread's network namespace.
///
/// # Errors
/// If the interface is gone, or an offload cannot be switched off; names it.
pub fn switch_off_offloads(interface: &str) -> Result<(), Error> {
    let failed = |cause| Error::new(format!("switch off offloads of interface {interface}"), cause);
    let socket = sys::control_socket().map_err(failed)?;
    let names = sys::feature_names(socket.as_fd(), interface).map_err(failed)?;
    let mut off = vec![0; names.len().div_ceil(32)];
    for (bit, _) in names.iter().enumerate().filter(|(_, name)| is_offload(name)) {
        off[bit / 32] |= 1 << (bit % 32);
    }
    sys::switch_off_features(socket.as_fd(), interface, &off).map_err(failed)?;
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

/// Whether a feature, by its name in the kernel's net/ethtool/common.c, is one
/// that lets frames out which the switch does not finish, or merged ones in.
fn is_offload(name: &str) -> bool {
    // An unfinished checksum of SCTP does not show.
    const STARTS: [&str; 4] = ["tx-checksum-sctp", "tx-gso", "tx-vlan", "rx-gro"];
    STARTS.iter().any(|start| name.starts_with(start))
        || name.starts_with("tx-") && name.ends_with("-segmentation")
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
        for name in ["tx-checksum-ip-generic", "tx-scatter-gather"] {
            assert!(!is_offload(name), "{name}");
        }
    }
}
