//! What the switch is doing, in one object for people and scripts.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dataplane::{Outcome, Verdict};
use serde::{Deserialize, Serialize};

use super::board::Board;
use super::show::Table;
use crate::time::{Utc, for_people};

/// The answer to `status`; the names of its fields are fixed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Name of the cluster node.
    pub node: String,
    /// Version of the switch.
    pub version: String,
    /// Whether pods can be attached.
    pub ready: bool,
    /// What is not alive any more; empty if all is well.
    pub ailments: Vec<String>,
    /// When it was started, RFC 3339 in UTC.
    pub started: String,
    /// Seconds since then.
    pub uptime_s: u64,
    /// The last snapshot published.
    pub generation: u64,
    /// The oldest snapshot that a worker still decides by.
    pub generation_in_force: u64,
    /// `polling`, `adaptive` or `interrupt`.
    pub rx_mode: String,
    /// Each worker's rounds.
    pub workers: Vec<WorkerStatus>,
    /// How many sessions there are.
    pub sessions: SessionStatus,
    /// Packets by verdict: `forward`, `drop`, `consume`.
    pub packets: BTreeMap<String, u64>,
    /// Objects known, by kind.
    pub objects: BTreeMap<String, usize>,
    /// Documents of other kinds in the manifests, by kind.
    pub skipped: BTreeMap<String, usize>,
    /// What is wrong with the manifests.
    pub faults: Vec<String>,
    /// All ports.
    pub ports: Vec<PortStatus>,
    /// Pods whose attachment waits.
    pub waiting: Vec<WaitingStatus>,
    /// Ports lost lately.
    pub lost: Vec<LostStatus>,
    /// Ports lost since the start.
    pub ports_lost: u64,
    /// Verdicts that no observer could be told of.
    pub verdicts_lost: u64,
}

/// One worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// Its number.
    pub worker: usize,
    /// The core it is pinned to.
    pub core: Option<usize>,
    /// Rounds that found packets.
    pub busy_rounds: u64,
    /// Rounds that found none.
    pub idle_rounds: u64,
    /// Times it went to sleep.
    pub sleeps: u64,
}

/// The session table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// Sessions there are.
    pub used: u32,
    /// Sessions that fit.
    pub capacity: u32,
}

/// One port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortStatus {
    /// `ns/pod` or `host`.
    pub name: String,
    /// Its number; absent while it is not served.
    pub id: Option<u16>,
    /// The interface it serves.
    pub interface: String,
    /// How frames reach it (`native, copy`), or why it is not served.
    pub mode: String,
    /// The worker that serves it.
    pub worker: Option<usize>,
    /// Addresses behind it.
    pub addresses: Vec<String>,
    /// Whether everything from and to it is dropped, because its policies are not known.
    pub closed: bool,
    /// Frames that came in.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Frames that left.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Frames that could not leave.
    pub refused: u64,
    /// Sessions opened from it.
    pub sessions: u32,
}

/// A pod whose attachment waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingStatus {
    /// `ns/pod`
    pub pod: String,
    /// What it waits for.
    pub reason: String,
}

/// A port whose interface vanished.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostStatus {
    /// `ns/pod` or `host`.
    pub name: String,
    /// The interface.
    pub interface: String,
    /// When it was noticed, RFC 3339 in UTC.
    pub when: String,
    /// What was noticed.
    pub why: String,
}

impl Status {
    /// As of now.
    pub fn of(board: &Board) -> Self {
        let (state, switch, config) = (board.state(), &board.switch, &board.config);
        let workers = switch.counters().enumerate().map(|(worker, counters)| WorkerStatus {
            worker,
            core: config.cores.get(worker).copied(),
            busy_rounds: counters.busy_rounds.value(),
            idle_rounds: counters.idle_rounds.value(),
            sleeps: counters.sleeps.value(),
        });
        let described = config.describe();
        let rx_mode = described.into_iter().find(|(name, _)| *name == "rx-mode");
        Self {
            node: config.node_name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ready: board.is_ready(),
            ailments: board.ailments().into_iter().map(str::to_owned).collect(),
            started: Utc::from(board.started_at).to_string(),
            uptime_s: board.uptime().as_secs(),
            generation: state.snapshot.generation,
            generation_in_force: switch.generation(),
            rx_mode: rx_mode.map(|(_, value)| value).unwrap_or_default(),
            workers: workers.collect(),
            sessions: SessionStatus {
                used: switch.sessions().used(),
                capacity: switch.sessions().capacity(),
            },
            packets: packets(board),
            objects: state.objects.clone(),
            skipped: state.skipped.clone(),
            faults: state.faults.clone(),
            ports: ports(board),
            waiting: state
                .waiting
                .iter()
                .map(|(pod, reason)| WaitingStatus { pod: pod.clone(), reason: reason.clone() })
                .collect(),
            lost: state
                .lost
                .iter()
                .map(|lost| LostStatus {
                    name: lost.name.clone(),
                    interface: lost.interface.clone(),
                    when: Utc::from(lost.when).to_string(),
                    why: lost.why.clone(),
                })
                .collect(),
            ports_lost: board.ports_lost.load(Ordering::Relaxed),
            verdicts_lost: board.hub.lost(),
        }
    }
}

