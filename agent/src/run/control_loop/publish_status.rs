//! Publishes the shared status: ports and their names, pending attachments, faults.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use control::{Fault, View};
use dataplane::wire::vxlan::Vxlan;
use dataplane::{PortId, Snapshot, Underlay};

use super::bookkeeping::StatusPublisher;
use super::ports::Change;
use super::reconciler::Effects;
use super::{ControlLoop, TICK};
use crate::run::kernel::{Programming, Programs};
use crate::run::port::{ManagedPort, PortStage};
use crate::run::shared_status::{PortInfo, PublishedState};
use crate::run::status::WaitingStatus;
use observe::verdicts::AddressNames;
use snapshot::{HOST, NodePort, PortRole, UPLINK};

/// The mode of pods whose policies nftables enforces.
pub(in crate::run) const NFTABLES: &str = "nftables";

/// The part of the kernel's configuration that ClusterHostFirewalls are.
pub(in crate::run) const HOST_FIREWALL: &str = "host-firewall";

/// Maximum of faults shown.
const MOST_FAULTS: usize = 200;

impl ControlLoop {
    /// Publishes the status with the snapshot published last.
    pub(super) fn publish_status(&mut self, change: Change) {
        let snapshot = Arc::clone(&self.effects.shared.state().snapshot);
        self.publish_status_with(snapshot, change);
    }

    /// The same, a tick after the last time at the earliest if numbers of objects and the like are all that changed.
    pub(super) fn publish_status_in_time(&mut self, change: Change) {
        let status = &mut self.bookkeeping.status;
        match change > Change::Objects || status.published.elapsed() >= TICK {
            true => self.publish_status(change),
            false => status.is_late = true,
        }
    }

    /// Publishes the status if it is late, or if the kernel's configuration state or a pod's interface changed.
    pub(super) fn publish_programming(&mut self) {
        let nftables = self.kernel_rules.nftables.as_ref();
        let moved = nftables.is_some_and(|nftables| nftables.take_moved());
        if moved || self.effects.shared.state().programming != self.programming() {
            self.publish_status(Change::Status);
        } else if self.bookkeeping.status.is_late {
            self.publish_status_in_time(Change::Objects);
        }
    }

    /// Publishes the status with this snapshot. Ports and names, which are many, are written out only if
    /// `change` or the view concerns them.
    pub(super) fn publish_status_with(&mut self, snapshot: Arc<Snapshot>, change: Change) {
        let view = self.effects.control.view();
        let status = &mut self.bookkeeping.status;
        (status.published, status.is_late) = (Instant::now(), false);
        let last = std::mem::replace(&mut status.view, Arc::clone(&view));
        let rules = self.rules(&view, &snapshot);
        let Effects { shared, control, input, ports, .. } = &self.effects;
        if !Arc::ptr_eq(&last.services, &view.services) {
            shared.broker.directory().set_services(service_names(&view));
        }
        // nftables enforces for pods that are not attached: their addresses are in the view alone.
        let has_same_pods = Arc::ptr_eq(&last.pods, &view.pods)
            || !self.kernel_rules.enforces_alone() && last.pods.keys().eq(view.pods.keys());
        let has_same_ports =
            change <= Change::Objects && has_same_pods && Arc::ptr_eq(&last.nodes, &view.nodes);
        let port_infos = match has_same_ports {
            true => Arc::clone(&shared.state().ports),
            false => {
                shared.broker.directory().set_names(self.pod_names(&view));
                self.port_infos(&view).into()
            }
        };
        let counts = control.counts().into_iter();
        let (faults, faults_count) = self.faults();
        let (closed_policies, refused_files) = self.refused();
        let own = self.effects.own_object();
        shared.set_state(PublishedState {
            snapshot,
            rules,
            ports: port_infos,
            waiting: self.waiting(),
            lost: ports.lost().cloned().collect(),
            objects: counts.map(|(kind, count)| (kind.name().to_owned(), count)).collect(),
            skipped: input.skipped.clone(),
            faults,
            faults_count,
            closed_policies,
            refused_files,
            source: input.info.clone(),
            pod_networks: own.map_or_else(Vec::new, |node| node.pod_cidrs.clone()),
            pod_mtu: self.uplink.as_ref().and_then(|uplink| self.pod_mtu(uplink.port.mtu())),
            programming: self.programming(),
        });
        shared.set_deciding(input.info.decides());
    }

