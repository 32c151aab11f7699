//! Publishes snapshots: the view on the ports that are there.

use std::sync::Arc;
use std::time::Instant;

use control::View;
use snapshot::{NodeContext, NodePort, PortRole};

use super::ports::Change;
use super::reconciler::{PublishedSnapshot, Signal};
use super::{ControlLoop, keys, names, staged};
use crate::config::Masquerade;

impl ControlLoop {
    /// Commits the events taken. Publishes a snapshot if the view or the ports changed, else the
    /// status if anything else did. Waits neither for workers nor for the kernel.
    pub(super) fn publish_changes(&mut self) {
        let began = Instant::now();
        let holds_endpoints = !self.endpoint_pace.wait(began).is_zero();
        self.effects.control.hold_endpoints(holds_endpoints);
        if self.effects.control.has_endpoints() && !holds_endpoints {
            self.effects.ports.changed(Change::Objects);
        }
        let change = self.effects.ports.take_change();
        if change == Change::None {
            return;
        }
        let services = Arc::clone(&self.effects.control.view().services);
        self.signal(&Signal::Commit);
        if change > Change::Objects {
            self.node_ports = self.node_ports();
        }
        self.effects.control.set_node_addresses(self.effects.node_addresses());
        if self.effects.control.commit().is_some() || change == Change::Snapshot {
            self.publish(change);
        } else {
            self.signal(&Signal::Committed);
            self.publish_status_in_time(change);
        }
        self.bookkeeping.committed(&mut self.effects);
        if !Arc::ptr_eq(&services, &self.effects.control.view().services) {
            self.endpoint_pace.published(began, Instant::now());
        }
    }

    fn publish(&mut self, change: Change) {
        let view = self.effects.control.view();
        keys::follow(&self.effects);
        let has_uplink = self.uplink.is_some();
        if let Some(host) = &mut self.host {
            host.follow(&view, has_uplink, &mut self.effects);
        }
        let context = self.node_context(&view);
        let services = Arc::clone(&context.services);
        let ports = Arc::clone(&self.node_ports);
        let effects = &mut self.effects;
        effects.generation += 1;
        let generation = effects.generation;
        let snapshot = self.snapshots.snapshot(&view, effects.node(), context, generation, ports);
        let departed = effects.control.take_departed();
        effects.shared.switch.depart(departed.iter().copied().map(Into::into));
        if !effects.shared.state().snapshot.shares_ports(&snapshot) {
            names::follow_names(&view, &self.node_ports, effects);
        }
        staged::compare(&effects.shared, &snapshot);
        effects.ports.prepare_flow_offload(&snapshot);
        effects.shared.switch.publish(&snapshot);
        effects.ports.published(generation);
        let published = PublishedSnapshot {
            services,
            departed,
            has_uplink,
            has_host_port: self.host.is_some(),
        };
        self.signal(&Signal::Published(&published));
        tracing::debug!("snapshot {generation} with {} ports", snapshot.ports().count());
        self.publish_status_with(snapshot, change);
    }

    /// The ports of a snapshot: the host port, those of pods by name, the uplink.
    fn node_ports(&self) -> Arc<[NodePort]> {
        let host = self.host.as_ref().and_then(|host| host.node_port());
        let overhead = self.effects.shared.encryption.as_ref().map_or(0, |it| it.overhead());
        let uplink = self.uplink.as_ref().and_then(|uplink| uplink.node_port(overhead));
        let mut pods: Vec<_> = self.effects.pods.counting().collect();
        pods.sort_by_key(|attached| &attached.key);
        let pods = pods.into_iter().filter_map(|attached| {
            let open = attached.port.open()?;
            let role = PortRole::Pod(attached.key.clone(), attached.pod.addresses.clone());
            let port = NodePort::named(open.id, role, attached.name.clone());
            Some(NodePort { mac: Some(attached.pod.mac.0), mtu: open.mtu, ..port })
        });
        host.into_iter().chain(pods).chain(uplink).collect()
    }

    /// Returns the node context of the next snapshot.
    fn node_context(&mut self, view: &View) -> NodeContext {
        let effects = &mut self.effects;
        let config = &effects.shared.config;
        let (node, network) = (&config.node_name, &config.network);
        let mut context = NodeContext {
            node_addresses: effects.node_addresses(),
            link_local_destinations: network.link_local_destinations.clone(),
            services: effects.services.services(view, node),
            translation_ports: Some(network.translation_ports.clone()),
            verify_every: config.verify_decisions,
            ..NodeContext::default()
        };
        if let Some(uplink) = &mut self.uplink {
            let overhead = effects.shared.encryption.as_ref().map_or(0, |it| it.overhead());
            context.routes = uplink.routes(view, node, overhead);
            context.underlay = network.underlay.clone();
            // Without a gateway the kernel routes to the world.
            let is_direct = network.masquerade == Masquerade::Direct;
            context.masquerade = is_direct && uplink.gateway().is_some();
        }
        context
    }
}
