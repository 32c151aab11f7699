//! The ports that workers serve: requests to open them, their numbers, their loss.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dataplane::port::PortGone;
use dataplane::wire::Mac;
use dataplane::{PortId, Switch};
use linux_net::Netlink;
use linux_net::host_port::HostPortConfig;
use local_api::Attachment;

use super::bring_up::BringUp;
use super::losses::Losses;
use super::punt_link::PuntLink;
use crate::run::error::StartError;
use crate::run::kernel::{
    Completion, InterfaceEvent, InterfaceThread, Interfaces, OpenError, Opened, Operation,
    Programming, Purpose, Way,
};
use crate::run::port::{ManagedPort, OpenPort, Owner};
use crate::run::shared_status::{LostPort, SharedStatus};

/// The effect of a change: the publication that it needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Change {
    #[default]
    None,
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

/// A request to open a port.
pub(super) struct Request {
    pub(super) owner: Owner,
    interface: String,
    expected: Option<u32>,
    /// The pod's MAC address.
    mac: Option<Mac>,
    /// Its number, where it is allocated before.
    member: Option<PortId>,
    is_cancelled: bool,
    /// Whether the punt link that it was begun on is lost.
    is_lost: bool,
}

impl Request {
    fn new(owner: Owner, interface: String, expected: Option<u32>, mac: Option<Mac>) -> Self {
        Self { owner, interface, expected, mac, member: None, is_cancelled: false, is_lost: false }
    }
}

/// A port that workers serve.
struct Served {
    owner: Owner,
    interface: String,
    index: u32,
    queues: usize,
}

