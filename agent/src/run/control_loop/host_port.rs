//! The port towards the cluster node's own kernel.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use control::{Control, PodKey};
use dataplane::Underlay;
use dataplane::wire::Mac;
use ipnet::IpNet;

use super::ControlLoop;
use super::ports::log_port;
use super::uplink::Nodes;
use crate::run::kernel::{HostNetwork, Programmer};
use crate::run::pods::PodPort;
use crate::run::{Event, StartError};
use linux_net::host_port::{self, HostPortConfig};
use renderer::{HOST, SWITCH_ADDRESSES};

/// Interval of checks for missing addresses, routes and settings that no event reported.
const VERIFY: Duration = Duration::from_secs(5);

/// The port towards the kernel, and the kernel's end of it.
pub(super) struct HostPort {
    pub(super) config: HostPortConfig,
    /// The cluster nodes that `config` follows from.
    pub(super) made_for: Option<Arc<Nodes>>,
    pub(super) mac: Mac,
    pub(super) port: PodPort,
    pub(super) programmer: Programmer<HostPortConfig>,
}

impl ControlLoop {
    /// Creates the host port, if it is configured.
    pub(in crate::run) fn set_up_host_port(&mut self) -> Result<(), StartError> {
        if !self.shared.config.host_port {
            return Ok(());
        }
        let failed = |error| StartError::Failed(format!("host port: {error}"));
        let config = self.wanted_host_port();
        let mut network = self.interfaces.host_network().map_err(failed)?;
        let mac = network.set_up_host_port(&config).map_err(failed)?;
        let port = self.open_port(&config.switch_interface).map_err(failed)?;
        log_port(HOST, &config.switch_interface, &port);
        let interface = config.switch_interface.clone();
        let programmer = programmer(network, self.events.clone())?;
        self.host = Some(HostPort { config, made_for: None, mac, port, programmer });
        self.publish();
        self.bring_up_when_in_force(interface);
        Ok(())
    }

    /// Brings the host port in line with pod networks and pods.
    pub(super) fn update_host_port(&mut self) {
        let wanted = self.wanted_host_port();
        let nodes = Arc::clone(&self.control.view().nodes);
        let Some(host) = &mut self.host else { return };
        host.programmer.set(wanted.clone());
        host.config = wanted;
        host.made_for = Some(nodes);
    }

    /// The host port was made or restored; its kernel's end has this MAC address.
    pub(super) fn host_port_event(&mut self, mac: Mac) {
        let Some(host) = &mut self.host else { return };
        if let PodPort::Failed { again_at, .. } = &mut host.port {
            *again_at = Instant::now();
        }
        if std::mem::replace(&mut host.mac, mac) != mac {
            self.publish();
        }
    }

    /// Reads the kernel's addresses again if they may have changed; returns whether they have.
    /// Processes of the cluster node are reachable at each of them.
    pub(super) fn follow_kernel_addresses(&mut self) -> bool {
        if self.host.is_none() || !std::mem::take(&mut self.follows_addresses) {
            return false;
        }
        match self.interfaces.addresses() {
            Ok(addresses) => {
                let changed = self.kernel_addresses != addresses;
                self.kernel_addresses = addresses;
                changed
            }
            Err(error) => {
                tracing::warn!("the cluster node's addresses: {error}");
                self.follows_addresses = true;
                false
            }
        }
    }

    fn wanted_host_port(&self) -> HostPortConfig {
        let attached: Vec<_> = self
            .pods
            .iter()
            .map(|attached| (attached.key.clone(), attached.pod.addresses.clone()))
            .collect();
        let config = &self.shared.config;
        let view = self.control.view();
        let beyond = match self.uplink.is_some() {
            true => view.nodes.values().flat_map(|node| &node.pod_cidrs).copied().collect(),
            false => Vec::new(),
        };
        let beyond = beyond.into_iter().chain(config.network.service_networks.iter().copied());
        let beyond: Vec<_> = beyond.collect();
        let wanted = host_port_config(
            &self.control,
            &config.node_name,
            config.mtu,
            &attached,
            beyond.iter().copied(),
        );
        let own = self.own_object();
        let pod_networks = own.iter().flat_map(|node| &node.pod_cidrs);
        let is_own = |network: &IpNet| pod_networks.clone().any(|own| own == network);
        // Answers must return through the switch. Those of endpoints that are cluster nodes would
        // go to a cluster node's address directly, and over a routed underlay those of pods as
        // well.
        let is_routed = config.network.underlay == Underlay::Routed && self.uplink.is_some();
        let from_gateway = |network: &IpNet| {
            is_routed && !is_own(network) || config.network.service_networks.contains(network)
        };
        HostPortConfig {
            node_addresses: own.iter().flat_map(|node| node.addresses.iter().copied()).collect(),
            from_gateway: beyond.into_iter().filter(from_gateway).collect(),
            ..wanted
        }
    }
}

/// Keeps the kernel's end in the desired state, and reports its MAC address.
fn programmer(
    mut network: Box<dyn HostNetwork>,
    events: Sender<Event>,
) -> Result<Programmer<HostPortConfig>, StartError> {
    let apply = move |config: &HostPortConfig| {
        let mac = network.set_up_host_port(config)?;
        // The loop may have ended.
        let _ = events.send(Event::HostPort(mac));
        Ok(())
    };
    Programmer::start("host-port", VERIFY, apply).map_err(StartError::thread)
}

/// The host port that follows from the cluster node's pod networks, the pods attached, and the
/// networks `beyond` that are reached through the switch as well.
fn host_port_config(
    control: &Control,
    node: &str,
    mtu: u32,
    attached: &[(PodKey, Vec<IpAddr>)],
    beyond: impl IntoIterator<Item = ipnet::IpNet>,
) -> HostPortConfig {
    let view = control.view();
    let object = view.nodes.get(node);
    let networks = object.map_or(&[][..], |node| &node.pod_cidrs);
    let mut routes = networks.to_vec();
    // A kernel without IPv6 takes no such route.
    let has_v6 = object.is_some_and(|node| node.addresses.iter().any(IpAddr::is_ipv6));
    let own = SWITCH_ADDRESSES.into_iter().filter(|own| own.is_ipv4() || has_v6);
    routes.extend(own.map(ipnet::IpNet::from));
    let addresses = attached.iter().flat_map(|(_, addresses)| addresses);
    let outside = addresses.filter(|address| !networks.iter().any(|net| net.contains(*address)));
    routes.extend(outside.map(|address| ipnet::IpNet::from(*address)));
    routes.extend(beyond);
    routes.sort_unstable();
    routes.dedup();
    HostPortConfig { mtu, gateways: host_port::gateways(networks), routes, ..Default::default() }
}
