//! The port towards the node's own kernel.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use control::{ClusterNode, View};
use dataplane::Underlay;
use dataplane::wire::Mac;
use ipnet::IpNet;
use linux_net::host_port::{self, HostPortConfig};
use snapshot::{HOST, NodePort, PortRole, SWITCH_ADDRESSES};

use super::ports::{Change, Ports};
use super::reconciler::{Effects, Reconciler, Signal};
use super::uplink::Nodes;
use crate::config::Config;
use crate::run::error::StartError;
use crate::run::events::Event;
use crate::run::kernel::{HostEnd, HostNetwork, InterfaceEvent, OpenError, Operation, Programmer};
use crate::run::pods::Pods;
use crate::run::port::{ManagedPort, OpenPort, Owner};

/// Interval of checks for missing addresses, routes and settings that no event reported.
const VERIFY: Duration = Duration::from_secs(5);

/// Keeps the port towards the kernel open, and the kernel's end configured.
pub(super) struct HostPort {
    /// The nodes and the state of the attached pods that the configuration follows from.
    made_for: Option<(Arc<Nodes>, u64)>,
    mac: Mac,
    pub(super) port: ManagedPort,
    pub(super) programmer: Programmer<HostPortConfig>,
}

impl HostPort {
    /// Creates the kernel's end, and requests the port. An address or route that the kernel refuses does
    /// not end the start: the programmer tries it again, and `status` shows the error meanwhile.
    pub(super) fn start(
        mut network: Box<dyn HostNetwork>,
        config: HostPortConfig,
        effects: &mut Effects,
    ) -> Result<Self, StartError> {
        let failed = |error| StartError::Failed(format!("host port: {error}"));
        let mac = network.set_up_host_port(&config).map_err(failed)?.mac;
        let events = effects.events.clone();
        let apply = move |config: &HostPortConfig| {
            let HostEnd { mac, refused } = network.set_up_host_port(config)?;
            // The loop may have ended.
            let _ = events.send(Event::HostPort(mac));
            if refused.is_empty() { Ok(()) } else { Err(refused.join("; ").into()) }
        };
        let programmer = Programmer::start("host-port", VERIFY, apply);
        let mut port = ManagedPort::new(config.switch_interface.clone());
        effects.ports.open(Owner::Host, &mut port, None);
        effects.gateways.clone_from(&config.gateways);
        Ok(Self { made_for: None, mac, port, programmer: programmer? })
    }

    /// Brings the kernel's end in line with pod networks and pods.
    pub(super) fn follow(&mut self, view: &View, has_uplink: bool, effects: &mut Effects) {
        let Effects { pods, shared, gateways, .. } = effects;
        let is_same = |(nodes, revision): &(Arc<Nodes>, u64)| {
            Arc::ptr_eq(nodes, &view.nodes) && *revision == pods.revision()
        };
        if !self.made_for.as_ref().is_some_and(is_same) {
            let wanted = wanted(&shared.config, view, pods, has_uplink);
            gateways.clone_from(&wanted.gateways);
            self.programmer.set(wanted);
            self.made_for = Some((Arc::clone(&view.nodes), pods.revision()));
        }
    }

    /// Handles the result of opening the port.
    pub(super) fn opened(&mut self, result: Result<OpenPort, OpenError>, ports: &mut Ports) {
        match result {
            Ok(open) => {
                self.port.opened(open);
                ports.bring_up_with_next_snapshot(self.port.interface.clone());
            }
            Err(error) => {
                self.port.fail(&error.why.to_string(), Instant::now());
                ports.changed(Change::Status);
            }
        }
        self.port.log(HOST);
    }

    /// The kernel's end was made or verified; it has this MAC address.
    pub(super) fn made(&mut self, mac: Mac, ports: &mut Ports) {
        if self.port.retry.due().is_some() {
            self.port.retry.hurry(Instant::now());
        }
        if std::mem::replace(&mut self.mac, mac) != mac {
            ports.changed(Change::Snapshot);
        }
    }

    /// Handles the loss of the port: it is opened again once its interface is verified.
    pub(super) fn lost(&mut self, why: &str) {
        self.port.fail(why, Instant::now());
        // A new interface of the same name has another number.
        self.port.index = None;
        self.programmer.verify();
    }

    /// The port for a snapshot.
    pub(super) fn node_port(&self) -> Option<NodePort> {
        let open = self.port.open()?;
        let port = NodePort::new(open.id, PortRole::Host);
        Some(NodePort { mac: Some(self.mac), mtu: open.mtu, ..port })
    }
}

impl Reconciler for HostPort {
    fn is_due(&self, now: Instant) -> bool {
        self.port.retry.is_due(now)
    }

    fn on(&mut self, signal: &Signal<'_>, effects: &mut Effects) {
        match signal {
            Signal::Due(_) => effects.ports.open(Owner::Host, &mut self.port, None),
            // Addresses, routes or the kernel's end may have changed.
            Signal::Kernel(
                InterfaceEvent::Gone(_) | InterfaceEvent::Routes | InterfaceEvent::Missed,
            ) => self.programmer.verify(),
            // The port itself ends with the workers: removing it would end the sessions of the kernel's
            // connections, which continue after a restart.
            Signal::End if self.port.id().is_some() => {
                let interface = self.port.interface.clone();
                effects.ports.request(Operation::ReleaseHostPort { interface });
            }
            _ => {}
        }
    }
}

/// The configuration that follows from the node's pod networks, the attached pods, and the
/// networks that are reached through the switch as well.
pub(super) fn wanted(
    config: &Config,
    view: &View,
    pods: &Pods,
    has_uplink: bool,
) -> HostPortConfig {
    let own: Option<&Arc<ClusterNode>> = view.nodes.get(config.node_name.as_str());
    let networks = own.map_or(&[][..], |node| &node.pod_cidrs);
    let node_addresses = own.map_or(&[][..], |node| &node.addresses);
    let of_others = view.nodes.values().flat_map(|node| &node.pod_cidrs).filter(|_| has_uplink);
    let beyond: Vec<IpNet> = of_others.chain(&config.network.service_networks).copied().collect();
    let mut routes = networks.to_vec();
    // A kernel without IPv6 takes no such route.
    let has_v6 = node_addresses.iter().any(IpAddr::is_ipv6);
    let switch = SWITCH_ADDRESSES.into_iter().filter(|own| own.is_ipv4() || has_v6);
    routes.extend(switch.map(IpNet::from));
    let addresses = pods.iter().flat_map(|attached| &attached.pod.addresses);
    let outside = addresses.filter(|address| !networks.iter().any(|net| net.contains(*address)));
    routes.extend(outside.map(|address| IpNet::from(*address)));
    routes.extend(&beyond);
    routes.sort_unstable();
    routes.dedup();
    // Answers must return through the switch. Those of endpoints that are nodes would go to a
    // node's address directly, and over a routed underlay those of pods as well.
    let is_routed = config.network.underlay == Underlay::Routed && has_uplink;
    let from_gateway = |network: &IpNet| {
        is_routed && !networks.contains(network)
            || config.network.service_networks.contains(network)
    };
    HostPortConfig {
        mtu: config.mtu,
        gateways: host_port::gateways(networks),
        routes,
        node_addresses: node_addresses.to_vec(),
        from_gateway: beyond.into_iter().filter(from_gateway).collect(),
        ..Default::default()
    }
}
