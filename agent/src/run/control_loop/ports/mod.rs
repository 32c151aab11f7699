//! The ports that workers serve, and their loss.
//!
//! - `opening`: requests to open ports, and their numbers,
//! - `flow_offload`, `punt_link`: the punt link, and ports behind programs,
//! - `bring_up`, `losses`: interfaces to switch on, and ports lost lately.

mod bring_up;
mod flow_offload;
mod losses;
mod opening;
mod punt_link;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dataplane::port::PortGone;
use dataplane::{PortId, Switch};
use local_api::Attachment;

use crate::run::error::StartError;
use crate::run::kernel::{
    BringUpFor, Completion, InterfaceEvent, InterfaceThread, Interfaces, KernelError, OpenError,
    Operation, Program, Programming, Purpose,
};
use crate::run::port::Owner;
use crate::run::shared_status::{LostPort, SharedStatus};
use bring_up::BringUp;
use losses::Losses;
use opening::Request;
pub(super) use punt_link::PuntLink;

/// The effect of a change: the publication that it needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Change {
    #[default]
    None,
    /// To publish the status, of which only what follows from the source's objects may have changed.
    Objects,
    /// To publish the status.
    Status,
    /// To publish a snapshot.
    Snapshot,
}

/// The ports that workers serve, and those requested.
pub(super) struct Ports {
    pub(super) shared: Arc<SharedStatus>,
    kernel: InterfaceThread,
    tickets: u64,
    pub(super) requests: BTreeMap<u64, Request>,
    /// Requests that were refused without an operation.
    refused: Vec<(u64, OpenError)>,
    served: BTreeMap<PortId, Served>,
    /// Interfaces whose program or existence was lost while requests were under way.
    lost_early: Vec<u32>,
    bring_up: BringUp,
    /// Reports of workers that were fetched but not handled yet.
    gone: VecDeque<(PortId, PortGone)>,
    losses: Losses,
    pub(super) punt_link: PuntLink,
    change: Change,
}

/// A port that workers serve.
struct Served {
    owner: Owner,
    interface: String,
    index: u32,
    /// Number of the kernel's end of the host port.
    kernel_end: Option<u32>,
    queues: usize,
}

impl Ports {
    /// Starts the thread that opens ports; `report` receives its completions.
    pub(super) fn start(
        shared: Arc<SharedStatus>,
        interfaces: Box<dyn Interfaces>,
        report: impl Fn(Vec<Completion>) + Send + 'static,
    ) -> Result<Self, StartError> {
        let kernel = InterfaceThread::start(interfaces, report)?;
        Ok(Self {
            shared,
            kernel,
            tickets: 0,
            requests: BTreeMap::new(),
            refused: Vec::new(),
            served: BTreeMap::new(),
            lost_early: Vec::new(),
            bring_up: BringUp::default(),
            gone: VecDeque::new(),
            losses: Losses::default(),
            punt_link: PuntLink::default(),
            change: Change::None,
        })
    }

    /// The workers.
    pub(super) fn switch(&self) -> &Arc<Switch> {
        &self.shared.switch
    }

    /// Notes the effect of a change.
    pub(super) fn changed(&mut self, change: Change) {
        self.change = self.change.max(change);
    }

    /// Takes the changes noted so far.
    pub(super) fn take_change(&mut self) -> Change {
        std::mem::take(&mut self.change)
    }

    /// Requests an operation on interfaces.
    pub(super) fn request(&self, operation: Operation) {
        self.kernel.request(operation);
    }

    /// Names an operation that takes too long.
    pub(super) fn programming(&self) -> Programming {
        self.kernel.programming()
    }

    /// Stops serving a port. Discards pending reports about it, since its number may be reused.
    pub(super) fn remove(&mut self, id: PortId) {
        if self.served.remove(&id).is_some() {
            self.discard(id);
            self.changed(Change::Snapshot);
        }
    }

    fn discard(&mut self, id: PortId) {
        if let Some((_, offload)) = self.punt_link.running() {
            offload.remove_port(id);
        }
        self.switch().remove_port(id);
        self.gone.extend(self.shared.switch.take_gone());
        self.gone.retain(|(gone, _)| *gone != id);
    }

    /// Stops serving a port that is lost, and notes the loss; returns its owner.
    pub(super) fn lose(&mut self, id: PortId, name: &str, why: &str) -> Option<Owner> {
        let Served { owner, interface, .. } = self.served.get(&id)?;
        let (owner, interface) = (owner.clone(), interface.clone());
        tracing::warn!("port {name} ({interface}) is lost: {why}");
        self.remove(id);
        self.shared.ports_lost.fetch_add(1, Ordering::Relaxed);
        self.losses.note(name, interface, why);
        Some(owner)
    }

    /// Ports behind programs of flow offload, with their owners and their interfaces' numbers.
    pub(super) fn members(&self) -> impl Iterator<Item = (PortId, &Owner, u32)> {
        let members = self.served.iter().filter(|(_, served)| served.queues == 0);
        members.map(|(id, served)| (*id, &served.owner, served.index))
    }