fn packets(board: &Board) -> BTreeMap<String, u64> {
    let mut packets = BTreeMap::new();
    for verdict in [Verdict::Forward, Verdict::Drop, Verdict::Consume] {
        let outcomes = || Outcome::ALL.iter().filter(|outcome| outcome.verdict() == verdict);
        let of_worker =
            |worker: &dataplane::Counters| outcomes().map(|o| worker.of(*o)).sum::<u64>();
        let all = board.switch.counters().map(|worker| of_worker(worker)).sum();
        packets.insert(verdict.name().to_owned(), all);
    }
    packets
}

/// All ports as of now.
pub(super) fn ports(board: &Board) -> Vec<PortStatus> {
    let state = board.state();
    let status = |port: &super::PortInfo| {
        let counters = port.id.and_then(|id| board.switch.port_counters(id));
        let count = |read: fn(&dataplane::counters::PortCounters) -> u64| {
            counters.as_deref().map_or(0, read)
        };
        PortStatus {
            name: port.name.clone(),
            id: port.id.map(|id| id.0),
            interface: port.interface.clone(),
            mode: port.mode.clone(),
            worker: port.id.and_then(|id| board.switch.worker_of(id)),
            addresses: port.addresses.clone(),
            closed: port.closed,
            received: count(|it| it.received.value()),
            received_bytes: count(|it| it.received_bytes.value()),
            sent: count(|it| it.sent.value()),
            sent_bytes: count(|it| it.sent_bytes.value()),
            refused: count(|it| it.refused.value()),
            sessions: port.id.map_or(0, |id| board.switch.sessions().used_by(id)),
        }
    };
    state.ports.iter().map(status).collect()
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let health = match (self.ailments.as_slice(), self.ready) {
            ([], true) => "ready".to_owned(),
            ([], false) => "starting".to_owned(),
            (ailments, _) => ailments.join("; "),
        };
        let uptime = for_people(Duration::from_secs(self.uptime_s));
        let cores: Vec<String> =
            self.workers.iter().filter_map(|worker| worker.core).map(|c| c.to_string()).collect();
        let cores =
            if cores.is_empty() { String::new() } else { format!(", cores {}", cores.join(",")) };
        let in_force = match self.generation == self.generation_in_force {
            true => "in force".to_owned(),
            false => format!("{} in force", self.generation_in_force),
        };
        let counts = |counts: &BTreeMap<String, usize>| {
            let counts: Vec<String> =
                counts.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
            if counts.is_empty() { "none".to_owned() } else { counts.join(", ") }
        };
        let packet = |verdict: &str| self.packets.get(verdict).copied().unwrap_or(0);
        writeln!(f, "Node:       {} (podgate {})", self.node, self.version)?;
        writeln!(f, "State:      {health}, up {uptime}")?;
        writeln!(f, "Workers:    {} {}{cores}", self.workers.len(), self.rx_mode)?;
        writeln!(f, "Generation: {} ({in_force})", self.generation)?;
        writeln!(f, "Objects:    {}", counts(&self.objects))?;
        if !self.skipped.is_empty() {
            writeln!(f, "Skipped:    {}", counts(&self.skipped))?;
        }
        writeln!(f, "Sessions:   {} of {}", self.sessions.used, self.sessions.capacity)?;
        writeln!(
            f,
            "Packets:    {} forwarded, {} dropped, {} for the switch itself",
            packet("forward"),
            packet("drop"),
            packet("consume")
        )?;
        if self.ports_lost > 0 {
            writeln!(f, "Lost ports: {}", self.ports_lost)?;
        }
        if self.verdicts_lost > 0 {
            writeln!(f, "Verdicts not observable: {}", self.verdicts_lost)?;
        }
        writeln!(f)?;
        f.write_str(&port_table(&self.ports).to_string())?;
        let mut list = |title: &str, lines: Vec<String>| -> fmt::Result {
            if !lines.is_empty() {
                writeln!(f, "\n{title}:")?;
                lines.iter().try_for_each(|line| writeln!(f, "  {line}"))?;
            }
            Ok(())
        };
        let waiting = self.waiting.iter().map(|it| format!("{} waits for {}", it.pod, it.reason));
        list("Pods that wait", waiting.collect())?;
        let lost = self
            .lost
            .iter()
            .map(|lost| format!("{} {} ({}): {}", lost.when, lost.name, lost.interface, lost.why));
        list("Ports lost", lost.collect())?;
        list("Faults in manifests", self.faults.clone())
    }
}

