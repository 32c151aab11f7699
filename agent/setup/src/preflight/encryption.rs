//! Encryption between nodes: the programs are loaded and a WireGuard device is made in a network namespace of its own.

use encryption::Programs;
use linux_net::{Netlink, WireGuardDevice};

use crate::preflight::finding::{Finding, Level};
use crate::preflight::trial;

/// Name of the trial's device. A program that serves Podgate's own does not serve this one.
const DEVICE: &str = "pgcheck-wg";
const MTU: u32 = 1420;

/// Checks whether the switch can encrypt; `None` if encryption is not wanted. `offload`: flow offload is possible.
pub(crate) fn look(wanted: bool, offload: bool, capabilities: &[String]) -> Option<Finding> {
    let finding = |level, detail: &str| Finding::new("encryption", level, detail);
    if !wanted {
        return None;
    }
    if !offload {
        let detail = "not possible without flow offload, whose programs stand at the uplink";
        return Some(finding(Level::Fatal, detail));
    }
    if WireGuardDevice::is_served() {
        return Some(finding(Level::Good, "a program serves the WireGuard device"));
    }
    Some(match trial::run(capabilities, attempt) {
        None => finding(Level::Note, trial::NOT_ALLOWED),
        Some(Ok(())) => finding(Level::Good, "the kernel has WireGuard and takes the programs"),
        Some(Err(why)) => finding(Level::Fatal, &format!("not possible: {why}"))
            .hint("load the kernel's module wireguard, or leave encryption off"),
    })
}

fn attempt() -> Result<(), trial::Failure> {
    Programs::load()?;
    WireGuardDevice::open(&mut Netlink::open()?, DEVICE, MTU)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_needs_is_named() {
        assert_eq!(look(false, true, &[]), None);
        let without = look(true, false, &[]).unwrap();
        assert_eq!(without.level, Level::Fatal);
        assert!(without.detail.contains("without flow offload"), "{}", without.detail);
    }

    /// As the kernel is: it has WireGuard, or its lack is fatal.
    #[test]
    fn the_device_is_tried() {
        testkit::requires_root!();
        let finding = look(true, true, &["SYS_ADMIN".to_owned()]).unwrap();
        match finding.level {
            Level::Fatal => assert!(finding.detail.contains("module wireguard"), "{finding:?}"),
            level => assert_eq!(level, Level::Good, "{finding:?}"),
        }
    }
}
