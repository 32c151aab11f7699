//! Checks what a machine allows the switch to do, which modes the switch takes there, and its memory cost.
//!
//! ```text
//!   Wanted ─▶ inspect ─▶ kernel, af_xdp, flow_offload, memory, uplink, cni ─▶ Finding … ─▶ Report
//!                        (each reads facts, then rates them)
//! ```
//!
//! Nothing is changed: features are tried in a network namespace without a name, which ends with
//! the check. Programs are loaded with the privileges of this process, and all else is done with
//! those that the switch keeps: as in a start.

mod af_xdp;
mod cni;
mod encryption;
mod finding;
mod flow_offload;
mod journal;
mod kernel;
mod memory;
mod report;
mod socket_policies;
mod trial;
mod uplink;

use std::net::IpAddr;
use std::path::PathBuf;

use confine::capabilities::CapabilitySet;
use dataplane::kernel::Kernel;

pub use finding::{Finding, Level};
pub use journal::Journal;
pub use memory::{HugePages, Memory};
pub use report::{Modes, Report};
use trial::Privileges;

/// Options that the switch would be started with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Capabilities that the switch keeps.
    pub capabilities: CapabilitySet,
    /// True if the switch opens AF_XDP sockets.
    pub af_xdp: bool,
    /// True if programs at pods' cgroups are wanted.
    pub socket_policies: bool,
    /// Pods of this node.
    pub pods: u32,
    /// Maximum number of ports.
    pub max_ports: u32,
    /// Frames of the UMEM.
    pub umem_frames: u32,
    /// Frames of the UMEM where flow offload is unavailable.
    pub umem_frames_without_offload: u32,
    /// Frames that each port keeps ready.
    pub frames_per_port: u32,
    /// Use of huge pages for frames.
    pub hugepages: HugePages,
    /// True if flow offload is wanted.
    pub flow_offload: bool,
    /// Workers.
    pub workers: u32,
    /// Size of the session table.
    pub sessions: u32,
    /// Largest packet of the host port, in bytes.
    pub mtu: u32,
    /// True if there is a host port.
    pub host_port: bool,
    /// True if the kernel masquerades for pods.
    pub masquerade: bool,
    /// Name of the uplink's interface, or `auto`; `None`: no uplink.
    pub uplink: Option<String>,
    /// Addresses by which `auto` finds the uplink.
    pub node_addresses: Vec<IpAddr>,
    /// True if nodes are connected by tunnels.
    pub tunnels: bool,
    /// True if traffic between nodes is encrypted.
    pub encryption: bool,
    /// Receive mode of workers, as in the configuration.
    pub rx_mode: String,
    /// Folder of CNI configurations.
    pub cni_folder: PathBuf,
    /// The journal, if there is to be one.
    pub journal: Option<Journal>,
}

/// Checks this machine.
pub fn inspect(wanted: &Wanted) -> Report {
    let capabilities = confine::Confinement::now().capabilities;
    let privileges = Privileges { held: &capabilities, kept: wanted.capabilities };
    let this = Kernel::running();
    let mut findings = vec![
        kernel::release(&this),
        kernel::faults(&this, wanted.af_xdp),
        kernel::capabilities(&capabilities, wanted.capabilities),
    ];
    let uses_af_xdp = wanted.af_xdp && this.refuses_af_xdp().is_none();
    let (tried, ports) =
        if uses_af_xdp { af_xdp::look(privileges, wanted.mtu) } else { (Vec::new(), None) };
    findings.extend(tried);
    let (offload, finding) = flow_offload::look(wanted.flow_offload && uses_af_xdp, privileges);
    findings.push(finding);
    findings.extend(encryption::look(wanted.encryption, offload, privileges));
    findings.extend(socket_policies::look(wanted.socket_policies, &capabilities));
    let memory = memory::estimate(wanted, offload);
    findings.push(kernel::tcx());
    findings.push(kernel::btf());
    findings.push(kernel::landlock());
    findings.push(kernel::nftables(wanted, privileges));
    if wanted.af_xdp {
        findings.extend(memory::look(wanted, &memory, &capabilities));
    }
    findings.extend(uplink::look(wanted));
    findings.push(cni::look(&wanted.cni_folder, uplink::pod_mtu(wanted)));
    findings.extend(wanted.journal.as_ref().map(journal::look));
    let modes = Modes {
        flow_offload: offload,
        ports: ports.as_ref().map(|ports| ports.mode.clone()),
        largest_packet: ports.as_ref().map(|ports| ports.largest_packet()),
        checksums: ports.as_ref().map(|ports| ports.checksums().to_owned()),
        frames: memory::pages(wanted, &memory).to_owned(),
        rx_mode: wanted.rx_mode.clone(),
        pod_mtu: uplink::pod_mtu(wanted),
    };
    Report { findings, modes, memory }
}

fn has(capabilities: &[String], name: &str) -> bool {
    capabilities.iter().any(|held| held == name)
}
