//! AF_XDP ports over one UMEM, configured through netlink.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use dataplane::port::Port;
use dataplane::port::af_xdp::{
    AfXdpPort, Fallback, PortOptions, Umem, Uplink, UplinkFilter, XdpMode,
};
use flow_offload::Offload;
use linux_net::host_port::HostPortConfig;
use linux_net::punt;
use linux_net::{Footprint, Link, LinkEvents, MAX_MTU, Netlink, SINGLE_FRAME_MTU};

use super::error::KernelError;
use super::event::{EventSink, InterfaceEvent, paths};
use super::guard::{self, Guarded};
use super::host_network::{HostNetwork, KernelNetwork, addresses};
use super::interfaces::{Interfaces, Opened, OpenedUplink, Undo};

/// Part of the UMEM that the punt link, which serves all pods, posts to its fill rings: one in so
/// many frames.
const PUNT_LINK: u32 = 8;

/// The real ones: AF_XDP ports over one UMEM, configured through netlink.
pub struct KernelInterfaces {
    umem: Umem,
    frames_per_port: u32,
    netlink: Netlink,
    uplink: Option<OpenUplink>,
    guarded: Guarded,
    /// Programs of flow offload, loaded with privileges that the process has given up since.
    programs: Option<flow_offload::Programs>,
    /// The interfaces, by their names, as they were when a group of operations began.
    ahead: HashMap<String, Link>,
}

/// The uplink, and its filter as set last.
struct OpenUplink {
    name: String,
    index: u32,
    steering: Steering,
    filter: Option<UplinkFilter>,
    /// Whether programs that an earlier process left at other interfaces were looked for.
    is_alone: bool,
}

/// The program that picks the switch's packets.
enum Steering {
    /// An XDP program in front of the sockets.
    Xdp(Uplink),
    /// One of flow offload, in front of a link to them.
    FlowOffload(Arc<Offload>),
}

impl KernelInterfaces {
    /// Opens ports over this UMEM, in the calling thread's network namespace; each posts
    /// `frames_per_port` frames to its fill ring. `programs` are those of flow offload, if it is
    /// wanted.
    ///
    /// # Errors
    /// If the kernel gives no netlink socket.
    pub fn new(
        umem: Umem,
        frames_per_port: u32,
        programs: Option<flow_offload::Programs>,
    ) -> Result<Self, KernelError> {
        let netlink = Netlink::open()?;
        let guarded = Guarded::default();
        let ahead = HashMap::new();
        Ok(Self { umem, frames_per_port, netlink, uplink: None, guarded, programs, ahead })
    }
}

impl KernelInterfaces {
    fn link(&mut self, interface: &str) -> Result<Link, linux_net::Error> {
        match self.ahead.get(interface) {
            Some(link) => Ok(link.clone()),
            None => self.netlink.link(interface),
        }
    }

    /// Opens a port whose queues post so many frames each. The loss of its XDP program is reported as
    /// that of the interface with number `reported`, or else as its own.
    fn open_with(
        &mut self,
        interface: &str,
        fill: u32,
        reported: Option<u32>,
    ) -> Result<Opened, KernelError> {
        let link = self.netlink.link(interface)?;
        let options = PortOptions { fill, fallback: Fallback::Drop };
        let ports = self.umem.open_queues(interface, &options);
        let ports = ports?;
        let mode = ports.first().map(AfXdpPort::mode);
        self.guard(interface, reported.unwrap_or(link.index));
        // An earlier process may have used flow offload.
        flow_offload::Kernel::release(link.index);
        Ok(as_one(ports, mode, &link))
    }

    /// Bytes of the largest packet that a port takes.
    fn longest_packet(&self) -> u32 {
        if self.umem.takes_long_packets() { MAX_MTU } else { SINGLE_FRAME_MTU.into() }
    }

    /// Notes which XDP program is attached to an interface; the loss of it is reported as that of the
    /// interface with number `reported`.
    fn guard(&mut self, interface: &str, reported: u32) {
        if let Ok(link) = self.netlink.link(interface)
            && let Some(program) = link.xdp_program
        {
            self.guarded.lock().insert(link.index, guard::Program { number: program, reported });
        }
    }
}

