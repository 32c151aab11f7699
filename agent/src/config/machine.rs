//! Facts about the machine: its name, its cores, and the defaults that follow from its size.

use std::collections::BTreeSet;
use std::fs;

use dataplane::session::SESSION_BYTES;

use super::Cores;

/// Frames of the UMEM by default where each pod has sockets of its own.
pub(super) const FRAMES: u32 = 65_536;
/// Frames for each worker, for its queue of the punt link and packets in flight, and as many for host port and uplink.
const FRAMES_OF_WORKER: usize = 8192;
/// Frames for each core: an uplink mostly has a queue for each, and posts at most half of all frames.
const FRAMES_OF_CORE: usize = 512;

/// The default of `umem-frames` with flow offload, where one link has the frames of all pods.
pub(super) fn frames_of_flow_offload(workers: usize, cores: usize) -> u32 {
    let wanted = (FRAMES_OF_WORKER * (workers + 1)).max(FRAMES_OF_CORE * cores);
    u32::try_from(wanted).map_or(FRAMES, |wanted| wanted.min(FRAMES))
}

/// Least number of sessions that fit by default.
const LEAST_SESSIONS: u32 = 1 << 20;

/// The default of `sessions`: 1024 a port, in a 64th of the memory at most.
pub(super) fn usual_sessions(max_ports: u16) -> u32 {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kilobytes = total.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    let room = kilobytes.unwrap_or(0) * 1024 / 64 / SESSION_BYTES;
    let wanted = u64::from(max_ports) * 1024;
    wanted.min(room).max(LEAST_SESSIONS.into()) as u32
}

/// The host name.
pub fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// The cores that are online.
pub fn online_cores() -> BTreeSet<usize> {
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    match online.trim().parse::<Cores>() {
        Ok(cores) => cores.0.into_iter().collect(),
        Err(_) => (0..std::thread::available_parallelism().map_or(1, usize::from)).collect(),
    }
}