impl Ports {
    /// Starts the thread that opens ports; `report` receives its completions.
    pub(super) fn start(
        shared: Arc<SharedStatus>,
        interfaces: Box<dyn Interfaces>,
        report: impl Fn(Vec<Completion>) + Send + 'static,
    ) -> Result<Self, StartError> {
        let kernel = InterfaceThread::start(interfaces, report).map_err(StartError::thread)?;
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

    /// Requests to open a port; `mac` is that of the pod behind it.
    pub(super) fn open(&mut self, owner: Owner, port: &mut ManagedPort, mac: Option<Mac>) {
        self.tickets += 1;
        let ticket = self.tickets;
        // Others have sockets of their own in either mode.
        let uses_flow_offload = mac.is_some() || owner == Owner::Uplink;
        let request = Request::new(owner, port.interface.clone(), port.index, mac);
        self.requests.insert(ticket, request);
        port.requested(ticket);
        match &mut self.punt_link {
            PuntLink::Starting(waiting) if uses_flow_offload => waiting.push(ticket),
            _ => self.begin(ticket),
        }
    }

    /// Begins a request.
    pub(super) fn begin(&mut self, ticket: u64) {
        let way = self.way(ticket);
        let Some(request) = self.requests.get(&ticket) else { return };
        let interface = request.interface.clone();
        match way {
            Ok(way) => {
                let expected = request.expected;
                self.kernel.request(Operation::Open { ticket, interface, expected, way });
            }
            Err(why) => {
                let why = format!("open {interface}: {why}");
                self.refused.push((ticket, OpenError { why, is_gone: false }));
            }
        }
    }

    fn way(&mut self, ticket: u64) -> Result<Way, String> {
        let Some(request) = self.requests.get(&ticket) else { return Ok(Way::Sockets) };
        let (Some(mac), Some((trunk, offload))) = (request.mac, self.punt_link.running()) else {
            self.room_for_queues(1)?;
            return Ok(match (&request.owner, self.punt_link.running()) {
                (Owner::Uplink, Some((_, offload))) => Way::SteeredUplink { offload },
                (Owner::Uplink, None) => Way::Uplink,
                _ => Way::Sockets,
            });
        };
        let id = self.free_port_id()?;
        let tag = self.switch().add_member(id, trunk);
        if let Some(request) = self.requests.get_mut(&ticket) {
            request.member = Some(id);
        }
        Ok(Way::Program { offload, id, tag, mac })
    }

    /// Gives a request up: what opens for it is closed again.
    pub(super) fn cancel(&mut self, ticket: u64) {
        if let Some(request) = self.requests.get_mut(&ticket) {
            request.is_cancelled = true;
        }
    }

    /// Fails the requests for ports on a punt link that is lost.
    pub(super) fn lose_members(&mut self) {
        let requests = self.requests.values_mut();
        requests.filter(|it| it.member.is_some()).for_each(|request| request.is_lost = true);
    }

    /// Takes the requests that were refused.
    pub(super) fn take_refused(&mut self) -> Vec<(u64, OpenError)> {
        std::mem::take(&mut self.refused)
    }

    /// Handles the completion of a request: hands the port to the workers. It forwards frames once a
    /// snapshot contains it. Returns the owner unless the request was given up.
    pub(super) fn complete(
        &mut self,
        ticket: u64,
        result: Result<Opened, OpenError>,
    ) -> Option<(Owner, Result<OpenPort, OpenError>)> {
        let request = self.requests.remove(&ticket)?;
        let index = result.as_ref().ok().map(|opened| opened.index);
        let is_lost = request.is_lost || index.is_some_and(|it| self.lost_early.contains(&it));
        if self.requests.is_empty() {
            self.lost_early.clear();
        }
        let result = match result {
            Ok(opened) if request.is_cancelled || is_lost => {
                self.kernel.request(Operation::Close(opened));
                let why = "its XDP program was detached while it opened".to_owned();
                Err(OpenError { why, is_gone: false })
            }
            Ok(opened) => self.serve(&request, opened),
            Err(error) => Err(error),
        };
        if result.is_err() {
            request.member.into_iter().for_each(|id| self.discard(id));
        }
        if is_lost && request.owner != Owner::Uplink {
            self.kernel.request(Operation::BringDown { interface: request.interface });
        }
        (!request.is_cancelled).then_some((request.owner, result))
    }

    /// Allocates a port number and hands the opened queues to the workers.
    fn serve(&mut self, request: &Request, opened: Opened) -> Result<OpenPort, OpenError> {
        let queues = opened.queues.len();
        let id = match request.member {
            Some(id) => Ok(id),
            None => self.room_for_queues(queues).and_then(|()| self.free_port_id()),
        };
        let id = match id {
            Ok(id) => id,
            Err(why) => {
                self.kernel.request(Operation::Close(opened));
                let why = format!("open {}: {why}", request.interface);
                return Err(OpenError { why, is_gone: false });
            }
        };
        let Opened { queues: ports, mode, index, mtu } = opened;
        if request.member.is_none() {
            self.switch().add_queues(id, ports);
        }
        let (owner, interface) = (request.owner.clone(), request.interface.clone());
        let served = Served { owner, interface, index, queues };
        self.add_wire_of_flow_offload(id, &served);
        self.served.insert(id, served);
        self.changed(Change::Snapshot);
        Ok(OpenPort { id, index, mtu, mode, queues })
    }

    /// Lets connections of pods leave and enter by a port, if it is the uplink or the host port and flow
    /// offload runs.
    fn add_wire_of_flow_offload(&self, id: PortId, served: &Served) {
        let Some((_, offload)) = self.punt_link.running() else { return };
        match served.owner {
            Owner::Uplink => offload.add_wire(id, served.index),
            Owner::Host => {
                let name = HostPortConfig::default().host_interface;
                match Netlink::open().and_then(|mut netlink| netlink.link(&name)) {
                    Ok(kernel_end) => offload.add_host(id, served.index, kernel_end.index),
                    Err(error) => {
                        tracing::warn!("{error}");
                        offload.add_wire(id, served.index);
                    }
                }
            }
            Owner::PuntLink | Owner::Pod(_) => {}
        }
    }

    /// The same for the ports that were open before flow offload ran.
    pub(super) fn add_wires_of_flow_offload(&self) {
        self.served.iter().for_each(|(id, served)| self.add_wire_of_flow_offload(*id, served));
    }

    /// Hands the punt link to the workers.
    pub(super) fn serve_punt_link(&mut self, opened: Opened) -> Result<OpenPort, String> {
        let interface = linux_net::punt::SWITCH_END.to_owned();
        let request = Request::new(Owner::PuntLink, interface, None, None);
        self.serve(&request, opened).map_err(|error| error.why)
    }

    fn free_port_id(&self) -> Result<PortId, String> {
        self.switch().free_port_id().ok_or_else(|| {
            format!("all {} ports are taken (max-ports)", self.shared.config.max_ports)
        })
    }

    /// Checks that `more` queues leave a quarter of the UMEM free. Each queue posts frames to its
    /// fill ring; with all frames posted, no packet could be in flight.
    fn room_for_queues(&self, more: usize) -> Result<(), String> {
        let config = &self.shared.config;
        let open: usize = self.served.values().map(|served| served.queues).sum();
        let kept = (open + more) as u64 * u64::from(config.frames_per_port);
        if kept > u64::from(config.umem_frames) / 4 * 3 {
            return Err(format!(
                "{open} queues of ports keep {} frames each, and {} of umem-frames are all there are",
                config.frames_per_port, config.umem_frames
            ));
        }
        Ok(())
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
    pub(super) fn is_deleted(&self, id: PortId, now: &Result<Option<u32>, String>) -> bool {
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
        self.kernel.request(Operation::BringUp { interface, attachment: Some(attachment) });
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
        for interface in self.bring_up.take_due(in_force) {
            self.kernel.request(Operation::BringUp { interface, attachment: None });
        }
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