impl KernelInterfaces {
    /// Takes the uplink's program of an earlier process off all interfaces but the uplink: it takes
    /// the switch's packets from an interface that became a bridge's, or drops them.
    fn release_former_uplinks(&mut self, uplink: u32) -> Result<(), KernelError> {
        for link in self.netlink.links()?.iter().filter(|link| link.index != uplink) {
            let name = &link.name;
            let [by_filter, by_xdp] = [
                flow_offload::Kernel::release_former_uplink(link.index),
                Umem::release_former_uplink(link)?,
            ];
            if by_filter || by_xdp {
                tracing::info!(
                    "{name} is not the uplink any more: an earlier process's program there is removed"
                );
            }
        }
        Ok(())
    }
}

impl OpenUplink {
    fn new(link: &Link, steering: Steering) -> Self {
        Self { name: link.name.clone(), index: link.index, steering, filter: None, is_alone: false }
    }
}

impl Interfaces for KernelInterfaces {
    fn look_ahead(&mut self, begins: bool) {
        // What is missing is looked up alone.
        let links = if begins { self.netlink.links().unwrap_or_default() } else { Vec::new() };
        self.ahead = links.into_iter().map(|link| (link.name.clone(), link)).collect();
    }

    fn open(&mut self, interface: &str) -> Result<Opened, KernelError> {
        let host_port = HostPortConfig::default();
        let is_host_port = interface == host_port.switch_interface;
        let kernel_end = match is_host_port {
            true => {
                let link = self.netlink.link(&host_port.host_interface);
                // The node's own packets stay with the switch then.
                link.inspect_err(|error| tracing::warn!("{error}")).ok().map(|link| link.index)
            }
            false => None,
        };
        // An earlier process may have used flow offload.
        kernel_end.into_iter().for_each(flow_offload::Kernel::release_host);
        Ok(Opened { kernel_end, ..self.open_with(interface, self.frames_per_port, None)? })
    }

    fn load_programs(&mut self, entries: u32) -> Result<flow_offload::Kernel, flow_offload::Error> {
        match &mut self.programs {
            Some(programs) => programs.take(),
            None => flow_offload::Kernel::load(entries),
        }
    }

    fn open_punt_link(&mut self, queues: u32) -> Result<(Opened, u32), KernelError> {
        let link = punt::set_up(queues, self.longest_packet())?;
        let fill = self.umem.frames() / PUNT_LINK / queues.max(1);
        let fill = fill.max(self.frames_per_port);
        // Once open, this end drops the frames that no worker reads.
        Ok((self.open_with(punt::SWITCH_END, fill, None)?, link.kernel.index))
    }

    fn describe(&mut self, interface: &str) -> Result<(u32, u16), KernelError> {
        let link = self.link(interface)?;
        Ok((link.index, mtu_of(&link)))
    }

    fn take_xdp_off(&mut self, interface: &str) -> Result<(), KernelError> {
        self.release_host_port(interface)
    }

    fn addresses(&mut self) -> Result<Vec<IpAddr>, KernelError> {
        addresses(&mut self.netlink)
    }

    fn bring_up(&mut self, interface: &str) -> Result<(), KernelError> {
        let up = self.link(interface).and_then(|link| match link.up {
            true => Ok(()),
            false => self.netlink.set_up(link.index),
        });
        up.map_err(|error| KernelError::from(error).during(format!("switch on {interface}")))
    }

    fn bring_down(&mut self, interface: &str) -> Result<(), KernelError> {
        let down = self.netlink.link(interface).and_then(|link| self.netlink.set_down(link.index));
        down.map_err(|error| KernelError::from(error).during(format!("switch off {interface}")))
    }

    fn index(&mut self, interface: &str) -> Result<Option<u32>, KernelError> {
        let link = self.netlink.find_link(interface)?;
        Ok(link.map(|link| link.index))
    }

    fn release_host_port(&mut self, interface: &str) -> Result<(), KernelError> {
        let link = self.link(interface)?;
        self.guarded.lock().remove(&link.index);
        match link.xdp_program {
            Some(_) => Ok(Umem::detach(interface)?),
            None => Ok(()),
        }
    }

    fn open_uplink(&mut self, interface: &str) -> Result<OpenedUplink, KernelError> {
        let link = self.netlink.link(interface)?;
        let mac = link.mac.ok_or_else(|| format!("{interface} has no MAC address"))?.0;
        if let Err(error) = linux_net::keep_vlan_tags(interface) {
            tracing::warn!("uplink: {error}; frames of its VLANs look like untagged ones");
        }
        let opened = self.umem.open_uplink(interface, self.frames_per_port);
        let (program, ports) = opened?;
        let port = as_one(ports, Some(program.mode()), &link);
        self.uplink = Some(OpenUplink::new(&link, Steering::Xdp(program)));
        self.guard(interface, link.index);
        Ok(OpenedUplink { port, mac })
    }

