//! The status for people.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::{EvictedStatus, KernelStatus, PartStatus, PortStatus, SessionStatus, Status};
use crate::run::journal::Files;
use crate::run::table::Table;
use observe::time::uptime;

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let health = self.health();
        let uptime = uptime(Duration::from_secs(self.uptime_s));
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
        let attention = self.attention();
        if !attention.is_empty() {
            writeln!(f, "Attention:")?;
            attention.iter().try_for_each(|line| writeln!(f, "  {line}"))?;
            writeln!(f)?;
        }
        writeln!(f, "Node:       {} (podgate {})", self.node, self.version)?;
        writeln!(f, "State:      {health}, up {uptime}")?;
        writeln!(f, "Workers:    {} {}{cores}", self.workers.len(), self.rx_mode)?;
        writeln!(f, "Generation: {} ({in_force})", self.generation)?;
        writeln!(f, "Source:     {}", self.source.line())?;
        if let Some(pods) = self.source.pods() {
            writeln!(f, "Pods:       {pods}")?;
        }
        writeln!(f, "Objects:    {}", counts(&self.objects))?;
        if !self.skipped.is_empty() {
            writeln!(f, "Skipped:    {}", counts(&self.skipped))?;
        }
        let SessionStatus { used, capacity, evicted, damaged } = &self.sessions;
        let damaged = match damaged {
            0 => String::new(),
            count => format!("; {count} damaged ones of the last process dropped"),
        };
        writeln!(f, "Sessions:   {used} of {capacity}{}{damaged}", made_room(evicted))?;
        writeln!(
            f,
            "Packets:    {} forwarded, {} dropped, {} for the switch itself",
            packet("forward"),
            packet("drop"),
            packet("consume")
        )?;
        writeln!(f, "Offload:    {}", self.flow_offload.line())?;
        if self.encryption.state == "on" {
            writeln!(f, "Encryption: {}", self.encryption.line())?;
        }
        if self.socket_policies.state != "off" {
            writeln!(f, "Sockets:    {}", self.socket_policies.line())?;
        }
        if let Some(Files { bytes, oldest }) = &self.journal {
            let since = oldest.as_ref().map_or(String::new(), |hour| format!(" since {hour}:00Z"));
            writeln!(f, "Journal:    {} kB{since}", bytes.div_ceil(1000))?;
        }
        let confine::Confinement { capabilities, no_new_privileges, seccomp, files } =
            &self.privileges;
        let held = if capabilities.is_empty() { "none".to_owned() } else { capabilities.join(" ") };
        let marks = [
            (*no_new_privileges, "no new privileges"),
            (*seccomp, "seccomp filter"),
            (*files, "confined files"),
        ];
        let marks = marks.iter().filter(|(is_on, _)| *is_on).map(|(_, mark)| format!(", {mark}"));
        writeln!(f, "Privileges: {held}{}", marks.collect::<String>())?;
        if self.verdicts_lost > 0 {
            writeln!(f, "Verdicts not observable: {}", self.verdicts_lost)?;
        }
        writeln!(f)?;
        f.write_str(&narrow_table(&self.ports).to_string())?;
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
        let failing = |it: &KernelStatus| Some(format!("{}: {}", it.part, it.error.as_ref()?));
        list("Kernel not configured", self.kernel.iter().filter_map(failing).collect())?;
        list("Source", self.source.troubles())?;
        list("Faults in objects", self.faults.clone())
    }
}

impl Status {
    /// Whether the switch is ready and healthy, and what it does not enforce.
    fn health(&self) -> String {
        let unhealthy = self.problems.len().saturating_sub(self.not_enforced.len());
        let state = match (self.healthy, self.ready) {
            (true, true) => "ready".to_owned(),
            (true, false) => "not ready".to_owned(),
            (false, _) => self.problems[..unhealthy].join("; "),
        };
        let reasons: Vec<&str> = self.not_enforced.iter().map(|it| it.reason.as_str()).collect();
        if reasons.is_empty() {
            state
        } else {
            format!("{state}; not enforced: {}", reasons.join(", "))
        }
    }
}

