//! The kernel as seen by the running switch: two traits, which tests implement without root.
//! [`Interfaces`] opens ports; [`HostNetwork`] configures the cluster node's own network from other
//! threads.

use std::net::IpAddr;

use control::View;
use dataplane::port::Port;
use dataplane::port::af_xdp::{
    AfXdpPort, Fallback, PortOptions, Umem, Uplink, UplinkFilter, XdpMode,
};
use dataplane::wire::Mac;

use nftables::{Enforcer, Failsafe, HOST_TABLES, host_ruleset};

use linux_net::filter::{self, Filter};
use linux_net::host_port::{self, HostPortConfig};
use linux_net::masquerade::{self, Masquerader};
use linux_net::punt;
use linux_net::redirect::{Redirector, Redirects};
use linux_net::{Error, Event, Events, Link, LinkEvents, Netlink, NextHop, PathEvent, PathEvents};

use super::event::{EventSink, InterfaceEvent};
use super::guard::{self, Guarded};

/// A port that was opened on an interface.
pub struct Opened {
    /// Its queues, for the switch; a queue's place is its number.
    pub queues: Vec<Box<dyn Port>>,
    /// Mode of the port, as shown: `native, copy`.
    pub mode: String,
    /// The interface's number: a later interface of the same name has another one.
    pub index: u32,
    /// Bytes of the largest IP packet that it takes.
    pub mtu: u16,
}

/// An uplink that was opened.
pub struct OpenedUplink {
    /// The port.
    pub port: Opened,
    /// Its own MAC address.
    pub mac: Mac,
}

/// Operations on the cluster node's interfaces.
pub trait Interfaces: Send {
    /// Opens a port. Frames that arrive before it is served are dropped.
    ///
    /// # Errors
    /// In words, with the interface.
    fn open(&mut self, interface: &str) -> Result<Opened, String>;

    /// Switches an interface on.
    ///
    /// # Errors
    /// In words, with the interface.
    fn bring_up(&mut self, interface: &str) -> Result<(), String>;

    /// The kernel's own addresses, but for those of loopback.
    ///
    /// # Errors
    /// If the kernel does not answer.
    fn addresses(&mut self) -> Result<Vec<IpAddr>, String>;

    /// Switches an interface off.
    ///
    /// # Errors
    /// In words, with the interface.
    fn bring_down(&mut self, interface: &str) -> Result<(), String>;

    /// The number of an interface, `None` if it does not exist.
    ///
    /// # Errors
    /// If the kernel does not answer.
    fn index(&mut self, interface: &str) -> Result<Option<u32>, String>;

    /// Detaches the switch's program from the host port's interface, at the switch's end.
    ///
    /// # Errors
    /// In words.
    fn release_host_port(&mut self, interface: &str) -> Result<(), String>;

    /// Opens a port on an interface that the kernel uses as well. Until a filter is set, all
    /// packets go to the kernel. There is at most one such interface.
    ///
    /// # Errors
    /// In words, with the interface.
    fn open_uplink(&mut self, interface: &str) -> Result<OpenedUplink, String>;

    /// Sets which packets the switch takes from the uplink; setting an equal filter costs nothing.
    ///
    /// # Errors
    /// In words. Setting it again continues from the state reached.
    fn set_uplink_filter(&mut self, filter: &UplinkFilter) -> Result<(), String>;

    /// Returns the uplink to the kernel.
    ///
    /// # Errors
    /// In words, with the interface.
    fn release_uplink(&mut self) -> Result<(), String>;

    /// Makes the punt link of flow offload and opens the switch's end, with so many queues; also the
    /// number of the other end. Both stay switched off.
    ///
    /// # Errors
    /// In words.
    fn open_punt_link(&mut self, queues: u32) -> Result<(Opened, u32), String>;

    /// Number and MTU of an interface.
    ///
    /// # Errors
    /// In words, with the interface.
    fn describe(&mut self, interface: &str) -> Result<(u32, u16), String>;

    /// Takes the XDP program off an interface that flow offload serves: an earlier process may have
    /// left one.
    ///
    /// # Errors
    /// In words, with the interface.
    fn take_xdp_off(&mut self, interface: &str) -> Result<(), String>;

    /// Calls `sink` for each event from now on.
    ///
    /// # Errors
    /// In words.
    fn watch(&mut self, sink: Box<dyn Fn(InterfaceEvent) + Send>) -> Result<(), String>;

