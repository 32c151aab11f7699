//! The kernel's release, capabilities, and features that are probed.

use std::path::Path;

use confine::capabilities::CapabilitySet;
use dataplane::bpf::KernelTypes;
use dataplane::kernel::{Fault, Kernel, Release};

use crate::preflight::finding::{Finding, Level};
use crate::preflight::trial::{self, Privileges};
use crate::preflight::{Wanted, has};
use crate::sys;

/// First release on which everything works that Podgate can use.
const COMPLETE: Release = Release(6, 8, 0);

pub(crate) fn release(kernel: &Kernel) -> Finding {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let finding = |level| Finding::new("kernel", level, format!("Linux {}", text.trim()));
    match (kernel.release(), kernel.too_old()) {
        (Some(release), _) if release >= COMPLETE => finding(Level::Good),
        (Some(_), None) => finding(Level::Note).hint(
            "6.6 takes packets above 3500 bytes, 6.8 leaves their checksums to the receiving kernel",
        ),
        (Some(_), Some(needed)) => finding(Level::Fatal).hint(needed),
        (None, _) => finding(Level::Warning).hint("this release has no number that can be compared"),
    }
}

/// Rates the faults that the kernel is known to have; `af_xdp`: AF_XDP sockets are wanted.
pub(crate) fn faults(kernel: &Kernel, af_xdp: bool) -> Finding {
    let finding = |level, detail: String| Finding::new("kernel-faults", level, detail);
    let worst = kernel.refuses_af_xdp().filter(|_| af_xdp);
    let Some(fault) = worst.or_else(|| kernel.faults().next()) else {
        return finding(Level::Good, "none that is known".to_owned());
    };
    let [brought, mended] = fault.commits;
    let Fault { consequence, remedy, .. } = fault;
    let level = if worst.is_some() { Level::Fatal } else { Level::Note };
    finding(level, format!("{consequence} (commit {brought}, mended by {mended})")).hint(*remedy)
}

/// Capabilities of a start: `SYS_ADMIN` loads programs that older kernels refuse without (`PERFMON`
/// is enough for that), and recognises own programs on the uplink; `SETPCAP` gives up all others.
const OF_START: CapabilitySet = CapabilitySet::SYS_ADMIN.union(CapabilitySet::SETPCAP);

/// Rates the capabilities of this process, by those that the switch keeps.
pub(crate) fn capabilities(held: &[String], kept: CapabilitySet) -> Finding {
    let names = |set: CapabilitySet| confine::Confinement::names(set);
    let missing = |set| names(set).into_iter().filter(|name| !has(held, name)).collect::<Vec<_>>();
    let finding = |level, detail: String| Finding::new("capabilities", level, detail);
    let (missing, of_start) = (missing(kept), missing(OF_START));
    if !missing.is_empty() {
        let detail = format!("{} missing", missing.join(", "));
        return finding(Level::Fatal, detail).hint("run it as root, or add them to the container");
    }
    if !of_start.is_empty() {
        let hint = "the start uses SYS_ADMIN to load programs that older kernels refuse without, and to recognise \
                    its own on the uplink, SETPCAP to give up all other privileges; both are given up then";
        return finding(Level::Warning, format!("{} missing", of_start.join(", "))).hint(hint);
    }
    finding(Level::Good, format!("{}; SYS_ADMIN and SETPCAP for the start", names(kept).join(", ")))
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
    const FILE: &str = KernelTypes::RUNNING;
    if Path::new(FILE).exists() {
        return Finding::new("btf", Level::Good, FILE);
    }
    Finding::new("btf", Level::Note, format!("no {FILE}; known faults are told by the release"))
}

/// A table as the switch makes them.
const TABLE: &str = "table inet podgate-check {
  chain nat { type nat hook postrouting priority 100; ip saddr 192.0.2.0/24 masquerade; }
  chain output { type nat hook output priority -100; ip daddr 192.0.2.1 dnat ip to 192.0.2.2; }
  chain filter { type filter hook forward priority 0; drop; }
}
";

