//! Flow offload: pods behind programs in the kernel, whose other frames come by one punt link.

use std::sync::Arc;
use std::time::Instant;

use dataplane::wire::Mac;
use dataplane::{PortId, Snapshot};
use flow_offload::{Kernel, Offload, Options, support};
use linux_net::punt;

use super::ControlLoop;
use crate::run::kernel::InterfaceEvent;
use crate::run::pods::PodPort;
use crate::run::shared_status::FlowOffload;

/// What runs of flow offload.
pub(super) struct PuntPort {
    /// The switch's end of the punt link.
    pub(super) interface: String,
    /// The port of the punt link's frames, whatever pod's they are.
    pub(super) port: PodPort,
    trunk: PortId,
    offload: Arc<Offload>,
}

/// How a port behind a program shows.
const MODE: &str = "flow offload";

impl ControlLoop {
    /// Starts flow offload if it is configured and the kernel has what it needs. Otherwise each pod
    /// gets its own sockets, and the status names the reason.
    pub(in crate::run) fn set_up_flow_offload(&mut self) {
        if !self.shared.config.flow_offload {
            return;
        }
        match self.start_flow_offload() {
            Ok(punt) => {
                self.shared
                    .set_flow_offload(FlowOffload::On(Arc::clone(&punt.offload), punt.trunk));
                self.punt = Some(punt);
                if let Some(uplink) = &self.uplink {
                    self.set_uplink_of_flow_offload(&uplink.port);
                }
            }
            Err(why) => {
                tracing::warn!("flow offload is off: {why}");
                self.shared.set_flow_offload(FlowOffload::Unavailable(why));
            }
        }
    }

    fn start_flow_offload(&mut self) -> Result<PuntPort, String> {
        if let Some(why) = support::probe() {
            return Err(why);
        }
        let text = |error: flow_offload::Error| error.to_string();
        let config = &self.shared.config;
        let (workers, grace) = (config.workers as u32, config.flow_offload_grace);
        let options = Options { grace, queues: workers, ..Options::default() };
        let kernel = Kernel::load(options.entries).map_err(text)?;
        let (mut opened, kernel_end) = self.interfaces.open_punt_link(workers)?;
        kernel.set_punt(kernel_end).map_err(text)?;
        let queues = opened.queues.into_iter().enumerate();
        opened.queues = queues.map(|(queue, port)| kernel.punt_queue(queue, port)).collect();
        let port = self.serve(opened)?;
        let trunk = port.id().ok_or("the punt link is not served")?;
        let offload = Offload::start(kernel, Arc::clone(&self.switch), options).map_err(text)?;
        for end in [punt::KERNEL_END, punt::SWITCH_END] {
            self.interfaces.bring_up(end)?;
        }
        tracing::info!("port {} is the punt link of flow offload", trunk.0);
        let interface = punt::SWITCH_END.to_owned();
        Ok(PuntPort { interface, port, trunk, offload: Arc::new(offload) })
    }

    /// Opens the port of a pod: behind a program where flow offload runs, else with sockets.
    pub(super) fn open_pod_port(&mut self, interface: &str, mac: Mac) -> Result<PodPort, String> {
        let Some(PuntPort { trunk, offload, .. }) = &self.punt else {
            return self.open_port(interface);
        };
        let failed = |why: String| format!("open {interface}: {why}");
        let (index, mtu) = self.interfaces.describe(interface).map_err(failed)?;
        let id = self.free_port_id().map_err(failed)?;
        let tag = self.switch.add_member(id, *trunk);
        // The program is in place before that of an earlier process goes.
        let opened = offload.add_port(id, index, tag, mac).map_err(|error| error.to_string());
        if let Err(error) = opened.and_then(|()| self.interfaces.take_xdp_off(interface)) {
            self.remove_port(id);
            return Err(failed(error));
        }
        Ok(PodPort::Open { id, index, mtu, mode: MODE.to_owned(), queues: 0 })
    }

    /// Lets connections of pods leave by the uplink.
    pub(super) fn set_uplink_of_flow_offload(&self, port: &PodPort) {
        if let (Some(punt), PodPort::Open { id, index, .. }) = (&self.punt, port) {
            punt.offload.set_uplink(*id, *index);
        }
    }

    /// Has entries that a snapshot concerns count no more, before workers decide by it.
    pub(super) fn prepare_flow_offload(&self, snapshot: &Arc<Snapshot>) {
        if let Some(punt) = &self.punt {
            punt.offload.prepare(snapshot);
        }
    }

    /// Closes a port that may be behind a program.
    pub(super) fn remove_from_flow_offload(&self, id: PortId) {
        if let Some(punt) = &self.punt {
            punt.offload.remove_port(id);
        }
    }

    /// Checks that each pod's program is still attached. The kernel sends no event when one is
    /// detached.
    pub(super) fn check_flow_offload(&mut self) {
        let Some(punt) = &self.punt else { return };
        let ports = self.pods.iter().filter_map(|attached| match &attached.port {
            PodPort::Open { index, queues: 0, .. } => Some(*index),
            _ => None,
        });
        let lost: Vec<u32> = ports.filter(|index| !punt.offload.is_guarded(*index)).collect();
        for index in lost {
            self.interface_event(&InterfaceEvent::ProgramLost(index));
        }
    }

    /// Whether a port is that of the punt link.
    pub(super) fn is_punt_link(&self, id: PortId) -> bool {
        self.punt.as_ref().is_some_and(|punt| punt.trunk == id)
    }

    /// The punt link is gone: it is made anew, with all ports that are on it.
    pub(super) fn lose_punt_link(&mut self, why: &str) {
        let Some(punt) = &self.punt else { return };
        tracing::error!("the punt link of flow offload is lost: {why}");
        punt.offload.close();
        let (trunk, now) = (punt.trunk, Instant::now());
        let of_pods = self.pods.iter().filter_map(|attached| match &attached.port {
            PodPort::Open { id, queues: 0, .. } => Some((*id, attached.pod.attachment())),
            _ => None,
        });
        for (id, attachment) in of_pods.collect::<Vec<_>>() {
            self.remove_port(id);
            if let Some(attached) = self.pods.find_mut(&attachment) {
                attached.port = PodPort::Failed { why: why.to_owned(), again_at: now };
            }
        }
        self.remove_port(trunk);
        self.end_flow_offload(FlowOffload::Unavailable(why.to_owned()));
        self.set_up_flow_offload();
        self.publish();
        self.next_check = now;
    }

    /// Ends flow offload. What is in the kernel goes on for as long as the grace lasts.
    pub(super) fn end_flow_offload(&mut self, now: FlowOffload) {
        self.punt = None;
        self.shared.set_flow_offload(now);
    }
}
