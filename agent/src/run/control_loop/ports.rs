//! Opens ports, retries failed ones, and handles lost ones.

use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime};

use dataplane::PortId;
use dataplane::wire::Mac;

use super::{AGAIN, ControlLoop, LOST, LOST_FOR};
use crate::run::StartError;
use crate::run::kernel::{InterfaceEvent, Opened};
use crate::run::pods::{PodPort, key_of};
use crate::run::shared_status::LostPort;
use local_api::Attachment;
use renderer::HOST;

impl ControlLoop {
    /// Restores the pods that an earlier process had attached.
    pub(in crate::run) fn take_up_pods(&mut self) -> Result<(), StartError> {
        if self.nftables.is_some() {
            return Ok(());
        }
        let failed = |error| StartError::Failed(format!("state-dir: {error}"));
        let (records, faults) = self.records.load().map_err(failed)?;
        for fault in faults {
            tracing::error!("a pod that was attached is not taken up: {fault}");
        }
        for pod in records {
            self.shared.beat();
            let (key, interface) = (key_of(&pod), pod.host_interface.clone());
            let attachment = pod.attachment();
            match self.interfaces.index(&interface) {
                Ok(None) => {
                    tracing::info!("pod {key}: interface {interface} is gone; it is forgotten");
                    self.switch.depart(pod.addresses.iter().map(|it| (*it).into()));
                    self.forget_record(&attachment);
                    continue;
                }
                Ok(Some(_)) => {}
                Err(error) => tracing::warn!("pod {key}: {error}"),
            }
            if let Err(error) = self.pods.admit(&pod, &self.own_addresses()) {
                tracing::error!("pod {key} is not taken up: {error}");
                continue;
            }
            let port = self.open_pod_port_or_later(&interface, pod.mac.0);
            log_port(&key.to_string(), &interface, &port);
            self.pods.insert(pod, port, None);
            self.bind(&key);
        }
        self.commit_ports();
        if !self.switch.wait_in_force(self.generation, crate::run::FIRST_SNAPSHOT) {
            return Err(StartError::Failed("the workers did not take over the pods".to_owned()));
        }
        let served = self.pods.iter().filter(|attached| attached.port_id().is_some());
        let interfaces: Vec<String> =
            served.map(|attached| attached.pod.host_interface.clone()).collect();
        self.to_bring_up.extend(interfaces.into_iter().map(|it| (self.generation, it)));
        self.bring_up_ports();
        Ok(())
    }

    /// Schedules switching an interface on, once the current generation is in force.
    pub(super) fn bring_up_when_in_force(&mut self, interface: String) {
        self.to_bring_up.push((self.generation, interface));
    }

    /// Switches interfaces on whose generation is in force.
    pub(super) fn bring_up_ports(&mut self) {
        let in_force = self.switch.generation();
        for (_, interface) in self.to_bring_up.extract_if(.., |(wanted, _)| *wanted <= in_force) {
            if let Err(error) = self.interfaces.bring_up(&interface) {
                tracing::warn!("{error}");
            }
        }
    }

    /// Opens a port and hands it to the workers; it forwards frames once a snapshot contains it.
    pub(super) fn open_port(&mut self, interface: &str) -> Result<PodPort, String> {
        let failed = |why| format!("open {interface}: {why}");
        self.room_for_queues(1).map_err(failed)?;
        let opened = self.interfaces.open(interface)?;
        self.serve(opened).map_err(failed)
    }

    /// Allocates a port number and hands the opened queues to the workers.
    pub(super) fn serve(&mut self, opened: Opened) -> Result<PodPort, String> {
        let Opened { queues: ports, mode, index, mtu } = opened;
        let queues = ports.len();
        self.room_for_queues(queues)?;
        let id = self.free_port_id()?;
        self.switch.add_queues(id, ports);
        Ok(PodPort::Open { id, index, mtu, mode, queues })
    }

    /// Allocates a port number.
    pub(super) fn free_port_id(&self) -> Result<PortId, String> {
        self.switch.free_port_id().ok_or_else(|| {
            format!("all {} ports are taken (max-ports)", self.shared.config.max_ports)
        })
    }

    /// Checks that `more` queues leave a quarter of the UMEM free. Each queue posts frames to its
    /// fill ring; with all frames posted, no packet could be in flight.
    pub(super) fn room_for_queues(&self, more: usize) -> Result<(), String> {
        let config = &self.shared.config;
        let host = self.host.iter().map(|host| &host.port);
        let uplink = self.uplink.iter().map(|uplink| &uplink.port);
        let ports = self.pods.iter().map(|attached| &attached.port).chain(host).chain(uplink);
        let open: usize = ports.map(PodPort::queues).sum();
        let kept = (open + more) as u64 * u64::from(config.frames_per_port);
        if kept > u64::from(config.umem_frames) / 4 * 3 {
            return Err(format!(
                "{open} queues of ports keep {} frames each, and {} of umem-frames are all there are",
                config.frames_per_port, config.umem_frames
            ));
        }
        Ok(())
    }

