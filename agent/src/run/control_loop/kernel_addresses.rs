//! The addresses that the kernel of this node has, and their publication as NodeAddresses.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::ControlLoop;
use super::ports::{Change, Ports};
use crate::run::kernel::{Backoff, InterfaceEvent, Operation};
use crate::run::source::Source;

/// Interval of looking whether something else is to be published.
const AGAIN: Duration = Duration::from_secs(10);

/// Keeps the kernel's addresses known: processes of the node are reachable at each of them.
pub(super) struct KernelAddresses {
    addresses: Vec<IpAddr>,
    reading: Reading,
    /// The retry timer of reading them.
    retry: Backoff,
    /// When to look at what is published, and the objects that it was made for.
    due: Instant,
    made_for: Option<u64>,
}

/// The state of reading the addresses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    Done,
    Requested,
    /// Requested, and they may have changed since.
    Outdated,
}

impl KernelAddresses {
    /// No address is known, and none requested.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            addresses: Vec::new(),
            reading: Reading::Done,
            retry: Backoff::default(),
            due: now,
            made_for: None,
        }
    }

    /// Requests the kernel's addresses.
    pub(super) fn read(&mut self, ports: &Ports) {
        self.retry.stop();
        self.reading = match self.reading {
            Reading::Done => {
                ports.request(Operation::ReadAddresses);
                Reading::Requested
            }
            Reading::Requested | Reading::Outdated => Reading::Outdated,
        };
    }

    /// Handles an event of the kernel: addresses may have changed.
    pub(super) fn kernel_event(&mut self, event: &InterfaceEvent, ports: &Ports) {
        if matches!(event, InterfaceEvent::Routes | InterfaceEvent::Missed) {
            self.read(ports);
        }
    }

    /// Returns whether the addresses are being read.
    pub(super) fn is_reading(&self) -> bool {
        self.reading != Reading::Done
    }

    /// Handles the addresses.
    pub(super) fn received(&mut self, read: Result<Vec<IpAddr>, String>, ports: &mut Ports) {
        let is_outdated = std::mem::replace(&mut self.reading, Reading::Done) == Reading::Outdated;
        match read {
            Ok(addresses) if addresses == self.addresses => {}
            Ok(addresses) => {
                self.addresses = addresses;
                (self.due, self.made_for) = (Instant::now(), None);
                ports.changed(Change::Snapshot);
            }
            Err(error) => {
                tracing::warn!("the node's addresses: {error}");
                self.retry.fail(Instant::now());
            }
        }
        if is_outdated {
            self.read(ports);
        }
    }

    /// Repeats a failed reading that is due.
    pub(super) fn reconcile(&mut self, ports: &Ports) {
        if self.retry.is_due(Instant::now()) {
            self.read(ports);
        }
    }

    /// The addresses as read last.
    pub(super) fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }
}

impl ControlLoop {
    /// Publishes the addresses that the Node object does not have, for the switches of the other
    /// nodes.
    pub(super) fn publish_addresses(&mut self) {
        let Source::ApiServer(api_server) = &self.source else { return };
        let now = Instant::now();
        let revision = self.control.revision();
        let kernel = &mut self.kernel_addresses;
        if self.initial_sync.is_some() || now < kernel.due || kernel.is_reading() {
            return;
        }
        kernel.due = now + AGAIN;
        if kernel.made_for.replace(revision) == Some(revision) {
            return;
        }
        let config = &self.shared.config;
        let own = kernel.addresses.iter().chain(&config.node_addresses).copied();
        if self.control.view().nodes.contains_key(config.node_name.as_str()) {
            api_server.publish(self.control.publishable(&config.node_name, own));
        }
    }
}