    /// The configuration of the same network, for another thread.
    ///
    /// # Errors
    /// In words, if the kernel gives no socket.
    fn host_network(&self) -> Result<Box<dyn HostNetwork>, String>;
}

/// The network configuration of the cluster node itself. Each call brings one part of it into the
/// given state from any other, and may wait for the kernel.
pub trait HostNetwork: Send {
    /// Returns the name of the interface with one of the cluster node's addresses, else of its
    /// default route.
    ///
    /// # Errors
    /// In words, if the kernel does not answer or there is no such interface.
    fn find_uplink(&mut self, node_addresses: &[IpAddr]) -> Result<String, String>;

    /// Creates or restores the host port; returns the MAC address of the kernel's end.
    ///
    /// # Errors
    /// In words.
    fn set_up_host_port(&mut self, config: &HostPortConfig) -> Result<Mac, String>;

    /// Masquerades what pods send to the world.
    ///
    /// # Errors
    /// In words.
    fn masquerade(&mut self, rules: &masquerade::Rules) -> Result<(), String>;

    /// Drops tunnel packets and forged sources that the kernel would route.
    ///
    /// # Errors
    /// In words.
    fn filter(&mut self, rules: &filter::Rules) -> Result<(), String>;

    /// Redirects to the switch what the cluster node's own processes send to services.
    ///
    /// # Errors
    /// In words.
    fn redirect(&mut self, redirects: &Redirects) -> Result<(), String>;

    /// Enforces the host firewalls of a view.
    ///
    /// # Errors
    /// In words.
    fn host_firewall(&mut self, view: &View, failsafe: &Failsafe) -> Result<(), String>;

    /// Removes the redirects; translations of open connections stay.
    ///
    /// # Errors
    /// In words.
    fn release_redirects(&mut self) -> Result<(), String>;

    /// Returns the next hop towards `address`. If its MAC address is not known, the kernel resolves
    /// it, and an event reports it. Repeated calls keep the kernel's entry fresh: the kernel does
    /// not see what the switch sends.
    ///
    /// # Errors
    /// In words, with the address, if there is no route.
    fn next_hop(&mut self, address: IpAddr) -> Result<NextHop, String>;
}

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
}

/// The real configuration, through netlink and `nft`, as one thread sees it.
pub(super) struct KernelNetwork {
    netlink: Netlink,
    masquerader: Masquerader,
    filter: Filter,
    redirector: Redirector,
    host_firewall: Enforcer,
    /// Whether there may be tables of host firewalls.
    has_host_firewall: bool,
}

/// The uplink's program, its filter as set last, and the interface's number.
struct OpenUplink {
    program: Uplink,
    filter: Option<UplinkFilter>,
    link: u32,
}

impl KernelInterfaces {
    /// Opens ports over this UMEM, in the calling thread's network namespace; each posts
    /// `frames_per_port` frames to its fill ring.
    ///
    /// # Errors
    /// If the kernel gives no netlink socket.
    pub fn new(umem: Umem, frames_per_port: u32) -> Result<Self, String> {
        let netlink = Netlink::open().map_err(|error| error.to_string())?;
        let guarded = Guarded::default();
        Ok(Self { umem, frames_per_port, netlink, uplink: None, guarded })
    }
}

impl KernelInterfaces {
    /// Opens a port whose queues post so many frames each.
    fn open_with(&mut self, interface: &str, fill: u32) -> Result<Opened, String> {
        let link = self.netlink.link(interface).map_err(|error| error.to_string())?;
        let options = PortOptions { fill, fallback: Fallback::Drop };
        let ports = self.umem.open_queues(interface, &options);
        let ports = ports.map_err(|error| error.to_string())?;
        let mode = ports.first().map(AfXdpPort::mode);
        self.guard(interface);
        // An earlier process may have used flow offload.
        flow_offload::Kernel::release(link.index);
        Ok(as_one(ports, mode, &link))
    }

    /// Notes which XDP program is attached to an interface; the loss of it is reported.
    fn guard(&mut self, interface: &str) {
        if let Ok(link) = self.netlink.link(interface)
            && let Some(program) = link.xdp_program
        {
            self.guarded.lock().insert(link.index, program);
        }
    }
}

impl Interfaces for KernelInterfaces {
    fn open(&mut self, interface: &str) -> Result<Opened, String> {
        self.open_with(interface, self.frames_per_port)
    }

