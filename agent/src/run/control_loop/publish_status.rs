//! Publishes the shared status: ports and their names, pending attachments, faults.

use std::net::IpAddr;
use std::sync::Arc;

use control::{PodKey, View};
use dataplane::{PortId, Underlay};

use super::ControlLoop;
use crate::run::port::{ManagedPort, State as PortState};
use crate::run::shared_status::{PortInfo, State};
use crate::run::status::WaitingStatus;
use observe::verdicts::Names;
use renderer::{HOST, NodeContext, NodePort, PortRole, UPLINK};

/// Bytes of a tunnel's headers over IPv4.
const TUNNEL_BYTES: u32 = 50;
/// The mode of pods whose policies nftables enforces.
pub(in crate::run) const NFTABLES: &str = "nftables";

/// Maximum of faults shown.
const MOST_FAULTS: usize = 200;

impl ControlLoop {
    /// Publishes the status with the snapshot published last.
    pub(super) fn publish_status(&self) {
        self.publish_status_with(Arc::clone(&self.shared.state().snapshot));
    }

    /// Publishes the status if the kernel's configuration state or a pod's interface changed.
    pub(super) fn publish_programming(&self) {
        let nftables = self.kernel_rules.nftables.as_ref();
        let moved = nftables.is_some_and(|nftables| nftables.take_moved());
        if moved || self.shared.state().programming != self.programming() {
            self.publish_status();
        }
    }

    pub(super) fn publish_status_with(&self, snapshot: Arc<dataplane::Snapshot>) {
        let is_synced = self.initial_sync.is_none();
        let mut names = Names::new();
        let mut ports = Vec::new();
        let mut waiting = Vec::new();
        if let Some(host) = &self.host {
            let addresses = host.gateways().iter().map(IpAddr::to_string).collect();
            ports.push(port_info(HOST.to_owned(), &host.port, addresses, false));
        }
        if let Some(uplink) = &self.uplink {
            let own = self.own_addresses().iter().map(IpAddr::to_string).collect();
            ports.push(port_info(UPLINK.to_owned(), &uplink.port, own, false));
        }
        let mut rules = Arc::clone(&snapshot);
        let view = self.control.view();
        let services = view.services.iter().flat_map(|(key, service)| {
            let it = &service.service;
            let all = [&it.cluster_ips, &it.external_ips, &it.load_balancer_ips];
            let name: std::sync::Arc<str> = key.to_string().into();
            let all: Vec<IpAddr> = all.into_iter().flatten().copied().collect();
            all.into_iter().map(move |address| (address, std::sync::Arc::clone(&name)))
        });
        self.shared.broker.directory().set_services(services.collect());
        let counting: std::collections::HashSet<&str> =
            self.attachments.pods.counting().map(|it| it.pod.container_id.as_str()).collect();
        for attached in self.attachments.pods.iter() {
            let name = attached.key.to_string();
            for address in &attached.pod.addresses {
                names.insert(*address, name.as_str().into());
            }
            let addresses = attached.pod.addresses.iter().map(IpAddr::to_string).collect();
            let closed = !view.pods.contains_key(&attached.key)
                || !counting.contains(attached.pod.container_id.as_str());
            ports.push(port_info(name.clone(), &attached.port, addresses, closed));
            if let Some(wait) = &attached.waiting {
                let reason = wait.reason(&attached.key, &attached.port, &self.control, is_synced);
                waiting.push(WaitingStatus { pod: name, reason });
            }
        }
        if let Some(nftables) = &self.kernel_rules.nftables {
            let attachments = nftables.attachments();
            rules = self.rules_of(&view, attachments.keys(), snapshot.generation);
            for (key, pod) in view.pods.iter() {
                let name = key.to_string();
                for address in &pod.addresses {
                    names.insert(*address, name.as_str().into());
                }
                let at = attachments.get(key);
                let (interface, mode) = match at {
                    None => (String::new(), "no interface found"),
                    Some(at) => (at.interface.clone(), NFTABLES),
                };
                let addresses = pod.addresses.iter().map(IpAddr::to_string).collect();
                let mode = mode.to_owned();
                let closed = at.is_none();
                ports.push(PortInfo { id: None, name, interface, mode, addresses, closed });
            }
        }
        let special = |port: &PortInfo| port.name != HOST && port.name != UPLINK;
        ports.sort_by(|a: &PortInfo, b| (special(a), &a.name).cmp(&(special(b), &b.name)));
        self.shared.broker.directory().set_names(names);
        let counts = self.control.counts().into_iter();
        let all_faults = || self.faults.iter().chain(self.control.host_network_faults());
        let mut faults: Vec<String> =
            all_faults().take(MOST_FAULTS).map(ToString::to_string).collect();
        let faults_count = all_faults().count();
        match faults_count.saturating_sub(MOST_FAULTS) {
            0 => {}
            more => faults.push(format!("and {more} more")),
        }
        let own = self.own_object();
        self.shared.set_state(State {
            snapshot,
            rules,
            ports,
            waiting,
            lost: self.ports.lost().cloned().collect(),
            objects: counts.map(|(kind, count)| (kind.name().to_owned(), count)).collect(),
            skipped: self.skipped.clone(),
            faults,
            faults_count,
            source: self.source_info.clone(),
            pod_networks: own.map_or_else(Vec::new, |node| node.pod_cidrs.clone()),
            pod_mtu: self.uplink.as_ref().and_then(|uplink| self.pod_mtu(uplink.port.mtu())),
            programming: self.programming(),
        });
        self.shared.set_deciding(self.source_info.decides());
    }

    /// Makes a snapshot with the rules of these pods.
    fn rules_of<'a>(
        &self,
        view: &View,
        pods: impl Iterator<Item = &'a PodKey>,
        generation: u64,
    ) -> Arc<dataplane::Snapshot> {
        let known = pods.filter_map(|key| Some((key, view.pods.get(key)?)));
        let ports = known.zip(0..u16::MAX).map(|((key, pod), n)| {
            let role = PortRole::Pod(key.clone(), pod.addresses.clone());
            NodePort::new(PortId(n), role)
        });
        let ports: Vec<NodePort> = ports.collect();
        let node = &self.shared.config.node_name;
        Arc::new(renderer::snapshot(view, node, NodeContext::default(), generation, &ports))
    }

    /// Returns the part of an uplink's MTU that is left for pods; an uplink that is not served has
    /// none.
    fn pod_mtu(&self, uplink: u16) -> Option<u32> {
        let tunnel = match self.shared.config.network.underlay {
            Underlay::Overlay(_) => TUNNEL_BYTES,
            Underlay::Routed | Underlay::Plain => 0,
        };
        u32::from(uplink).checked_sub(tunnel).filter(|mtu| *mtu > 0)
    }
}

fn port_info(name: String, port: &ManagedPort, addresses: Vec<String>, closed: bool) -> PortInfo {
    let (id, mode) = match &port.state {
        PortState::Open(open) => (Some(open.id), open.mode.clone()),
        PortState::Opening(_) => (None, "opening".to_owned()),
        PortState::Failed(why) => (None, format!("failed: {why}")),
    };
    PortInfo { id, name, interface: port.interface.clone(), mode, addresses, closed }
}
