//! Flow offload in the status.

use std::collections::BTreeMap;

use cli_runtime::counted;
use serde::{Deserialize, Serialize};

use crate::run::shared_status::{FlowOffload, SharedStatus};

/// State of flow offload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowOffloadStatus {
    /// `on`, `off`, or `unavailable`: requested, but the kernel lacks what it needs.
    pub state: String,
    /// Why it cannot be had.
    pub reason: Option<String>,
    /// Connections that programs in the kernel forward.
    pub connections: u64,
    /// Connections that found no room there, and go through the switch.
    pub refused: u64,
    /// Connections whose entries made room for another owner's, or for a newer one of their own.
    #[serde(default)]
    pub evicted: u64,
    /// TCP connections that the programs opened like one that the switch had allowed.
    #[serde(default)]
    pub opened: u64,
    /// Packets that the programs forwarded; those that were still to be cut count as their segments.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Frames that the programs left to the switch, by reason.
    pub punted: BTreeMap<String, u64>,
    /// Frames that they dropped because no port was known for them.
    pub no_port: u64,
    /// Frames that they dropped because the pod had used up its share of the punt link.
    pub over_share: u64,
    /// Frames that were lost on the punt link because the switch did not take them in time.
    pub missed: u64,
}

impl FlowOffloadStatus {
    pub(super) fn of(shared: &SharedStatus) -> Self {
        let state = |state: &str| Self { state: state.to_owned(), ..Self::default() };
        match &shared.flow_offload() {
            FlowOffload::Off => state("off"),
            FlowOffload::Unavailable(why) => {
                Self { reason: Some(why.clone()), ..state("unavailable") }
            }
            FlowOffload::On(offload, trunk) => {
                let parts = shared.switch.parts(*trunk);
                let now = offload.state();
                let punted = now.counters.punted.iter();
                Self {
                    connections: now.connections,
                    refused: now.refused,
                    evicted: now.evicted,
                    opened: now.counters.opened,
                    packets: now.counters.packets,
                    bytes: now.counters.bytes,
                    punted: punted.map(|(why, n)| (why.name().to_owned(), *n)).collect(),
                    no_port: now.counters.no_port,
                    over_share: now.counters.over_share,
                    missed: parts.iter().map(|part| part.counters.missed.value()).sum(),
                    ..state("on")
                }
            }
        }
    }

    /// One line for people.
    pub(super) fn line(&self) -> String {
        match &self.reason {
            Some(reason) => format!("{}: {reason}", self.state),
            None if self.state == "on" => format!(
                "on, {}, {} forwarded, {} left to the switch{}",
                counted(self.connections, "connection"),
                counted(self.packets, "packet"),
                self.punted.values().sum::<u64>(),
                match self.evicted {
                    0 => String::new(),
                    count => format!("; {} made room for others", counted(count, "connection")),
                }
            ),
            None => self.state.clone(),
        }
    }
}