/// Ports as a table that fits a terminal; `podgate show ports` has the other columns.
fn narrow_table(ports: &[PortStatus]) -> Table {
    let mut table =
        Table::new(&["name", "address", "mode", "rx", "tx", "lost", "sessions", "state"]);
    for port in ports {
        table.add(vec![
            port.name.as_str().into(),
            port.addresses.join(",").into(),
            port.mode.as_str().into(),
            port.received.into(),
            port.sent.into(),
            (port.refused + port.missed).into(),
            port.sessions.into(),
            state(port).into(),
        ]);
    }
    table
}

/// Whether a port is served, in a word.
fn state(port: &PortStatus) -> &'static str {
    if port.is_down() {
        "down"
    } else if port.closed {
        "closed"
    } else {
        "up"
    }
}

/// Ports as a table.
pub(in crate::run) fn port_table(ports: &[PortStatus]) -> Table {
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
        "missed",
        "sessions",
        "state",
    ]);
    for port in ports {
        table.add(vec![
            port.id.into(),
            port.name.as_str().into(),
            port.interface.as_str().into(),
            port.mode.as_str().into(),
            workers(&port.parts).into(),
            port.addresses.join(",").into(),
            port.received.into(),
            port.sent.into(),
            port.refused.into(),
            port.missed.into(),
            port.sessions.into(),
            state(port).into(),
        ]);
    }
    table
}

/// Ports as a table, with the frames that the kernel has of each.
pub(in crate::run) fn port_and_frames_table(ports: &[PortStatus]) -> Table {
    let mut table = port_table(ports);
    table.columns.push("frames".to_owned());
    for (row, port) in table.rows.iter_mut().zip(ports) {
        row.push(frames(&port.frames).into());
    }
    table
}

/// Frames by place: `fill 256, completion 3`.
fn frames(places: &BTreeMap<String, u32>) -> String {
    let used = places.iter().filter(|(_, count)| **count > 0);
    used.map(|(place, count)| format!("{place} {count}")).collect::<Vec<_>>().join(", ")
}

/// Sessions that made room for new ones, if there were any.
fn made_room(evicted: &EvictedStatus) -> String {
    let of = evicted.by_state().into_iter().filter(|(_, count)| *count > 0);
    let shown: Vec<String> = of.map(|(state, count)| format!("{count} {state}")).collect();
    match shown.is_empty() {
        true => String::new(),
        false => format!("; made room for new ones: {}", shown.join(", ")),
    }
}

