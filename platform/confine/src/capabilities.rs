//! Capabilities (capabilities(7)), each with the feature that needs it.

use std::io;

pub use rustix::thread::CapabilitySet;
use rustix::thread::{
    CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

/// Capabilities of the switch:
///
/// - `NET_ADMIN`: XDP programs on interfaces, netlink, nftables, sysctls of the network,
/// - `NET_RAW`: AF_XDP sockets,
/// - `BPF`: maps of programs, and attaching these,
/// - `IPC_LOCK`: the memory of packets is not counted against `RLIMIT_MEMLOCK`.
///
/// Programs are loaded before the others are given up: with `PERFMON` (or `SYS_ADMIN`, which
/// includes it) the kernel takes some that it refuses without. A process that kept it could read
/// the kernel's memory.
pub const SWITCH: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::IPC_LOCK);

/// Capabilities of enforcement by nftables: rules, netlink and sysctls of the network; raw sockets for resets.
pub const NFTABLES: CapabilitySet = CapabilitySet::NET_ADMIN.union(CapabilitySet::NET_RAW);

/// The same, and `BPF` for programs at pods' cgroups.
pub const NFTABLES_AND_SOCKETS: CapabilitySet = NFTABLES.union(CapabilitySet::BPF);

/// Capabilities of the CNI plugin and the IPAM plugin that it calls:
///
/// - `NET_ADMIN`: veth pairs, addresses, routes,
/// - `SYS_ADMIN`: entering the pod's network namespace.
pub const PLUGIN: CapabilitySet = CapabilitySet::NET_ADMIN.union(CapabilitySet::SYS_ADMIN);

/// Capabilities of the proxy: none.
pub const NONE: CapabilitySet = CapabilitySet::empty();

/// Keeps these capabilities of those the calling thread has, for good: later programs that it runs
/// gain none either.
///
/// # Errors
/// Fails if the kernel refuses.
pub fn keep(kept: CapabilitySet) -> io::Result<()> {
    let held = capabilities(None)?;
    if held.permitted.contains(CapabilitySet::SETPCAP) {
        // Those that this kernel does not know are refused, and not there.
        for capability in CapabilitySet::all().difference(kept).iter() {
            let _ = remove_capability_from_bounding_set(capability);
        }
    }
    clear_ambient_capability_set()?;
    let kept = held.permitted.intersection(kept);
    let sets =
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets)?;
    set_no_new_privs(true)?;
    Ok(())
}