    /// State of the kernel's configuration, by part.
    fn programming(&self) -> Vec<Programming> {
        let host = self.host.iter().map(|host| host.programmer.programming());
        let rules = self.kernel_rules.programming();
        host.chain(rules).chain([self.effects.ports.programming()]).collect()
    }

    /// The first faults in the source's objects, and their number.
    fn faults(&self) -> (Vec<String>, usize) {
        let Effects { control, input, uid_faults, .. } = &self.effects;
        // Whose policies hold where comes first.
        let identities = control.claim_faults().chain(uid_faults.iter().cloned());
        let of_objects = input.faults.iter().chain(control.host_network_faults());
        let of_objects = of_objects.chain(control.published_address_faults());
        let of_bounds = control.withheld_faults().chain(control.service_faults());
        let mut all = (identities.map(|fault| fault.to_string()))
            .chain(of_bounds)
            .chain(of_objects.map(ToString::to_string));
        let mut faults: Vec<String> = all.by_ref().take(MOST_FAULTS).collect();
        let more = all.count();
        let count = faults.len() + more;
        if more > 0 {
            faults.push(format!("and {more} more"));
        }
        (faults, count)
    }

    /// The policies that are not enforced as written, and the files without a readable version, each once.
    fn refused(&self) -> (Vec<String>, Vec<String>) {
        let Effects { control, input, .. } = &self.effects;
        let faults = input.faults.iter().chain(control.host_network_faults());
        let (mut policies, mut files) = (BTreeSet::new(), BTreeSet::new());
        for Fault { object, file, .. } in faults {
            match (object, file) {
                (Some(object), _) if object.kind.closes() => drop(policies.insert(object)),
                (None, Some(file)) => drop(files.insert(file)),
                _ => {}
            }
        }
        let files = files.iter().map(|file| file.display().to_string());
        (policies.iter().map(ToString::to_string).collect(), files.collect())
    }

    /// The snapshot with the rules in force: the workers', or where nftables enforces, one with a port for
    /// each pod whose interface is known.
    fn rules(&mut self, view: &View, snapshot: &Arc<Snapshot>) -> Arc<Snapshot> {
        let Some(nftables) = &self.kernel_rules.nftables else { return Arc::clone(snapshot) };
        let attachments = nftables.attachments();
        let known = attachments.keys().filter_map(|key| Some((key, view.pods.get(key)?)));
        let ports = known.zip(0..u16::MAX).map(|((key, pod), n)| {
            let role = PortRole::Pod(key.clone(), pod.addresses.clone());
            NodePort::new(PortId(n), role)
        });
        let (ports, generation): (Vec<_>, _) = (ports.collect(), snapshot.generation);
        let StatusPublisher { rules, context, .. } = &mut self.bookkeeping.status;
        rules.snapshot(view, self.effects.node(), context.clone(), generation, ports)
    }

    /// The names of the pods here by their addresses.
    fn pod_names(&self, view: &View) -> AddressNames {
        let attached = self.effects.pods.iter().map(|it| (&it.key, &it.pod.addresses));
        let enforced = self.kernel_rules.nftables.iter().flat_map(|_| view.pods.iter());
        let all = attached.chain(enforced.map(|(key, pod)| (key, &pod.addresses)));
        let named = all.flat_map(|(key, addresses)| {
            let name: Arc<str> = key.to_string().into();
            addresses.iter().map(move |address| (*address, Arc::clone(&name)))
        });
        named.collect()
    }