    fn open_punt_link(&mut self, queues: u32) -> Result<(Opened, u32), String> {
        let link = punt::set_up(queues).map_err(|error| error.to_string())?;
        let fill = self.umem.frames() / PUNT_LINK / queues.max(1);
        let fill = fill.max(self.frames_per_port);
        // Once open, this end drops the frames that no worker reads.
        Ok((self.open_with(punt::SWITCH_END, fill)?, link.kernel.index))
    }

    fn describe(&mut self, interface: &str) -> Result<(u32, u16), String> {
        let link = self.netlink.link(interface).map_err(|error| error.to_string())?;
        Ok((link.index, mtu_of(&link)))
    }

    fn take_xdp_off(&mut self, interface: &str) -> Result<(), String> {
        self.release_host_port(interface)
    }

    fn addresses(&mut self) -> Result<Vec<IpAddr>, String> {
        addresses(&mut self.netlink)
    }

    fn bring_up(&mut self, interface: &str) -> Result<(), String> {
        let up = self.netlink.link(interface).and_then(|link| self.netlink.set_up(link.index));
        up.map_err(|error| format!("switch on {interface}: {error}"))
    }

    fn bring_down(&mut self, interface: &str) -> Result<(), String> {
        let down = self.netlink.link(interface).and_then(|link| self.netlink.set_down(link.index));
        down.map_err(|error| format!("switch off {interface}: {error}"))
    }

    fn index(&mut self, interface: &str) -> Result<Option<u32>, String> {
        let link = self.netlink.find_link(interface).map_err(|error| error.to_string())?;
        Ok(link.map(|link| link.index))
    }

    fn release_host_port(&mut self, interface: &str) -> Result<(), String> {
        if let Ok(link) = self.netlink.link(interface) {
            self.guarded.lock().remove(&link.index);
        }
        Umem::detach(interface).map_err(|error| error.to_string())
    }

    fn open_uplink(&mut self, interface: &str) -> Result<OpenedUplink, String> {
        let link = self.netlink.link(interface).map_err(|error| error.to_string())?;
        let mac = link.mac.ok_or_else(|| format!("{interface} has no MAC address"))?.0;
        let opened = self.umem.open_uplink(interface, self.frames_per_port);
        let (program, ports) = opened.map_err(|error| error.to_string())?;
        let port = as_one(ports, Some(program.mode()), &link);
        self.uplink = Some(OpenUplink { program, filter: None, link: link.index });
        self.guard(interface);
        Ok(OpenedUplink { port, mac })
    }

    fn set_uplink_filter(&mut self, filter: &UplinkFilter) -> Result<(), String> {
        let uplink = self.uplink.as_mut().ok_or("there is no uplink")?;
        if uplink.filter.as_ref() != Some(filter) {
            uplink.filter = None;
            uplink.program.set(filter).map_err(|error| error.to_string())?;
            uplink.filter = Some(filter.clone());
        }
        Ok(())
    }

    fn release_uplink(&mut self) -> Result<(), String> {
        match self.uplink.take() {
            Some(uplink) => {
                self.guarded.lock().remove(&uplink.link);
                uplink.program.detach().map_err(|error| error.to_string())
            }
            None => Ok(()),
        }
    }

    fn watch(&mut self, sink: Box<dyn Fn(InterfaceEvent) + Send>) -> Result<(), String> {
        let links = LinkEvents::open().map_err(|error| error.to_string())?;
        let sink: EventSink = std::sync::Arc::new(std::sync::Mutex::new(sink));
        guard::watch(links, self.guarded.clone(), EventSink::clone(&sink))?;
        paths(&sink)
    }

    fn host_network(&self) -> Result<Box<dyn HostNetwork>, String> {
        Ok(Box::new(KernelNetwork::open()?))
    }
}

impl KernelNetwork {
    /// In the calling thread's network namespace.
    pub(super) fn open() -> Result<Self, String> {
        let netlink = Netlink::open().map_err(|error| error.to_string())?;
        let (masquerader, filter) = (Masquerader::default(), Filter::default());
        let redirector = Redirector::default();
        let host_firewall = Enforcer::new(HOST_TABLES);
        let has_host_firewall = true;
        Ok(Self { netlink, masquerader, filter, redirector, host_firewall, has_host_firewall })
    }
}