/// Ports as a table.
pub(super) fn port_table(ports: &[PortStatus]) -> Table {
    let mut table = Table::new(&[
        "port",
        "name",
        "interface",
        "mode",
        "worker",
        "address",
        "rx",
        "tx",
        "refused",
        "sessions",
        "state",
    ]);
    for port in ports {
        let state = match (port.id, port.closed) {
            (None, _) => "down",
            (_, true) => "closed",
            _ => "up",
        };
        table.add(vec![
            port.id.into(),
            port.name.as_str().into(),
            port.interface.as_str().into(),
            port.mode.as_str().into(),
            port.worker.into(),
            port.addresses.join(",").into(),
            port.received.into(),
            port.sent.into(),
            port.refused.into(),
            port.sessions.into(),
            state.into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn for_people_and_for_scripts() {
        let port = PortStatus {
            name: "default/db".into(),
            id: Some(1),
            interface: "pg1".into(),
            mode: "native, copy".into(),
            worker: Some(0),
            addresses: vec!["10.1.0.2".into()],
            closed: false,
            received: 5,
            received_bytes: 500,
            sent: 6,
            sent_bytes: 600,
            refused: 0,
            sessions: 2,
        };
        let down = PortStatus {
            name: "default/web".into(),
            id: None,
            mode: "failed: no such device".into(),
            worker: None,
            closed: true,
            ..port.clone()
        };
        let status = Status {
            node: "node-a".into(),
            version: "0.1.0".into(),
            ready: true,
            ailments: vec![],
            started: "2026-11-21T02:25:35.123Z".into(),
            uptime_s: 65,
            generation: 7,
            generation_in_force: 7,
            rx_mode: "adaptive".into(),
            workers: vec![WorkerStatus {
                worker: 0,
                core: None,
                busy_rounds: 1,
                idle_rounds: 2,
                sleeps: 3,
            }],
            sessions: SessionStatus { used: 2, capacity: 100 },
            packets: BTreeMap::from([("forward".into(), 5)]),
            objects: BTreeMap::from([("Pod".into(), 4)]),
            skipped: BTreeMap::new(),
            faults: vec!["a.yaml: document 1: is no YAML".into()],
            ports: vec![port, down],
            waiting: vec![],
            lost: vec![],
            ports_lost: 0,
            verdicts_lost: 0,
        };
        let text = status.to_string();
        let expected = "\
Node:       node-a (podgate 0.1.0)
State:      ready, up 1m 5s
Workers:    1 adaptive
Generation: 7 (in force)
Objects:    Pod 4
Sessions:   2 of 100
Packets:    5 forwarded, 0 dropped, 0 for the switch itself

PORT  NAME         INTERFACE  MODE                    WORKER  ADDRESS   RX  TX  REFUSED  SESSIONS  STATE
1     default/db   pg1        native, copy            0       10.1.0.2  5   6   0        2         up
-     default/web  pg1        failed: no such device  -       10.1.0.2  5   6   0        2         down

Faults in manifests:
  a.yaml: document 1: is no YAML
";
        assert_eq!(text, expected);
        let json = serde_json::to_value(&status).unwrap();
        assert_eq!(serde_json::from_value::<Status>(json).unwrap(), status);
    }
}
