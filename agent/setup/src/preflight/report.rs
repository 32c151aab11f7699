//! The report: findings, modes and memory, as text and as JSON.

use std::fmt;

use serde::Serialize;

use crate::preflight::Memory;
use crate::preflight::finding::{Finding, Level};

/// The modes that a start would take; `None` where that could not be tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Modes {
    /// True with flow offload; pods then share the AF_XDP sockets of one link.
    pub flow_offload: bool,
    /// Mode of AF_XDP sockets: `native, copy`.
    pub ports: Option<String>,
    /// Bytes of the largest packet.
    pub largest_packet: Option<u32>,
    /// Where the checksums of long packets are completed: `receiving kernel` or `switch`.
    pub checksums: Option<String>,
    /// `huge pages` or `plain pages`.
    pub frames: String,
    /// `polling`, `adaptive` or `interrupt`.
    pub rx_mode: String,
    /// Largest MTU of pods whose packets reach other nodes whole.
    pub pod_mtu: Option<u32>,
}

/// Everything that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// One for each check.
    pub findings: Vec<Finding>,
    /// Modes that a start would take.
    pub modes: Modes,
    /// Memory that a start would cost.
    pub memory: Memory,
}

impl Report {
    /// 0: no warning; 1: the switch runs, with warnings; 2: it cannot run.
    pub fn exit_code(&self) -> u8 {
        match self.findings.iter().map(|finding| finding.level).max() {
            Some(Level::Fatal) => 2,
            Some(Level::Warning) => 1,
            _ => 0,
        }
    }

    fn count(&self, level: Level) -> usize {
        self.findings.iter().filter(|finding| finding.level == level).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
        for Finding { check, level, detail, hint } in &self.findings {
            let level = match level {
                Level::Good => "good",
                Level::Note => "note",
                Level::Warning => "warning",
                Level::Fatal => "fatal",
            };
            writeln!(f, "{level:8} {check:width$}  {detail}")?;
            if let Some(hint) = hint {
                writeln!(f, "{:8} {:width$}  → {hint}", "", "")?;
            }
        }
        let Modes { flow_offload, ports, largest_packet, checksums, frames, rx_mode, pod_mtu } =
            &self.modes;
        let unknown = || "not tried".to_owned();
        writeln!(f, "\nModes:")?;
        let (offload, whose) = match flow_offload {
            true => ("on", "shared by all pods"),
            false => ("off", "one for each pod"),
        };
        writeln!(f, "  flow offload      {offload}")?;
        let mode = ports.clone().unwrap_or_else(unknown);
        writeln!(f, "  AF_XDP sockets    {mode}; {whose}")?;
        let largest = largest_packet.map_or_else(unknown, |bytes| format!("{bytes} bytes"));
        writeln!(f, "  largest packet    {largest}")?;
        let checksums = checksums.as_ref().map_or_else(unknown, |at| format!("by the {at}"));
        writeln!(f, "  long checksums    {checksums}")?;
        writeln!(f, "  frames            in {frames}")?;
        writeln!(f, "  workers           {rx_mode}")?;
        if let Some(mtu) = pod_mtu {
            writeln!(f, "  MTU of pods       up to {mtu}")?;
        }
        write!(f, "\n{}", self.memory)?;
        writeln!(f)?;
        match self.exit_code() {
            0 => writeln!(f, "podgate runs here."),
            1 => writeln!(f, "podgate runs here; warnings: {}.", self.count(Level::Warning)),
            _ => writeln!(f, "podgate cannot run here; faults: {}.", self.count(Level::Fatal)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_finding_decides_how_the_command_ends() {
        let report = |levels: &[Level]| Report {
            findings: levels.iter().map(|level| Finding::new("x", *level, "y")).collect(),
            modes: Modes {
                flow_offload: true,
                ports: None,
                largest_packet: None,
                checksums: None,
                frames: "plain pages".into(),
                rx_mode: "adaptive".into(),
                pod_mtu: None,
            },
            memory: Memory::default(),
        };
        assert_eq!(report(&[]).exit_code(), 0);
        assert_eq!(report(&[Level::Good, Level::Note]).exit_code(), 0);
        assert_eq!(report(&[Level::Warning, Level::Note]).exit_code(), 1);
        let worst = report(&[Level::Fatal, Level::Warning]);
        assert_eq!(worst.exit_code(), 2);
        assert!(worst.to_string().contains("cannot run here; faults: 1"), "{worst}");
    }
}