impl HostNetwork for KernelNetwork {
    fn find_uplink(&mut self, node_addresses: &[IpAddr]) -> Result<String, String> {
        let link = self.netlink.uplink(node_addresses).map_err(|error| error.to_string())?;
        link.map(|link| link.name).ok_or_else(|| {
            "no interface has one of the cluster node's addresses, nor is there a default route"
                .to_owned()
        })
    }

    fn set_up_host_port(&mut self, config: &HostPortConfig) -> Result<Mac, String> {
        let port = host_port::set_up(config).map_err(|error| error.to_string())?;
        let mac = port.host.mac.ok_or_else(|| format!("{} has no MAC", port.host.name))?;
        Ok(mac.0)
    }

    fn masquerade(&mut self, rules: &masquerade::Rules) -> Result<(), String> {
        self.masquerader.set(rules)
    }

    fn filter(&mut self, rules: &filter::Rules) -> Result<(), String> {
        self.filter.set(rules)
    }

    fn redirect(&mut self, redirects: &Redirects) -> Result<(), String> {
        self.redirector.set(redirects)
    }

    fn host_firewall(&mut self, view: &View, failsafe: &Failsafe) -> Result<(), String> {
        let ruleset = host_ruleset(view, failsafe);
        if !ruleset.is_empty() {
            self.has_host_firewall = true;
            self.host_firewall.set(ruleset)?;
            return self.host_firewall.verify();
        }
        // Once: the first time, an earlier process may have left some.
        if std::mem::replace(&mut self.has_host_firewall, false) && self.host_firewall.is_in_force()
        {
            self.host_firewall.remove()?;
        }
        Ok(())
    }

    fn release_redirects(&mut self) -> Result<(), String> {
        self.redirector.release()
    }

    fn next_hop(&mut self, address: IpAddr) -> Result<NextHop, String> {
        self.netlink.next_hop(address).map_err(|error| error.to_string())
    }
}

fn as_one(ports: Vec<AfXdpPort>, mode: Option<XdpMode>, link: &Link) -> Opened {
    let mut mode = mode.map(|mode| mode.to_string()).unwrap_or_default();
    if ports.len() > 1 {
        mode += &format!(", {} queues", ports.len());
    }
    let queues = ports.into_iter().map(|port| Box::new(port) as Box<dyn Port>).collect();
    Opened { queues, mode, index: link.index, mtu: mtu_of(link) }
}

/// An IP packet without the jumbo option has at most 65535 bytes.
fn mtu_of(link: &Link) -> u16 {
    link.mtu.min(u16::MAX.into()) as u16
}

/// The kernel's own addresses, but for those of loopback.
pub(super) fn addresses(netlink: &mut Netlink) -> Result<Vec<IpAddr>, String> {
    let addresses = netlink.addresses().map_err(|error| error.to_string())?;
    let addresses = addresses.into_iter().map(|own| own.address.addr());
    let mut addresses: Vec<_> = addresses.filter(|address| !address.is_loopback()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}

/// Reports neighbours and routes.
pub(super) fn paths(sink: &EventSink) -> Result<(), String> {
    let paths = PathEvents::open().map_err(|error| error.to_string())?;
    listen("neighbours", paths, sink, |event| {
        Some(match event {
            PathEvent::Neighbour { link, address, mac } => {
                InterfaceEvent::Neighbour(link, address, mac.map(|mac| mac.0))
            }
            PathEvent::Routes => InterfaceEvent::Routes,
            PathEvent::Missed => InterfaceEvent::Missed,
        })
    })
}

/// Forwards events on a thread of its own.
pub(super) fn listen<E: Event + Send + 'static>(
    what: &'static str,
    events: Events<E>,
    sink: &EventSink,
    translate: impl Fn(E) -> Option<InterfaceEvent> + Send + 'static,
) -> Result<(), String> {
    let sink = EventSink::clone(sink);
    let pass_on = move |event: Result<E, Error>| -> Result<(), Error> {
        if let Some(event) = translate(event?) {
            sink.lock().unwrap_or_else(std::sync::PoisonError::into_inner)(event);
        }
        Ok(())
    };
    let listen = move || {
        if let Err(error) = events.into_iter().try_for_each(pass_on) {
            // Workers still notice deleted interfaces, only later.
            tracing::error!("{what} are no longer watched: {error}");
        }
    };
    let thread = std::thread::Builder::new().name(what.into()).spawn(listen);
    thread.map(drop).map_err(|error| format!("start a thread: {error}"))
}
