//! Flow offload: pods behind programs in the kernel, whose other frames come by one punt link.

use std::sync::Arc;

use dataplane::{PortId, Snapshot};
use flow_offload::{Kernel, Offload, Options};

use super::opening::Request;
use super::punt_link::PuntLink;
use super::{Ports, Served};
use crate::run::kernel::{KernelError, Opened, Operation};
use crate::run::port::{OpenPort, Owner};
use crate::run::shared_status::FlowOffload;

impl Ports {
    /// Requests flow offload if it is configured.
    pub(in crate::run::control_loop) fn start_flow_offload(&mut self) {
        if self.shared.config.flow_offload {
            self.punt_link = PuntLink::Starting(Vec::new());
            let queues = self.shared.config.workers as u32;
            let entries = Options::default().entries;
            self.request(Operation::OpenPuntLink { queues, entries });
        }
    }

    /// Starts flow offload on the punt link. If the kernel lacks what it needs, each pod gets its own
    /// sockets, and the status names the reason.
    pub(in crate::run::control_loop) fn punt_link_opened(
        &mut self,
        result: Result<(Opened, Kernel), KernelError>,
    ) {
        let started = result.and_then(|(opened, kernel)| self.run_offload(opened, kernel));
        let (punt_link, state) = match started {
            Ok((trunk, offload)) => {
                tracing::info!("port {} is the punt link of flow offload", trunk.0);
                let state = FlowOffload::On(Arc::clone(&offload), trunk);
                (PuntLink::On { trunk, offload }, state)
            }
            Err(why) => {
                tracing::warn!("flow offload is off: {why}");
                (PuntLink::Off, FlowOffload::Unavailable(why.to_string()))
            }
        };
        self.shared.set_flow_offload(state);
        if let PuntLink::Starting(waiting) = std::mem::replace(&mut self.punt_link, punt_link) {
            waiting.into_iter().for_each(|ticket| self.begin(ticket));
        }
        self.add_wires_of_flow_offload();
    }

    fn run_offload(
        &mut self,
        opened: Opened,
        kernel: Kernel,
    ) -> Result<(PortId, Arc<Offload>), KernelError> {
        let grace = self.shared.config.flow_offload_grace;
        let trunk = self.serve_punt_link(opened)?.id;
        let queues = self.shared.config.workers as u32;
        let options = Options { grace, queues, ..Options::default() };
        let offload = Offload::start(kernel, Arc::clone(self.switch()), options);
        let offload = offload.inspect_err(|_| self.remove(trunk))?;
        Ok((trunk, Arc::new(offload)))
    }

    /// Lets connections of pods leave and enter by a port, if it is the uplink or the host port and flow
    /// offload runs.
    pub(super) fn add_wire_of_flow_offload(&self, id: PortId, served: &Served) {
        let Some((_, offload)) = self.punt_link.running() else { return };
        if !matches!(served.owner, Owner::Uplink | Owner::Host) {
            return;
        }
        offload.add_wire(id, served.index);
        if let Some(kernel_end) = served.kernel_end {
            self.request(Operation::OffloadHost { offload, kernel_end });
        }
    }

    /// The same for the ports that were open before flow offload ran.
    fn add_wires_of_flow_offload(&self) {
        self.served.iter().for_each(|(id, served)| self.add_wire_of_flow_offload(*id, served));
    }

    /// Hands the punt link to the workers.
    fn serve_punt_link(&mut self, opened: Opened) -> Result<OpenPort, KernelError> {
        let interface = linux_net::punt::SWITCH_END.to_owned();
        let request = Request::new(Owner::PuntLink, interface, None, None);
        self.serve(&request, opened).map_err(|error| error.why)
    }

    /// Invalidates entries that a snapshot concerns, before workers decide by it.
    pub(in crate::run::control_loop) fn prepare_flow_offload(&self, snapshot: &Arc<Snapshot>) {
        if let PuntLink::On { offload, .. } = &self.punt_link {
            offload.prepare(snapshot);
        }
    }

    /// Returns the interfaces whose program is detached. The kernel sends no event then.
    pub(in crate::run::control_loop) fn unguarded(&self) -> Vec<u32> {
        let PuntLink::On { offload, .. } = &self.punt_link else { return Vec::new() };
        let encryption = self.shared.encryption.as_ref();
        let is_sealed = || encryption.is_none_or(|it| it.is_attached());
        let is_guarded = |_: &_| offload.kernel().is_uplink_guarded() && is_sealed();
        let uplink = self.uplink().filter(|it| !is_guarded(it));
        offload.unguarded().into_iter().chain(uplink.map(|(_, index)| index)).collect()
    }

    /// Stops serving the punt link, which is lost, and the ports on it; returns the owners of these.
    pub(in crate::run::control_loop) fn remove_punt_link(&mut self, why: &str) -> Vec<Owner> {
        let Some((trunk, offload)) = self.punt_link.running() else { return Vec::new() };
        tracing::error!("the punt link of flow offload is lost: {why}");
        offload.close();
        let members: Vec<_> = self.members().map(|(id, owner, _)| (id, owner.clone())).collect();
        // Before the link, whose frames have their tags.
        members.iter().for_each(|(id, _)| self.remove(*id));
        self.remove(trunk);
        self.lose_members();
        members.into_iter().map(|(_, owner)| owner).collect()
    }

    /// Ends flow offload. Entries in the kernel stay valid until the grace ends.
    pub(in crate::run::control_loop) fn end_flow_offload(&mut self, state: FlowOffload) {
        self.punt_link = PuntLink::Off;
        self.shared.set_flow_offload(state);
    }
}
