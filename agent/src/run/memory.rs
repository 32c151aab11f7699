//! The table `memory`: what the switch holds, beside what it can hold.

use dataplane::session::SESSION_BYTES;

use super::shared_status::SharedStatus;
use super::table::Table;

/// Bytes of a packet buffer.
const FRAME_BYTES: u64 = 4096;

/// Parts of the switch with a fixed size, and how much of each is in use.
pub(super) fn memory(shared: &SharedStatus) -> Table {
    let (switch, config) = (&shared.switch, &shared.config);
    let (sessions, frames) = (switch.sessions(), u64::from(config.umem_frames));
    let (_, free) = switch.frames();
    let ports = shared.state().ports.iter().filter(|port| port.id.is_some()).count() as u64;
    let verdicts = shared.broker.counts();
    let offloaded = shared.flow_offload();
    let offloaded = offloaded.running().map(|offload| offload.state().connections);
    let mut table = Table::new(&["part", "used", "capacity", "bytes", "meaning"]);
    let mut add = |part: &str,
                   used: u64,
                   capacity: Option<u64>,
                   bytes: Option<u64>,
                   meaning: &str| {
        table.add(vec![part.into(), used.into(), capacity.into(), bytes.into(), meaning.into()]);
    };
    add(
        "packet-buffers",
        frames.saturating_sub(free as u64),
        Some(frames),
        Some(frames * FRAME_BYTES),
        "umem-frames; used by ports, workers and packets on their way",
    );
    let capacity = u64::from(sessions.capacity());
    let bytes = Some(capacity * SESSION_BYTES);
    add("sessions", sessions.used().into(), Some(capacity), bytes, "the session table");
    add("ports", ports, Some(config.max_ports.into()), None, "pods, host port and uplink");
    let capacity = Some(verdicts.capacity as u64);
    add("verdicts", verdicts.kept as u64, capacity, None, "past verdicts for podgate observe");
    if let Some(connections) = offloaded {
        add("offloaded", connections, None, None, "connections in the kernel's maps");
    }
    let resident = resident();
    add("process", resident.unwrap_or(0), None, resident, "resident memory of the process");
    table
}

/// Resident bytes of the process (`VmRSS` of proc(5)).
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_shown_beside_what_they_can_hold() {
        let folder = testkit::TempDir::new("memory");
        let shared = crate::run::shared_status::tests::started(folder.path());
        let table = memory(&shared);
        let part = |name: &str| table.rows.iter().find(|row| row[0] == name).unwrap();
        let sessions = part("sessions");
        assert_eq!((&sessions[1], sessions[2].as_u64()), (&0.into(), Some(1_048_576)));
        assert_eq!(sessions[3].as_u64(), Some(1_048_576 * SESSION_BYTES));
        assert!(part("process")[3].as_u64().unwrap() > 1 << 20);
        assert!(part("packet-buffers")[1].as_u64() <= part("packet-buffers")[2].as_u64());
    }
}
