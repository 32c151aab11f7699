//! The port towards the cluster node's own kernel.

use std::net::IpAddr;
use std::sync::Arc;

use control::{Control, PodKey};

use super::ports::log_port;
use super::{ControlLoop, HostPort};
use crate::run::StartError;
use linux_net::host_port::{self, HostPortConfig};
use renderer::{HOST, SWITCH_ADDRESSES};

impl ControlLoop {
    /// Makes the host port, if there is to be one.
    pub(in crate::run) fn set_up_host_port(&mut self) -> Result<(), StartError> {
        if !self.board.config.host_port {
            return Ok(());
        }
        let failed = |error| StartError::Failed(format!("host port: {error}"));
        let config = self.wanted_host_port();
        let mac = self.interfaces.set_up_host_port(&config).map_err(failed)?;
        let port = self.open_port(&config.switch_interface).map_err(failed)?;
        log_port(HOST, &config.switch_interface, &port);
        self.host = Some(HostPort { config, made_for: None, mac, port });
        // What an earlier process left may lead elsewhere; nobody serves the host port yet.
        self.redirect_own_processes();
        self.publish();
        self.bring_up_host_port().map_err(failed)
    }

    /// Brings the host port in line with pod networks and pods.
    pub(super) fn update_host_port(&mut self) -> Result<(), String> {
        let wanted = self.wanted_host_port();
        let nodes = Arc::clone(&self.control.view().nodes);
        let Some(host) = &mut self.host else { return Ok(()) };
        // What fails is tried again at the next change.
        host.made_for = None;
        if host.config != wanted {
            host.mac = self.interfaces.set_up_host_port(&wanted)?;
            host.config = wanted;
        }
        host.made_for = Some(nodes);
        Ok(())
    }

    fn wanted_host_port(&self) -> HostPortConfig {
        let attached: Vec<_> = self
            .pods
            .iter()
            .map(|attached| (attached.key.clone(), attached.pod.addresses.clone()))
            .collect();
        let config = &self.board.config;
        let view = self.control.view();
        let beyond = match self.uplink.is_some() {
            true => view.nodes.values().flat_map(|node| &node.pod_cidrs).copied().collect(),
            false => Vec::new(),
        };
        let beyond = beyond.into_iter().chain(config.network.service_networks.iter().copied());
        host_port_config(&self.control, &config.node_name, config.mtu, &attached, beyond)
    }

    pub(super) fn bring_up_host_port(&mut self) -> Result<(), String> {
        match &self.host {
            Some(host) => self.interfaces.bring_up(&host.config.switch_interface),
            None => Ok(()),
        }
    }
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
