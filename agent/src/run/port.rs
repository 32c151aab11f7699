//! A port of the switch, from the request to open it to its loss.

use std::time::Instant;

use dataplane::PortId;
use local_api::Attachment;

use super::kernel::Backoff;

/// The owner of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Owner {
    Host,
    Uplink,
    /// The punt link of flow offload.
    PuntLink,
    Pod(Attachment),
}

/// A port, with its own retry timer.
#[derive(Debug)]
pub(super) struct ManagedPort {
    pub(super) interface: String,
    pub(super) state: PortStage,
    /// The interface's number when the port was opened last.
    pub(super) index: Option<u32>,
    pub(super) retry: Backoff,
}

/// The state of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PortStage {
    /// Requested with this ticket; closed until it is served.
    Opening(u64),
    /// Served by workers.
    Open(OpenPort),
    /// Not served, so closed, for this reason; opening it is retried.
    Failed(String),
}

/// A port that workers serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OpenPort {
    pub(super) id: PortId,
    /// The interface's number.
    pub(super) index: u32,
    pub(super) mtu: u16,
    /// Mode of the port, in words.
    pub(super) mode: String,
    /// Number of queues; 0 behind a program of flow offload.
    pub(super) queues: usize,
}

impl ManagedPort {
    /// A port that is not requested yet.
    pub(super) fn new(interface: String) -> Self {
        let state = PortStage::Failed("it is not opened yet".to_owned());
        Self { interface, state, index: None, retry: Backoff::default() }
    }

    /// Its state while it is served.
    pub(super) fn open(&self) -> Option<&OpenPort> {
        match &self.state {
            PortStage::Open(open) => Some(open),
            PortStage::Opening(_) | PortStage::Failed(_) => None,
        }
    }

    /// Its number while it is served.
    pub(super) fn id(&self) -> Option<PortId> {
        self.open().map(|open| open.id)
    }

    /// Bytes of the largest packet that it takes, or 0 if it is not served.
    pub(super) fn mtu(&self) -> u16 {
        self.open().map_or(0, |open| open.mtu)
    }

    /// Returns whether it has no queues of its own: a program of flow offload stands before it.
    pub(super) fn is_behind_program(&self) -> bool {
        self.open().is_some_and(|open| open.queues == 0)
    }

    /// Notes that opening it is requested.
    pub(super) fn requested(&mut self, ticket: u64) {
        self.state = PortStage::Opening(ticket);
        self.retry.stop();
    }

    /// Notes that it is served.
    pub(super) fn opened(&mut self, open: OpenPort) {
        self.index = Some(open.index);
        self.state = PortStage::Open(open);
    }

    /// Notes that it failed; schedules a retry.
    pub(super) fn fail(&mut self, why: &str, now: Instant) {
        self.state = PortStage::Failed(why.to_owned());
        self.retry.fail(now);
    }

    /// Logs its state under a name.
    pub(super) fn log(&self, name: &str) {
        let interface = &self.interface;
        match &self.state {
            PortStage::Open(OpenPort { id, mode, .. }) => {
                tracing::info!(port = id.0, name, %interface, %mode, "port opened");
            }
            PortStage::Failed(why) => {
                tracing::error!(name, %interface, "port cannot be opened: {why}");
            }
            PortStage::Opening(_) => {}
        }
    }
}
