//! Encryption between nodes: the programs are loaded and a WireGuard device is made in a network namespace of its own.

use encryption::Programs;
use linux_net::{Netlink, WireGuardDevice};

use crate::preflight::finding::{Finding, Level};
use crate::preflight::trial::{self, Privileges};

/// Name of the trial's device. A program that serves Podgate's own does not serve this one.
const DEVICE: &str = "pgcheck-wg";
const MTU: u32 = 1420;

/// Checks whether the switch can encrypt; `None` if encryption is not wanted. `offload`: flow offload is possible.
pub(crate) fn look(wanted: bool, offload: bool, privileges: Privileges<'_>) -> Option<Finding> {
    let finding = |level, detail: &str| Finding::new("encryption", level, detail);
    if !wanted {
        return None;
    }
    if !offload {
        let detail = "not possible without flow offload, whose programs stand at the uplink";
        return Some(finding(Level::Fatal, detail));
    }
    let is_served = WireGuardDevice::is_served();
    Some(match privileges.run(|| Ok(Programs::load()?), |_| make_device(is_served)) {
        None => finding(Level::Note, trial::NOT_ALLOWED),
        Some(Ok(())) if is_served => {
            finding(Level::Good, "a program serves the WireGuard device; the kernel takes ours")
        }
        Some(Ok(())) => finding(Level::Good, "the kernel has WireGuard and takes the programs"),
        Some(Err(why)) => finding(Level::Fatal, &format!("not possible: {why}"))
            .hint("load the kernel's module wireguard, or leave encryption off"),
    })
}

fn make_device(is_served: bool) -> Result<(), trial::Failure> {
    if !is_served {
        WireGuardDevice::open(&mut Netlink::open()?, DEVICE, MTU)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use confine::capabilities::SWITCH;

    use super::*;

    fn look_with(wanted: bool, offload: bool, held: &[String]) -> Option<Finding> {
        look(wanted, offload, Privileges { held, kept: SWITCH })
    }

    #[test]
    fn what_it_needs_is_named() {
        assert_eq!(look_with(false, true, &[]), None);
        let without = look_with(true, false, &[]).unwrap();
        assert_eq!(without.level, Level::Fatal);
        assert!(without.detail.contains("without flow offload"), "{}", without.detail);
    }

    /// As the kernel is: it has WireGuard, or its lack is fatal.
    #[test]
    fn the_device_is_tried() {
        testkit::requires_root!();
        let finding = look_with(true, true, &["SYS_ADMIN".to_owned()]).unwrap();
        match finding.level {
            Level::Fatal => assert!(finding.detail.contains("module wireguard"), "{finding:?}"),
            level => assert_eq!(level, Level::Good, "{finding:?}"),
        }
    }
}
