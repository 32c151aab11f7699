//! The kernel's release, capabilities, and features that are probed.

use std::path::Path;

use crate::preflight::finding::{Finding, Level};
use crate::preflight::{Wanted, has, trial};
use crate::sys;

/// First release on which everything works that Podgate can use.
const COMPLETE: (u32, u32) = (6, 8);
/// First release with CAP_BPF.
const OLDEST: (u32, u32) = (5, 8);

pub(crate) fn release() -> Finding {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    rate_release(release.trim())
}

fn rate_release(release: &str) -> Finding {
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().ok());
    let detail = format!("Linux {release}");
    let finding = |level| Finding::new("kernel", level, detail.clone());
    match (parts.next().flatten(), parts.next().flatten()) {
        (Some(major), Some(minor)) if (major, minor) >= COMPLETE => finding(Level::Good),
        (Some(major), Some(minor)) if (major, minor) >= OLDEST => finding(Level::Note).hint(
            "6.6 takes packets above 3500 bytes, 6.8 leaves their checksums to the receiving kernel",
        ),
        (Some(_), Some(_)) => finding(Level::Fatal).hint("Linux 5.8 or later is needed"),
        _ => finding(Level::Warning).hint("this release has no number that can be compared"),
    }
}

/// Capabilities that the switch keeps while it runs (`confine::capabilities::SWITCH`).
const KEPT: [&str; 4] = ["NET_ADMIN", "NET_RAW", "BPF", "IPC_LOCK"];

pub(crate) fn capabilities(held: &[String]) -> Finding {
    let missing: Vec<&str> = KEPT.into_iter().filter(|name| !has(held, name)).collect();
    let finding = |level, detail: String| Finding::new("capabilities", level, detail);
    if !missing.is_empty() {
        let detail = format!("{} missing", missing.join(", "));
        return finding(Level::Fatal, detail).hint("run it as root, or add them to the container");
    }
    let dropped: Vec<&str> =
        ["SYS_ADMIN", "SETPCAP"].into_iter().filter(|name| !has(held, name)).collect();
    if !dropped.is_empty() {
        let hint = "the start uses SYS_ADMIN to recognise its own XDP programs on the uplink, \
                    SETPCAP to give up all other privileges; both are given up then";
        return finding(Level::Warning, format!("{} missing", dropped.join(", "))).hint(hint);
    }
    finding(Level::Good, format!("{}; SYS_ADMIN and SETPCAP for the start", KEPT.join(", ")))
}

pub(crate) fn tcx() -> Finding {
    match sys::has_tcx() {
        Ok(true) => Finding::new("tcx", Level::Good, "available"),
        Ok(false) => Finding::new("tcx", Level::Note, "not available, it comes with Linux 6.6"),
        Err(error) => Finding::new("tcx", Level::Note, format!("not tried: {error}")),
    }
}

pub(crate) fn landlock() -> Finding {
    let finding = |level, detail: String| Finding::new("landlock", level, detail);
    match confine::files::version() {
        Some(version) => finding(Level::Good, format!("version {version}")),
        None => finding(Level::Note, "not available".to_owned()).hint(
            "the switch could write any file of its user; the systemd unit and the container have \
             read-only file systems",
        ),
    }
}

pub(crate) fn btf() -> Finding {
    const FILE: &str = "/sys/kernel/btf/vmlinux";
    if Path::new(FILE).exists() {
        return Finding::new("btf", Level::Good, FILE);
    }
    Finding::new("btf", Level::Note, format!("no {FILE}; the XDP programs do without"))
}

/// A table as the switch makes them.
const TABLE: &str = "table inet podgate-check {
  chain nat { type nat hook postrouting priority 100; ip saddr 192.0.2.0/24 masquerade; }
  chain output { type nat hook output priority -100; ip daddr 192.0.2.1 dnat ip to 192.0.2.2; }
  chain filter { type filter hook forward priority 0; drop; }
}
";

pub(crate) fn nftables(wanted: &Wanted, capabilities: &[String]) -> Finding {
    let finding = |level, detail: &str| Finding::new("nftables", level, detail);
    let needed = wanted.host_port || wanted.masquerade;
    let missing = if needed { Level::Warning } else { Level::Note };
    match trial::run(capabilities, || Ok(linux_net::nft::run(TABLE)?)) {
        None => finding(Level::Note, trial::NOT_ALLOWED),
        Some(Ok(())) => finding(Level::Good, "tables with NAT and filters can be loaded"),
        Some(Err(error)) => finding(missing, error.to_string().lines().next().unwrap_or_default()).hint(
            "install the package nftables, and the kernel modules nf_tables and nft_masq: without \
             them pods are not masqueraded, and the node's processes reach no service",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_number() {
        let cases = [
            ("6.18.44-fc-v445", Level::Good),
            ("6.8.0-45-generic", Level::Good),
            ("6.1.0-13-amd64", Level::Note),
            ("5.10.0", Level::Note),
            ("5.4.0-150", Level::Fatal),
            ("4.19.0", Level::Fatal),
            ("strange", Level::Warning),
            ("", Level::Warning),
        ];
        for (release, level) in cases {
            assert_eq!(rate_release(release).level, level, "{release}");
        }
    }

    #[test]
    fn missing_capabilities_are_named() {
        let held = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let root = held(&["NET_ADMIN", "NET_RAW", "BPF", "IPC_LOCK", "SYS_ADMIN", "SETPCAP"]);
        assert_eq!(capabilities(&root).level, Level::Good);
        let container = capabilities(&held(&["NET_RAW", "IPC_LOCK"]));
        assert_eq!(
            (container.level, container.detail.as_str()),
            (Level::Fatal, "NET_ADMIN, BPF missing")
        );
        let confined = capabilities(&root[..4]);
        assert_eq!(confined.level, Level::Warning);
        assert_eq!(confined.detail, "SYS_ADMIN, SETPCAP missing");
    }

    #[test]
    fn what_the_switch_keeps_is_what_is_looked_for() {
        let kept = confine::capabilities::SWITCH.bits().count_ones() as usize;
        assert_eq!(kept, KEPT.len());
    }
}
