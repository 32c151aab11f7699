//! Publishes snapshots: the view on the ports that are there.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use control::{ClusterNode, View};
use dataplane::services::Services;
use snapshot::{NodeContext, NodePort};

use super::ControlLoop;
use super::kernel_rules::Site;
use super::ports::Change;
use super::staged;
use crate::config::Masquerade;
use crate::run::durations::Published;

/// The snapshots published so far.
pub(super) struct Publications {
    /// Generation of the last one.
    pub(super) generation: u64,
    /// Those that are not in force yet.
    pub(super) pending: Published,
    /// When the changes of this round began to be taken.
    pub(super) since: Instant,
}

impl Default for Publications {
    fn default() -> Self {
        Self { generation: 0, pending: Published::default(), since: Instant::now() }
    }
}

impl ControlLoop {
    /// Commits the events taken. Publishes a snapshot if the view or the ports changed, else the
    /// status if anything else did. Waits neither for workers nor for the kernel.
    pub(super) fn publish_changes(&mut self) {
        let change = self.ports.take_change();
        if change == Change::None {
            return;
        }
        // Objects of a saved state may be older than the records.
        if self.initial_sync.is_none() {
            self.owners.follow(&mut self.control);
        }
        if self.control.commit().is_some() || change == Change::Snapshot {
            self.publish(change);
        } else {
            self.publish_status(change);
        }
        let Publications { generation, since, .. } = self.publications;
        let is_listed = self.initial_sync.is_none();
        let changes = self.control.take_policy_changes();
        self.policy_log.received(changes, generation, since, is_listed);
    }

    fn publish(&mut self, change: Change) {
        let view = self.control.view();
        if let Some(host) = &mut self.host {
            let pods = &self.attachments.pods;
            host.follow(&self.shared.config, &view, pods, self.uplink.is_some());
        }
        self.publications.generation += 1;
        let generation = self.publications.generation;
        let host = self.host.as_ref().and_then(|host| host.node_port());
        let uplink = self.uplink.as_ref().and_then(|uplink| uplink.node_port());
        let ports: Vec<NodePort> =
            host.into_iter().chain(self.attachments.node_ports()).chain(uplink).collect();
        let context = self.node_context(&view);
        let services = Arc::clone(&context.services);
        let node = &self.shared.config.node_name;
        let snapshot = self.snapshots.snapshot(&view, node, context, generation, ports);
        let departed = self.control.take_departed();
        self.shared.switch.depart(departed.iter().copied().map(Into::into));
        if !self.shared.state().snapshot.shares_ports(&snapshot) {
            self.follow_names(&view);
        }
        staged::compare(&self.shared, &snapshot);
        self.ports.prepare_flow_offload(&snapshot);
        self.shared.switch.publish(&snapshot);
        self.publications.pending.add(generation, self.publications.since);
        self.ports.published(generation);
        // Only after the snapshot that handles these packets.
        let own = self.own_object();
        if let Some(uplink) = &mut self.uplink {
            uplink.set_filter(&services, own, &self.shared.config.network, &self.ports);
        }
        self.program_kernel(&view, departed);
        self.health_checks.reconcile(&view, &self.shared.config.node_name, &self.shared);
        self.follow_sockets(&services);
        tracing::debug!("snapshot {generation} with {} ports", snapshot.ports().count());
        self.publish_status_with(snapshot, change);
    }

    /// Sets what programs at pods' cgroups deny.
    fn follow_sockets(&mut self, services: &Arc<Services>) {
        let (addresses, pods) = (self.own_addresses(), &self.attachments.pods);
        let is_complete = self.source_info.decides();
        if let Some(sockets) = &mut self.socket_policies {
            let uid = |key: &_| pods.uid(key).map(Arc::from);
            sockets.reconcile(&self.control, services, addresses, is_complete, uid);
        }
    }

    /// Sets the desired state of the kernel's rules.
    fn program_kernel(&mut self, view: &Arc<View>, departed: BTreeSet<IpAddr>) {
        let addresses = self.own_addresses();
        let site = Site {
            config: &self.shared.config,
            decides: self.source_info.decides(),
            has_uplink: self.uplink.is_some(),
            has_host_port: self.host.is_some(),
            redirects: self.services.redirects(),
            addresses,
            source: &self.source_info,
        };
        self.kernel_rules.reconcile(view, departed, site);
    }

    /// Returns the node context of the next snapshot.
    fn node_context(&mut self, view: &View) -> NodeContext {
        let config = &self.shared.config;
        let (node, network) = (&config.node_name, &config.network);
        let mut context = NodeContext {
            node_addresses: self.node_addresses(),
            link_local_destinations: network.link_local_destinations.clone(),
            services: self.services.services(view, node),
            translation_ports: Some(network.translation_ports.clone()),
            verify_every: config.verify_decisions,
            ..NodeContext::default()
        };
        if let Some(uplink) = &mut self.uplink {
            context.routes = uplink.routes(view, node);
            context.underlay = network.underlay.clone();
            // Without a gateway the kernel routes to the world.
            let is_direct = network.masquerade == Masquerade::Direct;
            context.masquerade = is_direct && uplink.gateway().is_some();
        }
        context
    }

    /// The object of this node.
    pub(super) fn own_object(&self) -> Option<Arc<ClusterNode>> {
        self.control.view().nodes.get(self.shared.config.node_name.as_str()).cloned()
    }

    /// The node's addresses beyond those of its object.
    fn node_addresses(&self) -> Vec<IpAddr> {
        let kernel = self.kernel_addresses.addresses();
        let of_kernel = self.host.iter().flat_map(|host| host.gateways().iter().chain(kernel));
        self.shared.config.node_addresses.iter().chain(of_kernel).copied().collect()
    }

    /// All of the node's addresses.
    pub(super) fn own_addresses(&self) -> Vec<IpAddr> {
        let mut addresses = self.node_addresses();
        addresses.extend(self.own_object().iter().flat_map(|node| node.addresses.clone()));
        let mut seen = HashSet::new();
        addresses.retain(|address| seen.insert(*address));
        addresses
    }
}