    /// The uplink's port and interface while it is served.
    pub(super) fn uplink(&self) -> Option<(PortId, u32)> {
        let mut uplinks = self.served.iter().filter(|(_, served)| served.owner == Owner::Uplink);
        uplinks.next().map(|(id, served)| (*id, served.index))
    }

    /// The owner of a port.
    pub(super) fn owner(&self, id: PortId) -> Option<&Owner> {
        self.served.get(&id).map(|served| &served.owner)
    }

    /// Returns the next port that workers report as failed, with the reason.
    pub(super) fn next_gone(&mut self) -> Option<(PortId, String)> {
        self.gone.extend(self.shared.switch.take_gone());
        self.gone.pop_front().map(|(id, gone)| (id, gone.to_string()))
    }

    /// Handles an event about an interface. Requests a look at those that may be deleted: the kernel
    /// also reports one that only left a bridge. Returns the ports whose XDP program is detached; a
    /// pod's interface is switched off until its port is open again. The uplink's interface stays on,
    /// since the kernel uses it as well.
    pub(super) fn interface_event(&mut self, event: &InterfaceEvent) -> Vec<PortId> {
        let concerns = |served: &&Served| match event {
            InterfaceEvent::Gone(gone) | InterfaceEvent::ProgramLost(gone) => served.index == *gone,
            InterfaceEvent::Missed => true,
            InterfaceEvent::Neighbour(..) | InterfaceEvent::Routes => false,
        };
        if let InterfaceEvent::Gone(index) | InterfaceEvent::ProgramLost(index) = event
            && !self.requests.is_empty()
        {
            self.lost_early.push(*index);
        }
        let mut unguarded = Vec::new();
        for (id, served) in self.served.iter().filter(|(_, served)| concerns(served)) {
            let interface = served.interface.clone();
            if matches!(event, InterfaceEvent::ProgramLost(_)) {
                unguarded.push(*id);
                if served.owner != Owner::Uplink {
                    self.kernel.request(Operation::BringDown { interface });
                }
            } else {
                let purpose = Purpose::Served(*id);
                self.kernel.request(Operation::Find { interface, purpose });
            }
        }
        unguarded
    }

    /// Returns whether the interface of an open port was deleted, given the number that its name has
    /// now.
    pub(super) fn is_deleted(&self, id: PortId, now: &Result<Option<u32>, KernelError>) -> bool {
        let served = self.served.get(&id);
        served.is_some_and(|served| now.as_ref().is_ok_and(|now| *now != Some(served.index)))
    }

    /// Switches an interface on once the next snapshot is in force.
    pub(super) fn bring_up_with_next_snapshot(&mut self, interface: String) {
        self.bring_up.add(interface);
        self.changed(Change::Snapshot);
    }

    /// Switches an interface on for an attachment that waits for it.
    pub(super) fn bring_up_for(&self, interface: String, attachment: Attachment) {
        self.kernel.request(self.bringing_up(interface, Some(attachment)));
    }

    /// Notes the generation that contains the ports opened so far.
    pub(super) fn published(&mut self, generation: u64) {
        self.bring_up.published(generation);
    }

    /// Returns whether an interface waits for a snapshot to be in force.
    pub(super) fn is_waiting(&self) -> bool {
        self.bring_up.is_waiting()
    }

    /// Switches interfaces on whose generation is in force.
    pub(super) fn bring_up(&mut self) {
        let in_force = self.shared.switch.generation();
        let due = self.bring_up.take_due(in_force).into_iter();
        let operations: Vec<_> = due.map(|it| self.bringing_up(it, None)).collect();
        // One right after the other, so that the thread takes them together.
        operations.into_iter().for_each(|operation| self.kernel.request(operation));
    }

    fn bringing_up(&self, interface: String, attachment: Option<Attachment>) -> Operation {
        let served = self.served.iter().find(|(_, served)| served.interface == interface);
        let purpose = match (attachment, served) {
            (Some(attachment), _) => BringUpFor::Attachment(attachment),
            (None, Some((id, _))) => BringUpFor::Served(*id),
            (None, None) => BringUpFor::Others,
        };
        let member = served.filter(|(_, served)| served.queues == 0);
        let program = member
            .zip(self.punt_link.running())
            .map(|((id, served), (_, offload))| Program { offload, id: *id, index: served.index });
        Operation::BringUp { interface, program, purpose }
    }

    /// Ports lost lately, newest last.
    pub(super) fn lost(&self) -> impl Iterator<Item = &LostPort> {
        self.losses.iter()
    }

    /// Removes old losses, and those of ports that are served again.
    pub(super) fn forget_losses(&mut self) {
        if self.losses.forget(&self.shared.state().ports) {
            self.changed(Change::Status);
        }
    }
}