    fn open_steered_uplink(
        &mut self,
        interface: &str,
        offload: Arc<Offload>,
    ) -> Result<OpenedUplink, KernelError> {
        let link = self.netlink.link(interface)?;
        let mac = link.mac.ok_or_else(|| format!("{interface} has no MAC address"))?.0;
        let queues = punt::receive_queues(interface);
        // Its link is made anew.
        self.guarded.lock().retain(|_, program| program.reported != link.index);
        let pair = punt::set_up_uplink(queues, self.longest_packet());
        let pair = pair?;
        let mut opened =
            self.open_with(punt::UPLINK_SWITCH_END, self.frames_per_port, Some(link.index))?;
        opened.queues =
            opened.queues.into_iter().map(|it| offload.kernel().uplink_queue(it)).collect();
        let steered = offload.kernel().set_uplink(link.index, pair.kernel.index);
        steered?;
        [punt::UPLINK_KERNEL_END, punt::UPLINK_SWITCH_END]
            .into_iter()
            .try_for_each(|end| self.bring_up(end))?;
        self.uplink = Some(OpenUplink::new(&link, Steering::FlowOffload(offload)));
        let port = Opened { index: link.index, mtu: mtu_of(&link), ..opened };
        Ok(OpenedUplink { port, mac })
    }

    fn set_uplink_filter(&mut self, filter: &UplinkFilter) -> Result<(), KernelError> {
        let uplink = self.uplink.as_mut().ok_or("there is no uplink")?;
        if uplink.filter.as_ref() == Some(filter) {
            return Ok(());
        }
        uplink.filter = None;
        // Only now another program can go that an earlier process left: it drops the switch's packets,
        // which the kernel would answer.
        match &mut uplink.steering {
            Steering::Xdp(program) => {
                program.set(filter)?;
                flow_offload::Kernel::release(uplink.index);
            }
            Steering::FlowOffload(offload) => {
                offload.set_uplink_filter(filter)?;
                let name = &uplink.name;
                let foreign = Umem::foreign_program(name)?;
                if foreign.is_none() {
                    Umem::detach(name)?;
                }
            }
        }
        uplink.filter = Some(filter.clone());
        if !std::mem::replace(&mut uplink.is_alone, true) {
            let index = uplink.index;
            self.release_former_uplinks(index)?;
        }
        Ok(())
    }

    fn release_uplink(&mut self) -> Result<(), KernelError> {
        match self.uplink.take() {
            Some(OpenUplink { index, steering: Steering::Xdp(program), .. }) => {
                self.guarded.lock().remove(&index);
                Ok(program.detach()?)
            }
            Some(OpenUplink { steering: Steering::FlowOffload(_), .. }) | None => Ok(()),
        }
    }

    fn watch(&mut self, sink: Box<dyn Fn(InterfaceEvent) + Send>) -> Result<(), KernelError> {
        let links = LinkEvents::open()?;
        let sink: EventSink = std::sync::Arc::new(parking_lot::Mutex::new(sink));
        guard::watch(links, self.guarded.clone(), EventSink::clone(&sink))?;
        paths(&sink)
    }

    fn undo(&mut self) -> Result<Undo, KernelError> {
        let before = Footprint::read()?;
        Ok(Box::new(move || Ok(before.restore()?)))
    }

    fn host_network(&self) -> Result<Box<dyn HostNetwork>, KernelError> {
        Ok(Box::new(KernelNetwork::open()?))
    }
}

fn as_one(ports: Vec<AfXdpPort>, mode: Option<XdpMode>, link: &Link) -> Opened {
    let mut mode = mode.map(|mode| mode.to_string()).unwrap_or_default();
    if ports.len() > 1 {
        mode += &format!(", {} queues", ports.len());
    }
    let queues = ports.into_iter().map(|port| Box::new(port) as Box<dyn Port>).collect();
    Opened { queues, mode, index: link.index, mtu: mtu_of(link), kernel_end: None }
}

/// An IP packet without the jumbo option has at most 65535 bytes.
fn mtu_of(link: &Link) -> u16 {
    link.mtu.min(u16::MAX.into()) as u16
}
