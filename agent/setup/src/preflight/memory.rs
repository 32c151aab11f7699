//! Memory cost of the switch, and whether the machine has that much.

use std::fmt;
use std::path::Path;

use dataplane::session::SESSION_BYTES;
use rustix::process::{Resource, getrlimit};
use serde::Serialize;

use crate::preflight::finding::{Finding, Level};
use crate::preflight::{Wanted, has};

/// Use of huge pages for frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HugePages {
    /// Huge pages if enough are free.
    Auto,
    /// Huge pages.
    On,
    /// Plain pages.
    Off,
}

/// Bytes of a frame.
const FRAME: u64 = 4096;
/// Bytes that the kernel sets aside for each frame of the UMEM and each AF_XDP socket.
const FRAME_AND_SOCKET: u64 = 133;
const HUGE_PAGE: u64 = 2 << 20;

/// Memory cost of the switch, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Number of pods.
    pub pods: u32,
    /// Ports of those pods, the host port and the uplink.
    pub ports: u32,
    /// Frames of the UMEM, shared by all ports.
    pub umem_bytes: u64,
    /// AF_XDP sockets. With flow offload one for each worker serves all pods, else each pod has one.
    pub sockets: u32,
    /// Kernel memory for the sockets.
    pub kernel_bytes: u64,
    /// The share of one socket, which a pod costs without flow offload.
    pub kernel_bytes_per_port: u64,
    /// The session table.
    pub session_bytes: u64,
    /// Sum of the above.
    pub total_bytes: u64,
    /// Ports that the frames are enough for, or `max-ports` with flow offload.
    pub ports_that_fit: u32,
}

/// The cost with flow offload, or without.
pub(crate) fn estimate(wanted: &Wanted, offload: bool) -> Memory {
    let others = u32::from(wanted.host_port) + u32::from(wanted.uplink.is_some());
    let ports = wanted.pods.saturating_add(others);
    let frames = u64::from(match offload {
        true => wanted.umem_frames,
        false => wanted.umem_frames_without_offload,
    });
    let (umem_bytes, kernel_bytes_per_port) = (frames * FRAME, frames * FRAME_AND_SOCKET);
    let sockets = if offload { wanted.workers.saturating_add(others) } else { ports };
    let kernel_bytes = kernel_bytes_per_port * u64::from(sockets);
    let session_bytes = u64::from(wanted.sessions) * SESSION_BYTES;
    // An eighth is kept for busy ports, as much for packets on their way.
    let fit = match offload {
        true => u64::MAX,
        false => frames * 3 / 4 / u64::from(wanted.frames_per_port.max(1)),
    };
    Memory {
        pods: wanted.pods,
        ports,
        umem_bytes,
        sockets,
        kernel_bytes,
        kernel_bytes_per_port,
        session_bytes,
        total_bytes: umem_bytes + kernel_bytes + session_bytes,
        ports_that_fit: fit.min(wanted.max_ports.into()) as u32,
    }
}

/// Facts about the machine's memory.
struct Machine {
    /// Bytes that can be had without swapping.
    available: Option<u64>,
    free_huge_pages: u64,
    /// `RLIMIT_MEMLOCK` in bytes; `None`: unlimited.
    memlock: Option<u64>,
}

impl Machine {
    fn now() -> Self {
        let folder = Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
        let free = std::fs::read_to_string(folder).unwrap_or_default();
        let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Self {
            available: available(&info),
            free_huge_pages: free.trim().parse().unwrap_or(0),
            memlock: getrlimit(Resource::Memlock).current,
        }
    }
}

fn available(info: &str) -> Option<u64> {
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024)
}

pub(crate) fn look(wanted: &Wanted, memory: &Memory, capabilities: &[String]) -> Vec<Finding> {
    rate(wanted, memory, has(capabilities, "IPC_LOCK"), &Machine::now())
}

/// Where frames would stand.
pub(crate) fn pages(wanted: &Wanted, memory: &Memory) -> &'static str {
    let free = Machine::now().free_huge_pages;
    match wanted.hugepages {
        HugePages::On => "huge pages",
        HugePages::Auto if huge_pages(memory) <= free => "huge pages",
        _ => "plain pages",
    }
}