    /// Pending attachments.
    fn waiting(&self) -> Vec<WaitingStatus> {
        let is_listed = self.effects.input.is_listed();
        let waiting = self.effects.pods.iter().filter_map(|attached| {
            let waiting = attached.waiting.as_ref()?;
            let reason =
                waiting.reason(&attached.key, &attached.port, &self.effects.control, is_listed);
            Some(WaitingStatus { pod: attached.key.to_string(), reason })
        });
        waiting.collect()
    }

    /// All ports: the host port and the uplink first, then pods by name.
    fn port_infos(&self, view: &View) -> Vec<PortInfo> {
        let mut ports = Vec::new();
        if let Some(host) = &self.host {
            ports.push(port_info(HOST.to_owned(), &host.port, &self.effects.gateways, false));
        }
        if let Some(uplink) = &self.uplink {
            let own = self.effects.own_addresses();
            ports.push(port_info(UPLINK.to_owned(), &uplink.port, &own, false));
        }
        let counting: HashSet<&str> =
            self.effects.pods.counting().map(|it| it.pod.container_id.as_str()).collect();
        let mut pods = Vec::new();
        for attached in self.effects.pods.iter() {
            let closed = !view.pods.contains_key(&attached.key)
                || !counting.contains(attached.pod.container_id.as_str());
            let (name, addresses) = (attached.key.to_string(), &attached.pod.addresses);
            pods.push(port_info(name, &attached.port, addresses, closed));
        }
        if let Some(nftables) = &self.kernel_rules.nftables {
            let attachments = nftables.attachments();
            pods.extend(view.pods.iter().map(|(key, pod)| {
                let at = attachments.get(key);
                let (interface, mode) = match at {
                    None => (String::new(), "no interface found"),
                    Some(at) => (at.interface.clone(), NFTABLES),
                };
                let (name, addresses) = (key.to_string(), texts(&pod.addresses));
                let (mode, closed) = (mode.to_owned(), at.is_none());
                PortInfo { id: None, name, interface, mode, addresses, closed }
            }));
        }
        pods.sort_by(|a, b| a.name.cmp(&b.name));
        ports.extend(pods);
        ports
    }

    /// Returns the part of an uplink's MTU that is left for pods; an uplink that is not served has
    /// none.
    fn pod_mtu(&self, uplink: u16) -> Option<u32> {
        // Tunnels are between the nodes' first addresses.
        let view = self.effects.control.view();
        let own = view.nodes.get(self.effects.node());
        let is_v6 = own.and_then(|own| own.addresses.first()).is_some_and(IpAddr::is_ipv6);
        let tunnel = match self.effects.shared.config.network.underlay {
            Underlay::Overlay(_) => Vxlan::overhead(!is_v6) as u32,
            Underlay::Routed | Underlay::Plain => 0,
        };
        let encryption = self.effects.shared.encryption.as_ref().map_or(0, |it| it.overhead());
        let headers = tunnel + u32::from(encryption);
        u32::from(uplink).checked_sub(headers).filter(|mtu| *mtu > 0)
    }
}

/// The names of services by their addresses.
fn service_names(view: &View) -> AddressNames {
    let named = view.services.iter().flat_map(|(key, view)| {
        let service = &view.service;
        let all = [&service.cluster_ips, &service.external_ips, &service.load_balancer_ips];
        let name: Arc<str> = key.to_string().into();
        all.into_iter().flatten().map(move |address| (*address, Arc::clone(&name)))
    });
    named.collect()
}

fn texts(addresses: &[IpAddr]) -> Vec<String> {
    addresses.iter().map(IpAddr::to_string).collect()
}

fn port_info(name: String, port: &ManagedPort, addresses: &[IpAddr], closed: bool) -> PortInfo {
    let addresses = texts(addresses);
    let (id, mode) = match &port.state {
        PortStage::Open(open) => (Some(open.id), open.mode.clone()),
        PortStage::Opening(_) => (None, "opening".to_owned()),
        PortStage::Failed(why) => (None, format!("failed: {why}")),
    };
    PortInfo { id, name, interface: port.interface.clone(), mode, addresses, closed }
}
