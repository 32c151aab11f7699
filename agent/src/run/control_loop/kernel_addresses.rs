//! The addresses that the kernel of this node has, and their publication as NodeAddresses.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use control::model::WireGuard;

use super::ports::{Change, Ports};
use super::reconciler::{Effects, Reconciler, Signal};
use crate::run::kernel::{Backoff, InterfaceEvent, KernelError, Operation};

/// Interval of looking whether something else is to be published.
const AGAIN: Duration = Duration::from_secs(10);

/// Keeps the kernel's addresses known: processes of the node are reachable at each of them.
pub(super) struct KernelAddresses {
    reading: Reading,
    /// The retry timer of reading them.
    retry: Backoff,
    /// When to look at what is published, and the objects and keys that it was made for.
    due: Instant,
    made_for: Option<(u64, Option<WireGuard>)>,
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
    /// No addresses are requested.
    pub(super) fn new(now: Instant) -> Self {
        Self { reading: Reading::Done, retry: Backoff::default(), due: now, made_for: None }
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

    /// Returns whether the addresses are being read.
    pub(super) fn is_reading(&self) -> bool {
        self.reading != Reading::Done
    }

    /// Handles the addresses.
    pub(super) fn received(
        &mut self,
        read: Result<Vec<IpAddr>, KernelError>,
        effects: &mut Effects,
    ) {
        let is_outdated = std::mem::replace(&mut self.reading, Reading::Done) == Reading::Outdated;
        match read {
            Ok(addresses) if addresses == effects.kernel_addresses => {}
            Ok(addresses) => {
                effects.kernel_addresses = addresses;
                (self.due, self.made_for) = (Instant::now(), None);
                effects.ports.changed(Change::Snapshot);
            }
            Err(error) => {
                tracing::warn!("the node's addresses: {error}");
                self.retry.fail(Instant::now());
            }
        }
        if is_outdated {
            self.read(&effects.ports);
        }
    }

    /// Publishes the addresses that the Node object does not have, and the key of encryption, for the switches of
    /// the other nodes.
    fn publish(&mut self, now: Instant, effects: &Effects) {
        let Some(api_server) = effects.input.listed_api_server() else { return };
        let wireguard = effects.shared.encryption.as_ref().map(|it| it.published());
        let is_due = now >= self.due || self.made_for.as_ref().is_some_and(|it| it.1 != wireguard);
        if !is_due || self.is_reading() {
            return;
        }
        self.due = now + AGAIN;
        let made_for = Some((effects.control.revision(), wireguard.clone()));
        if self.made_for == made_for {
            return;
        }
        self.made_for = made_for;
        let own = effects.kernel_addresses.iter().chain(&effects.shared.config.node_addresses);
        if effects.own_object().is_some() {
            let addresses = effects.control.publishable(effects.node(), own.copied());
            api_server.publish((addresses, wireguard));
        }
    }
}

impl Reconciler for KernelAddresses {
    fn on(&mut self, signal: &Signal<'_>, effects: &mut Effects) {
        match signal {
            Signal::Kernel(InterfaceEvent::Routes | InterfaceEvent::Missed) => {
                self.read(&effects.ports);
            }
            Signal::Due(now) => {
                if self.retry.is_due(*now) {
                    self.read(&effects.ports);
                }
                self.publish(*now, effects);
            }
            _ => {}
        }
    }
}
