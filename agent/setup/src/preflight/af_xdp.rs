//! AF_XDP, tried on a veth pair in a network namespace of its own.

use dataplane::port::af_xdp::{PortOptions, Programs, RegisteredUmem, UmemConfig};
use linux_net::{MAX_MTU, SINGLE_FRAME_MTU};

use crate::preflight::finding::{Finding, Level};
use crate::preflight::trial::{self, Privileges};

/// Frames of the trial's UMEM.
const FRAMES: u32 = 1024;

/// AF_XDP capabilities of a pod's port here.
pub(crate) struct Ports {
    /// Mode in which frames reach it.
    pub(crate) mode: String,
    takes_long_packets: bool,
    takes_metadata: bool,
}

impl Ports {
    pub(crate) fn largest_packet(&self) -> u32 {
        if self.takes_long_packets { MAX_MTU } else { SINGLE_FRAME_MTU.into() }
    }

    pub(crate) fn checksums(&self) -> &'static str {
        if self.takes_metadata { "receiving kernel" } else { "switch" }
    }
}

/// Returns the findings, and the capabilities of ports; `None` if they could not be tried.
pub(crate) fn look(privileges: Privileges<'_>, mtu: u32) -> (Vec<Finding>, Option<Ports>) {
    match privileges.run(|| Ok(Programs::load()?), open_port) {
        None => (vec![Finding::new("af-xdp", Level::Warning, trial::NOT_ALLOWED)], None),
        Some(Ok(ports)) => (rate(&ports, mtu), Some(ports)),
        Some(Err(error)) => {
            let finding = Finding::new("af-xdp", Level::Fatal, error.to_string())
                .hint("the kernel needs CONFIG_XDP_SOCKETS, CONFIG_BPF_SYSCALL and CONFIG_VETH");
            (vec![finding], None)
        }
    }
}

fn rate(ports: &Ports, mtu: u32) -> Vec<Finding> {
    let mode = &ports.mode;
    let bound = format!("a socket on a veth pair: {mode}");
    let af_xdp = match mode.starts_with("native") {
        true => Finding::new("af-xdp", Level::Good, bound),
        false => Finding::new("af-xdp", Level::Warning, bound)
            .hint("generic XDP copies each packet once more; veth has native XDP from Linux 4.19"),
    };
    let long = match ports.takes_long_packets {
        true => Finding::new("multi-buffer", Level::Good, format!("packets up to {MAX_MTU} bytes")),
        false => {
            let level =
                if mtu > u32::from(SINGLE_FRAME_MTU) { Level::Warning } else { Level::Note };
            let detail = format!("packets up to {SINGLE_FRAME_MTU} bytes; more need Linux 6.6");
            Finding::new("multi-buffer", level, detail)
        }
    };
    let metadata = match ports.takes_metadata {
        true => Finding::new("tx-metadata", Level::Good, "checksums are left to receivers"),
        false => {
            let detail = "not available (Linux 6.8): the switch completes checksums itself";
            Finding::new("tx-metadata", Level::Note, detail)
        }
    };
    vec![af_xdp, long, metadata]
}

/// Opens a port at one end of a veth pair, and an uplink at the other.
fn open_port(programs: Programs) -> Result<Ports, trial::Failure> {
    trial::veth_pair()?;
    let config = UmemConfig { frames: FRAMES, hugepages: false };
    let (umem, _memory, _frames) = RegisteredUmem::create(&config)?.bind(programs)?;
    let port = umem.open(trial::NEAR, &PortOptions::default())?;
    umem.open_uplink(trial::FAR, PortOptions::default().fill)?;
    Ok(Ports {
        mode: port.mode().to_string(),
        takes_long_packets: umem.takes_long_packets(),
        takes_metadata: umem.takes_metadata(),
    })
}

#[cfg(test)]
mod tests {
    use confine::capabilities::SWITCH;
    use linux_net::Netlink;

    use super::*;

    fn levels(ports: &Ports, mtu: u32) -> Vec<Level> {
        rate(ports, mtu).iter().map(|finding| finding.level).collect()
    }

    #[test]
    fn what_is_missing_counts_where_it_is_asked_for() {
        let mode = "native, copy".to_owned();
        let new = Ports { mode: mode.clone(), takes_long_packets: true, takes_metadata: true };
        assert_eq!(levels(&new, 9000), [Level::Good; 3]);
        assert_eq!((new.largest_packet(), new.checksums()), (65_000, "receiving kernel"));
        let old = Ports { mode, takes_long_packets: false, takes_metadata: false };
        assert_eq!(levels(&old, 1500), [Level::Good, Level::Note, Level::Note]);
        assert_eq!(levels(&old, 9000), [Level::Good, Level::Warning, Level::Note]);
        let generic = Ports { mode: "generic, copy".into(), ..old };
        assert_eq!(levels(&generic, 1500)[0], Level::Warning);
    }

    #[test]
    fn a_socket_is_bound_and_leaves_nothing() {
        testkit::requires_root!();
        let mut netlink = Netlink::open().unwrap();
        let before = netlink.links().unwrap().len();
        let held = ["SYS_ADMIN".to_owned()];
        let (findings, ports) = look(Privileges { held: &held, kept: SWITCH }, 1500);
        assert_eq!(findings[0].level, Level::Good, "{findings:?}");
        assert_eq!(ports.unwrap().mode, "native, copy");
        assert_eq!(netlink.links().unwrap().len(), before);
    }

    #[test]
    fn without_the_right_nothing_is_tried() {
        let held = ["NET_ADMIN".to_owned()];
        let (findings, ports) = look(Privileges { held: &held, kept: SWITCH }, 1500);
        assert_eq!((findings.len(), findings[0].level), (1, Level::Warning));
        assert!(ports.is_none());
    }
}