pub(crate) fn nftables(wanted: &Wanted, privileges: Privileges<'_>) -> Finding {
    let finding = |level, detail: &str| Finding::new("nftables", level, detail);
    let needed = wanted.host_port || wanted.masquerade || !wanted.af_xdp;
    let missing = if needed { Level::Warning } else { Level::Note };
    match privileges.run(|| Ok(()), |()| Ok(linux_net::nft::run(TABLE)?)) {
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
    use std::path::PathBuf;

    use confine::capabilities::{NFTABLES, SWITCH};
    use dataplane::kernel::{FAULTS, OLDEST};
    use testkit::TempDir;

    use super::*;

    /// A kernel without type information.
    fn kernel(release: &str) -> Kernel {
        Kernel::of(release, Path::new("/nowhere"))
    }

    #[test]
    fn releases_are_compared_by_number() {
        let cases = [
            ("6.18.44-fc-v445", Level::Good),
            ("6.8.0-45-generic", Level::Good),
            ("6.1.0-13-amd64", Level::Note),
            ("5.15.0-100-generic", Level::Fatal),
            ("5.4.0-150", Level::Fatal),
            ("strange", Level::Warning),
            ("", Level::Warning),
        ];
        for (release, level) in cases {
            assert_eq!(super::release(&kernel(release)).level, level, "{release}");
        }
    }

    #[test]
    fn a_kernel_that_panics_is_fatal_where_sockets_are_wanted() {
        let folder = TempDir::new("btf");
        let of = |release: &str, name: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, testkit::btf(&[(name, &["num_descs"])])).unwrap();
            Kernel::of(release, &path)
        };
        let faulty = of("6.12.5", "xsk_addr_head");
        let finding = faults(&faulty, true);
        assert_eq!(finding.level, Level::Fatal, "{finding:?}");
        assert!(finding.detail.contains("30f241fcf52a"), "{finding:?}");
        assert!(finding.hint.unwrap().contains("--enforcer nftables"));
        assert_eq!(faults(&faulty, false).level, Level::Note);
        assert_eq!(faults(&of("6.17.8", "xsk_addrs"), true).level, Level::Good);
        assert_eq!(faults(&kernel("6.17.8"), true).level, Level::Fatal);
    }

    #[test]
    fn missing_capabilities_are_named() {
        let held = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let root = held(&["NET_ADMIN", "NET_RAW", "BPF", "IPC_LOCK", "SYS_ADMIN", "SETPCAP"]);
        assert_eq!(capabilities(&root, SWITCH).level, Level::Good);
        let container = capabilities(&held(&["NET_RAW", "IPC_LOCK"]), SWITCH);
        assert_eq!(
            (container.level, container.detail.as_str()),
            (Level::Fatal, "NET_ADMIN, BPF missing")
        );
        let confined = capabilities(&root[..4], SWITCH);
        assert_eq!(confined.level, Level::Warning);
        assert_eq!(confined.detail, "SETPCAP, SYS_ADMIN missing");
        let few = held(&["NET_ADMIN", "NET_RAW", "SYS_ADMIN", "SETPCAP"]);
        assert_eq!(capabilities(&few, NFTABLES).level, Level::Good);
    }

    fn document(name: &str) -> (PathBuf, String) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
        let text = std::fs::read_to_string(&path).unwrap();
        (path, text)
    }

    #[test]
    fn documents_name_the_oldest_release() {
        for name in ["check.md", "install.md", "releases.md"] {
            let (path, text) = document(name);
            assert!(text.contains(&format!("Linux {OLDEST}")), "{}", path.display());
        }
    }

    /// `UPDATE=1 cargo test -p setup documents` writes the table.
    #[test]
    fn documents_list_the_faults_that_are_known() {
        let mut table = String::from(
            "| fault | consequence | recognised by | without type information | then | brought, mended by | remedy |\n\
             |---|---|---|---|---|---|---|\n",
        );
        for fault in &FAULTS {
            let releases: Vec<_> =
                fault.releases.iter().map(|it| format!("{} to {}", it.start(), it.end())).collect();
            let Fault { name, consequence, sign, treatment, commits, remedy, .. } = fault;
            table += &format!(
                "| {name} | {consequence} | {sign} | {} | {treatment} | {} | {remedy} |\n",
                releases.join(", "),
                commits.join(", ")
            );
        }
        let (path, text) = document("check.md");
        let (begin, end) = ("<!-- kernel faults -->\n", "<!-- end -->\n");
        let (before, rest) = text.split_once(begin).unwrap();
        let (old, after) = rest.split_once(end).unwrap();
        if old == table {
            return;
        }
        assert!(std::env::var_os("UPDATE").is_some(), "run UPDATE=1 cargo test -p setup documents");
        std::fs::write(&path, format!("{before}{begin}{table}{end}{after}")).unwrap();
    }
}
