//! Common parts of the control loop: [`Reconciler`], the signals that reach all of them, and
//! [`Effects`], the state that they share and change.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Instant;

use control::api_server::Event as SourceEvent;
use control::{ClusterNode, Control, Fault, Object};
use dataplane::services::Services;
use snapshot::ServiceMaker;

use super::input::Input;
use super::ports::Ports;
use super::replies::Replies;
use super::socket_policies::Mailbox;
use crate::run::events::Event;
use crate::run::kernel::InterfaceEvent;
use crate::run::pods::Pods;
use crate::run::shared_status::SharedStatus;

/// A part of the control loop with state of its own, which no other reconciler reads or changes.
pub(super) trait Reconciler {
    /// Whether [`Signal::Due`] concerns it at this time; by default in each round.
    fn is_due(&self, _now: Instant) -> bool {
        true
    }

    /// Handles a signal.
    fn on(&mut self, signal: &Signal<'_>, effects: &mut Effects);
}

/// An event that reconcilers react to.
pub(super) enum Signal<'a> {
    /// A round of the loop, after its events are published.
    Due(Instant),
    /// An event of the API server's watches, before it is applied.
    Source(&'a SourceEvent),
    /// Objects of manifests, before they are applied.
    Manifests(&'a [Object]),
    /// Objects that are saved have changed; policies among them, or others alone.
    Changed { has_policies: bool },
    /// An event of the kernel's interfaces.
    Kernel(&'a InterfaceEvent),
    /// The changes of a round are about to be committed.
    Commit,
    /// They were committed, and no snapshot follows from them.
    Committed,
    /// A snapshot was handed to the workers.
    Published(&'a PublishedSnapshot),
    /// The loop ends.
    End,
}

/// Inputs of a snapshot that was handed to the workers, beside the effects.
pub(super) struct PublishedSnapshot {
    pub(super) services: Arc<Services>,
    /// Addresses whose pods are gone since the snapshot before.
    pub(super) departed: BTreeSet<IpAddr>,
    pub(super) has_uplink: bool,
    pub(super) has_host_port: bool,
}

/// The state that reconcilers share.
pub(super) struct Effects {
    pub(super) shared: Arc<SharedStatus>,
    /// The loop's own events.
    pub(super) events: Sender<Event>,
    pub(super) control: Control,
    pub(super) input: Input,
    pub(super) services: ServiceMaker,
    pub(super) pods: Pods,
    /// Pods of this node that claim the UID of another one.
    pub(super) uid_faults: Vec<Fault>,
    pub(super) ports: Ports,
    pub(super) replies: Replies,
    /// The addresses of the kernel's end of the host port: the pods' gateways.
    pub(super) gateways: Vec<IpAddr>,
    /// The addresses that the kernel has.
    pub(super) kernel_addresses: Vec<IpAddr>,
    /// Whether the kernel has the tables that enforce policies.
    pub(super) has_kernel_rules: bool,
    /// Generation of the last snapshot published.
    pub(super) generation: u64,
    /// Where new pods are closed until programs at their cgroups have rules: which of them are in force.
    pub(super) socket_rules: Option<Arc<Mailbox>>,
}

impl Effects {
    /// The name of this node.
    pub(super) fn node(&self) -> &str {
        &self.shared.config.node_name
    }

    /// The object of this node.
    pub(super) fn own_object(&self) -> Option<Arc<ClusterNode>> {
        self.control.view().nodes.get(self.node()).cloned()
    }

    /// The node's addresses beyond those of its object.
    pub(super) fn node_addresses(&self) -> Vec<IpAddr> {
        let config = &self.shared.config;
        // Processes of the node are reached by the host port.
        let kernel = if config.host_port { &self.kernel_addresses[..] } else { &[] };
        [&config.node_addresses, &self.gateways, kernel].concat()
    }

    /// All of the node's addresses, those of its object first: others know it by them.
    pub(super) fn own_addresses(&self) -> Vec<IpAddr> {
        let own = self.own_object();
        let mut addresses = own.map_or_else(Vec::new, |node| node.addresses.clone());
        addresses.extend(self.node_addresses());
        let mut seen = HashSet::new();
        addresses.retain(|address| seen.insert(*address));
        addresses
    }
}
