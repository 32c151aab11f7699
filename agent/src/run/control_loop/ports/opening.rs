//! Requests to open ports, and the numbers of those that are open.

use dataplane::PortId;
use dataplane::wire::Mac;

use super::punt_link::PuntLink;
use super::{Change, Ports, Served};
use crate::run::kernel::{KernelError, OpenError, Opened, Operation, Way};
use crate::run::port::{ManagedPort, OpenPort, Owner};
use crate::run::shared_status::FlowOffload;

/// A request to open a port.
pub(in crate::run::control_loop) struct Request {
    owner: Owner,
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
    pub(super) fn new(
        owner: Owner,
        interface: String,
        expected: Option<u32>,
        mac: Option<Mac>,
    ) -> Self {
        Self { owner, interface, expected, mac, member: None, is_cancelled: false, is_lost: false }
    }
}

impl Ports {
    /// Requests to open a port; `mac` is that of the pod behind it.
    pub(in crate::run::control_loop) fn open(
        &mut self,
        owner: Owner,
        port: &mut ManagedPort,
        mac: Option<Mac>,
    ) {
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
                let why = why.during(format!("open {interface}"));
                self.refused.push((ticket, OpenError { why, is_gone: false }));
            }
        }
    }

    fn way(&mut self, ticket: u64) -> Result<Way, KernelError> {
        let Some(request) = self.requests.get(&ticket) else { return Ok(Way::Sockets) };
        let (Some(mac), Some((trunk, offload))) = (request.mac, self.punt_link.running()) else {
            self.room_for_queues(1)?;
            let encryption = self.shared.encryption.clone();
            return Ok(match (&request.owner, self.punt_link.running()) {
                (Owner::Uplink, Some((_, offload))) => Way::SteeredUplink { offload, encryption },
                (Owner::Uplink, None) if encryption.is_some() => {
                    let why = match self.shared.flow_offload() {
                        FlowOffload::Unavailable(why) => why,
                        _ => "off".to_owned(),
                    };
                    return Err(format!(
                        "encryption needs flow offload, which is not there: {why}"
                    )
                    .into());
                }
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
    pub(in crate::run::control_loop) fn cancel(&mut self, ticket: u64) {
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
    pub(in crate::run::control_loop) fn take_refused(&mut self) -> Vec<(u64, OpenError)> {
        std::mem::take(&mut self.refused)
    }

    /// Handles the completion of a request: hands the port to the workers. It forwards frames once a
    /// snapshot contains it. Returns the owner unless the request was given up.
    pub(in crate::run::control_loop) fn complete(
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
                let why = "its XDP program was detached while it opened".into();
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
    pub(super) fn serve(
        &mut self,
        request: &Request,
        opened: Opened,
    ) -> Result<OpenPort, OpenError> {
        let queues = opened.queues.len();
        let id = match request.member {
            Some(id) => Ok(id),
            None => self.room_for_queues(queues).and_then(|()| self.free_port_id()),
        };
        let id = match id {
            Ok(id) => id,
            Err(why) => {
                self.kernel.request(Operation::Close(opened));
                let why = why.during(format!("open {}", request.interface));
                return Err(OpenError { why, is_gone: false });
            }
        };
        let Opened { queues: ports, mode, index, mtu, kernel_end } = opened;
        if request.member.is_none() {
            self.switch().add_queues(id, ports);
        }
        let (owner, interface) = (request.owner.clone(), request.interface.clone());
        let served = Served { owner, interface, index, kernel_end, queues };
        self.add_wire_of_flow_offload(id, &served);
        self.served.insert(id, served);
        self.changed(Change::Snapshot);
        Ok(OpenPort { id, index, mtu, mode, queues })
    }

    fn free_port_id(&self) -> Result<PortId, KernelError> {
        self.switch().free_port_id().ok_or_else(|| {
            format!("all {} ports are taken (max-ports)", self.shared.config.max_ports).into()
        })
    }

    /// Checks that `more` queues leave a quarter of the UMEM free. Each queue posts frames to its
    /// fill ring; with all frames posted, no packet could be in flight.
    fn room_for_queues(&self, more: usize) -> Result<(), KernelError> {
        let config = &self.shared.config;
        let open: usize = self.served.values().map(|served| served.queues).sum();
        let kept = (open + more) as u64 * u64::from(config.frames_per_port);
        if kept > u64::from(config.umem_frames) / 4 * 3 {
            return Err(format!(
                "{open} queues of ports keep {} frames each, and {} of umem-frames are all there are",
                config.frames_per_port, config.umem_frames
            )
            .into());
        }
        Ok(())
    }
}