fn huge_pages(memory: &Memory) -> u64 {
    memory.umem_bytes.div_ceil(HUGE_PAGE)
}

fn rate(wanted: &Wanted, memory: &Memory, unlimited: bool, machine: &Machine) -> Vec<Finding> {
    let memlock = match machine.memlock {
        _ if unlimited => Finding::new("memlock", Level::Good, "not counted, by IPC_LOCK"),
        None => Finding::new("memlock", Level::Good, "unlimited"),
        Some(limit) if limit >= memory.umem_bytes => {
            Finding::new("memlock", Level::Good, megabytes(limit))
        }
        Some(limit) => {
            let (has, wants) = (megabytes(limit), megabytes(memory.umem_bytes));
            Finding::new("memlock", Level::Warning, format!("{has} of {wants}"))
                .hint("raise LimitMEMLOCK, or keep the capability IPC_LOCK")
        }
    };
    let (pages, free) = (huge_pages(memory), machine.free_huge_pages);
    let found = format!("{free} of 2 MiB are free, {pages} would hold the frames");
    let hugepages = match wanted.hugepages {
        HugePages::Off => Finding::new("hugepages", Level::Good, "not asked for"),
        _ if free >= pages => Finding::new("hugepages", Level::Good, found),
        HugePages::Auto => {
            Finding::new("hugepages", Level::Note, found + "; plain pages are taken")
        }
        HugePages::On => Finding::new("hugepages", Level::Fatal, found)
            .hint(format!("sysctl vm.nr_hugepages={pages}, or hugepages: auto")),
    };
    let (total, available) = (memory.total_bytes, machine.available);
    let costs = format!("{} for {} pods", megabytes(total), memory.pods);
    let room = match available {
        Some(available) if available < memory.umem_bytes + memory.session_bytes => {
            let detail = format!("{costs}, {} can be had", megabytes(available));
            Finding::new("memory", Level::Fatal, detail).hint("lower umem-frames or sessions")
        }
        Some(available) if available < total => {
            let detail = format!("{costs}, {} can be had", megabytes(available));
            Finding::new("memory", Level::Warning, detail).hint("lower umem-frames, or --pods")
        }
        _ => Finding::new("memory", Level::Good, costs),
    };
    let (ports, fit) = (memory.ports, memory.ports_that_fit);
    let ports = match ports <= fit {
        true => Finding::new("ports", Level::Good, format!("{ports} of {fit} that fit")),
        false => {
            let detail = format!("{ports} are wanted, {fit} fit");
            let mut hint = format!("max-ports: {}", ports.max(wanted.max_ports));
            // With flow offload ports keep no frames of their own.
            if memory.sockets >= ports {
                let frames = u64::from(ports) * u64::from(wanted.frames_per_port) * 4 / 3;
                let frames = frames.next_power_of_two().max(memory.umem_bytes / FRAME);
                hint = format!("umem-frames: {frames}, {hint}");
            }
            Finding::new("ports", Level::Warning, detail).hint(hint)
        }
    };
    vec![memlock, hugepages, room, ports]
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Memory for {} pods (AF_XDP sockets: {}):", self.pods, self.sockets)?;
        let mut line = |what: &str, bytes: u64| writeln!(f, "  {what:17} {}", megabytes(bytes));
        line("frames", self.umem_bytes)?;
        line("kernel's, sockets", self.kernel_bytes)?;
        line("  of that for one", self.kernel_bytes_per_port)?;
        line("sessions", self.session_bytes)?;
        line("together", self.total_bytes)?;
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn wanted() -> Wanted {
        Wanted {
            capabilities: confine::capabilities::SWITCH,
            af_xdp: true,
            socket_policies: false,
            pods: 110,
            max_ports: 1024,
            umem_frames: 16_384,
            umem_frames_without_offload: 65_536,
            frames_per_port: 256,
            hugepages: HugePages::Auto,
            flow_offload: true,
            workers: 2,
            sessions: 1 << 18,
            mtu: 1500,
            host_port: true,
            masquerade: true,
            uplink: Some("auto".into()),
            node_addresses: Vec::new(),
            tunnels: true,
            encryption: false,
            rx_mode: "adaptive".into(),
            cni_folder: "/etc/cni/net.d".into(),
            journal: None,
        }
    }

    const PLENTY: Machine =
        Machine { available: Some(64 << 30), free_huge_pages: 1 << 16, memlock: None };

    fn level(findings: &[Finding], check: &str) -> Level {
        findings.iter().find(|finding| finding.check == check).unwrap().level
    }

    #[test]
    fn a_pod_costs_what_the_documents_say() {
        let memory = estimate(&wanted(), false);
        assert_eq!(memory.kernel_bytes_per_port, 8_716_288);
        assert_eq!(memory.umem_bytes, 256 << 20);
        assert_eq!((memory.ports, memory.sockets, memory.ports_that_fit), (112, 112, 192));
        let none = Wanted { pods: 0, host_port: false, uplink: None, ..wanted() };
        let none = estimate(&none, false);
        assert_eq!(none.total_bytes, none.umem_bytes + none.session_bytes);
    }

    #[test]
    fn with_flow_offload_pods_share_the_sockets_of_the_workers() {
        let memory = estimate(&wanted(), true);
        assert_eq!((memory.ports, memory.sockets, memory.ports_that_fit), (112, 4, 1024));
        assert_eq!(memory.kernel_bytes, 4 * memory.kernel_bytes_per_port);
        assert_eq!(memory.umem_bytes, 64 << 20);
        let more = estimate(&Wanted { pods: 1000, ..wanted() }, true);
        assert_eq!(more.total_bytes, memory.total_bytes);
    }

    #[test]
    fn a_machine_with_plenty_has_nothing_missing() {
        let memory = estimate(&wanted(), false);
        let findings = rate(&wanted(), &memory, false, &PLENTY);
        assert!(findings.iter().all(|finding| finding.level == Level::Good), "{findings:?}");
    }

    #[test]
    fn what_is_short_is_named() {
        let memory = estimate(&wanted(), false);
        let rate = |wanted: &Wanted, machine: &Machine| {
            rate(wanted, &estimate(wanted, false), false, machine)
        };
        let limited = Machine { memlock: Some(8 << 20), ..PLENTY };
        assert_eq!(level(&rate(&wanted(), &limited), "memlock"), Level::Warning);
        let none = Machine { free_huge_pages: 0, ..PLENTY };
        assert_eq!(level(&rate(&wanted(), &none), "hugepages"), Level::Note);
        let on = Wanted { hugepages: HugePages::On, ..wanted() };
        assert_eq!(level(&rate(&on, &none), "hugepages"), Level::Fatal);
        let short = Machine { available: Some(memory.total_bytes - 1), ..PLENTY };
        assert_eq!(level(&rate(&wanted(), &short), "memory"), Level::Warning);
        let tiny = Machine { available: Some(1 << 20), ..PLENTY };
        assert_eq!(level(&rate(&wanted(), &tiny), "memory"), Level::Fatal);
    }

    #[test]
    fn the_hint_about_ports_is_enough() {
        let many = Wanted { pods: 500, ..wanted() };
        let findings = rate(&many, &estimate(&many, false), false, &PLENTY);
        let ports = findings.iter().find(|finding| finding.check == "ports").unwrap();
        assert_eq!(ports.level, Level::Warning);
        assert_eq!(ports.hint.as_deref(), Some("umem-frames: 262144, max-ports: 1024"));
        let more = Wanted { umem_frames_without_offload: 262_144, ..many };
        assert!(estimate(&more, false).ports_that_fit >= 502);
    }

    #[test]
    fn more_ports_need_no_more_frames_with_flow_offload() {
        let many = Wanted { pods: 2000, ..wanted() };
        let findings = rate(&many, &estimate(&many, true), false, &PLENTY);
        let ports = findings.iter().find(|finding| finding.check == "ports").unwrap();
        assert_eq!(ports.hint.as_deref(), Some("max-ports: 2002"));
    }

    #[test]
    fn free_memory_is_read_as_the_kernel_writes_it() {
        assert_eq!(available("MemTotal: 5 kB\nMemAvailable:    2048 kB\n"), Some(2 << 20));
        assert_eq!(available("MemTotal: 5 kB\n"), None);
    }
}