/// Workers, with the queues that each serves if there are several: `0 (queues 0-2), 1 (queue 3)`.
fn workers(parts: &[PartStatus]) -> Option<String> {
    let several = parts.iter().map(|part| part.queues.len()).sum::<usize>() > 1;
    let text = |part: &PartStatus| match part.queues.as_slice() {
        [queue] if several => format!("{} (queue {queue})", part.worker),
        [first, .., last] => format!("{} (queues {first}-{last})", part.worker),
        _ => part.worker.to_string(),
    };
    let texts: Vec<String> = parts.iter().map(text).collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::{FlowOffloadStatus, SocketPoliciesStatus};
    use super::*;
    use crate::run::status::{Contradictions, SourceStatus, WorkerStatus};

    #[test]
    fn for_people_and_for_scripts() {
        let port = PortStatus {
            name: "default/db".into(),
            id: Some(1),
            interface: "pg1".into(),
            mode: "native, copy".into(),
            worker: Some(0),
            parts: vec![PartStatus { worker: 0, queues: vec![0], received: 5, sent: 6 }],
            addresses: vec!["10.1.0.2".into()],
            closed: false,
            received: 5,
            received_bytes: 500,
            sent: 6,
            sent_bytes: 600,
            refused: 0,
            missed: 0,
            frames: BTreeMap::from([("fill".into(), 256), ("kernel".into(), 0)]),
            sessions: 2,
        };
        let down = PortStatus {
            name: "default/web".into(),
            id: None,
            mode: "failed: no such device".into(),
            worker: None,
            parts: vec![],
            closed: true,
            ..port.clone()
        };
        let status = Status {
            node: "node-a".into(),
            version: "0.1.0".into(),
            ready: true,
            healthy: true,
            problems: vec![],
            not_enforced: vec![],
            contradictions: None,
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
            sessions: SessionStatus {
                used: 2,
                capacity: 100,
                evicted: Default::default(),
                damaged: 0,
            },
            packets: BTreeMap::from([("forward".into(), 5)]),
            objects: BTreeMap::from([("Pod".into(), 4)]),
            skipped: BTreeMap::new(),
            faults: vec!["a.yaml: document 1: is no YAML".into()],
            drops_last_minute: BTreeMap::from([
                ("policy-denied".into(), 3),
                ("spoofed-address".into(), 40),
            ]),
            pod_networks: vec!["10.1.0.0/24".into()],
            pod_mtu: None,
            source: SourceStatus {
                kind: "manifests".into(),
                place: "/etc/podgate".into(),
                state: "in-sync".into(),
                synced: true,
                save_error: Some("disk full".into()),
                ..SourceStatus::default()
            },
            in_memory: BTreeMap::from([("sessions".into(), "state/sessions: disk full".into())]),
            journal: Some(Files { bytes: 12_345, oldest: Some("2026-11-25T09".into()) }),
            ports: vec![port, down],
            frames: Default::default(),
            waiting: vec![],
            lost: vec![],
            ports_lost: 0,
            verdicts_lost: 0,
            kernel: vec![],
            flow_offload: FlowOffloadStatus {
                state: "unavailable".into(),
                reason: Some("Linux 5.4: load the programs".into()),
                ..FlowOffloadStatus::default()
            },
            socket_policies: SocketPoliciesStatus::without(None),
            encryption: Default::default(),
            privileges: confine::Confinement {
                capabilities: vec!["NET_ADMIN".into(), "BPF".into()],
                no_new_privileges: true,
                seccomp: true,
                files: true,
            },
        };
        let text = status.to_string();
        let expected = "\
Attention:
  sessions in memory only: state/sessions: disk full
  state not saved: disk full
  port default/web is down: failed: no such device
  1 fault in objects, the first: a.yaml: document 1: is no YAML
  drops of the last minute: spoofed-address 40, policy-denied 3

Node:       node-a (podgate 0.1.0)
State:      ready, up 1m 5s
Workers:    1 adaptive
Generation: 7 (in force)
Source:     manifests /etc/podgate (in sync)
Objects:    Pod 4
Sessions:   2 of 100
Packets:    5 forwarded, 0 dropped, 0 for the switch itself
Offload:    unavailable: Linux 5.4: load the programs
Journal:    13 kB since 2026-11-25T09:00Z
Privileges: NET_ADMIN BPF, no new privileges, seccomp filter, confined files

NAME         ADDRESS   MODE                    RX  TX  LOST  SESSIONS  STATE
default/db   10.1.0.2  native, copy            5   6   0     2         up
default/web  10.1.0.2  failed: no such device  5   6   0     2         down

Source:
  state not saved: disk full

Faults in objects:
  a.yaml: document 1: is no YAML
";
        assert_eq!(text, expected);
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        let part = |worker, queues: std::ops::Range<usize>| {
            let queues = queues.collect();
            PartStatus { worker, queues, received: 1, sent: 1 }
        };
        let shown = |parts: &[PartStatus]| workers(parts).unwrap();
        assert_eq!(shown(&[part(1, 0..1), part(0, 1..2)]), "1 (queue 0), 0 (queue 1)");
        assert_eq!(shown(&[part(0, 0..3), part(1, 3..5)]), "0 (queues 0-2), 1 (queues 3-4)");
        assert_eq!(shown(&[part(0, 0..4)]), "0 (queues 0-3)");
        let last = "10.1.0.2 to 10.1.0.3".to_owned();
        let wrong = Status {
            contradictions: Some(Contradictions { count: 2, last }),
            healthy: false,
            problems: vec!["a worker has ended".into()],
            ..status.clone()
        };
        let first = "Attention:\n  2 decisions are not those of the rules, please report it: 10.1.0.2 to \
                     10.1.0.3\n  a worker has ended\n";
        assert!(wrong.to_string().starts_with(first), "{wrong}");
        let shown = port_and_frames_table(&status.ports).to_string();
        assert!(shown.lines().next().unwrap().ends_with("STATE  FRAMES"), "{shown}");
        assert!(shown.lines().nth(1).unwrap().ends_with("up     fill 256"), "{shown}");
        let json = serde_json::to_value(&status).unwrap();
        assert_eq!(serde_json::from_value::<Status>(json).unwrap(), status);
    }
}