    fn open_port_or_later(&mut self, interface: &str) -> PodPort {
        let again_at = Instant::now() + AGAIN;
        self.open_port(interface).unwrap_or_else(|why| PodPort::Failed { why, again_at })
    }

    fn open_pod_port_or_later(&mut self, interface: &str, mac: Mac) -> PodPort {
        let again_at = Instant::now() + AGAIN;
        let opened = self.open_pod_port(interface, mac);
        opened.unwrap_or_else(|why| PodPort::Failed { why, again_at })
    }

    /// Removes a port and discards pending reports about it, since its number may be reused.
    pub(super) fn remove_port(&mut self, id: PortId) {
        self.remove_from_flow_offload(id);
        self.switch.remove_port(id);
        self.gone.extend(self.switch.take_gone());
        self.gone.retain(|(gone, _)| *gone != id);
    }

    /// Checks whether interfaces with open ports were deleted: the reported one, or all. The kernel
    /// also reports an interface that only left a bridge, so the check looks it up by name.
    pub(super) fn interface_event(&mut self, event: &InterfaceEvent) {
        let ports = self.pods.iter().map(|it| (&it.pod.host_interface, &it.port));
        let host = self.host.iter().map(|it| (&it.config.switch_interface, &it.port));
        let uplink = self.uplink.iter().map(|it| (&it.interface, &it.port));
        let punt = self.punt.iter().map(|it| (&it.interface, &it.port));
        let open: Vec<(String, u32, PortId)> = ports
            .chain(host)
            .chain(uplink)
            .chain(punt)
            .filter_map(|(interface, port)| match port {
                PodPort::Open { index, id, .. } => Some((interface.clone(), *index, *id)),
                PodPort::Failed { .. } => None,
            })
            .filter(|(_, index, _)| match event {
                InterfaceEvent::Gone(gone) | InterfaceEvent::ProgramLost(gone) => index == gone,
                InterfaceEvent::Missed => true,
                InterfaceEvent::Neighbour(..) | InterfaceEvent::Routes => false,
            })
            .collect();
        for (interface, index, id) in open {
            if matches!(event, InterfaceEvent::ProgramLost(_)) {
                self.close_unguarded(&interface, id);
            } else if self.interfaces.index(&interface).is_ok_and(|now| now != Some(index)) {
                self.lose_port(id, "the interface was deleted");
            }
        }
    }

    /// Closes a port whose XDP program was removed: switches its interface off until the port is
    /// opened again. The uplink's interface stays on, since the kernel uses it as well.
    fn close_unguarded(&mut self, interface: &str, id: PortId) {
        let is_uplink = self.uplink.as_ref().is_some_and(|uplink| uplink.port.id() == Some(id));
        if !is_uplink && let Err(error) = self.interfaces.bring_down(interface) {
            tracing::warn!("{error}");
        }
        self.lose_port(id, "its XDP program was taken off");
        let now = Instant::now();
        let pods = self.pods.iter_mut().filter(|it| it.pod.host_interface == interface);
        let host = self.host.iter_mut().filter(|it| it.config.switch_interface == interface);
        let uplink = self.uplink.iter_mut().filter(|_| is_uplink);
        let ports = pods.map(|it| &mut it.port);
        let ports = ports.chain(host.map(|it| &mut it.port)).chain(uplink.map(|it| &mut it.port));
        for port in ports {
            if let PodPort::Failed { again_at, .. } = port {
                *again_at = now;
            }
        }
        self.next_check = now;
    }

    /// Handles what workers report about ports.
    pub(super) fn fetch_gone(&mut self) {
        self.gone.extend(self.switch.take_gone());
        while let Some((id, gone)) = self.gone.pop_front() {
            self.lose_port(id, &gone.to_string());
        }
    }

    /// Handles the loss of a port.
    fn lose_port(&mut self, id: PortId, why: &str) {
        if let Some(attached) = self.pods.with_port(id) {
            let attachment = attached.pod.attachment();
            self.lose_pod_port(id, &attachment, why);
        } else if self.host.as_ref().is_some_and(|host| host.port.id() == Some(id)) {
            self.remove_port(id);
            if let Some(host) = &mut self.host {
                let again_at = Instant::now();
                host.port = PodPort::Failed { why: why.to_owned(), again_at };
                host.programmer.verify();
                let interface = host.config.switch_interface.clone();
                self.note_loss(HOST.to_owned(), interface, why);
            }
            self.publish();
        } else if self.is_punt_link(id) {
            self.lose_punt_link(why);
        } else if self.uplink.as_ref().is_some_and(|uplink| uplink.port.id() == Some(id)) {
            self.lose_uplink(id, why);
        }
    }

    /// Handles the loss of a pod's port. If its interface was deleted, the pod is detached: no DEL
    /// may follow, and its address may be reused. Otherwise the port is retried.
    fn lose_pod_port(&mut self, id: PortId, attachment: &Attachment, why: &str) {
        self.remove_port(id);
        let Some(attached) = self.pods.find_mut(attachment) else { return };
        let (name, interface) = (attached.key.to_string(), attached.pod.host_interface.clone());
        let PodPort::Open { index, .. } = attached.port else { return };
        let again_at = Instant::now() + AGAIN;
        attached.port = PodPort::Failed { why: why.to_owned(), again_at };
        self.note_loss(name, interface.clone(), why);
        let still_there = self.interfaces.index(&interface).is_ok_and(|now| now == Some(index));
        if still_there {
            self.publish();
        } else {
            self.drop_pod(attachment, &format!("interface {interface} is gone"));
        }
    }

    pub(super) fn note_loss(&mut self, name: String, interface: String, why: &str) {
        tracing::warn!("port {name} ({interface}) is lost: {why}");
        self.shared.ports_lost.fetch_add(1, Ordering::Relaxed);
        if self.lost.len() == LOST {
            self.lost.pop_front();
        }
        let when = SystemTime::now();
        self.lost.push_back(LostPort { name, interface, when, why: why.to_owned() });
    }

    /// Removes old losses, and those of ports that are served again.
    pub(super) fn forget_losses(&mut self) {
        let shared = self.shared.state();
        let is_served = |lost: &LostPort| {
            shared.ports.iter().any(|port| port.name == lost.name && port.id.is_some())
        };
        let is_recent = |lost: &LostPort| lost.when.elapsed().is_ok_and(|it| it < LOST_FOR);
        let before = self.lost.len();
        self.lost.retain(|lost| is_recent(lost) && !is_served(lost));
        if self.lost.len() != before {
            self.publish_status();
        }
    }

    /// Retries failed ports that are due.
    pub(super) fn open_failed_ports(&mut self) {
        self.open_failed_uplink();
        let now = Instant::now();
        let due =
            |port: &PodPort| matches!(port, PodPort::Failed { again_at, .. } if *again_at <= now);
        let pods: Vec<(Attachment, String, Mac, String)> = self
            .pods
            .iter()
            .filter(|attached| due(&attached.port))
            .map(|it| {
                let interface = it.pod.host_interface.clone();
                (it.pod.attachment(), interface, it.pod.mac.0, it.key.to_string())
            })
            .collect();
        let host = self.host.as_ref().filter(|host| due(&host.port));
        let host = host.map(|host| host.config.switch_interface.clone());
        if pods.is_empty() && host.is_none() {
            return;
        }
        let mut opened = Vec::new();
        for (attachment, interface, mac, name) in pods {
            if matches!(self.interfaces.index(&interface), Ok(None)) {
                self.drop_pod(&attachment, &format!("interface {interface} is gone"));
                continue;
            }
            let port = self.open_pod_port_or_later(&interface, mac);
            log_port(&name, &interface, &port);
            if let Some(attached) = self.pods.find_mut(&attachment) {
                // An attachment that waits is switched on when it is in force.
                let is_attached = attached.waiting.is_none();
                opened.extend(port.id().filter(|_| is_attached).map(|_| interface));
                attached.port = port;
            }
        }
        if let Some(interface) = host {
            let port = self.open_port_or_later(&interface);
            log_port(HOST, &interface, &port);
            opened.extend(port.id().map(|_| interface));
            if let Some(host) = &mut self.host {
                host.port = port;
            }
        }
        self.publish();
        opened.into_iter().for_each(|interface| self.bring_up_when_in_force(interface));
    }
}

pub(super) fn log_port(name: &str, interface: &str, port: &PodPort) {
    match port {
        PodPort::Open { id, mode, .. } => {
            tracing::info!("port {} is {name} ({interface}, {mode})", id.0);
        }
        PodPort::Failed { why, .. } => {
            tracing::error!("port {name} ({interface}) cannot be opened: {why}")
        }
    }
}
