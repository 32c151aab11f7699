//! What the running switch needs from the kernel: one trait, so that the whole of it can run
//! without root over ports that tests hold in their hands.

use dataplane::port::Port;
use dataplane::port::af_xdp::{Fallback, PortOptions, Umem};
use dataplane::wire::Mac;

use crate::linux::host_port::{self, HostPortConfig};
use crate::linux::{LinkEvent, LinkEvents, Netlink};

/// A port that was opened on an interface.
pub struct Opened {
    /// The port, for the switch.
    pub port: Box<dyn Port>,
    /// How frames reach it, for people: `native, copy`.
    pub mode: String,
    /// The interface's number: a later interface of the same name has another one.
    pub index: u32,
}

/// What happened to interfaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InterfaceEvent {
    /// The interface with this number is gone.
    Gone(u32),
    /// Something was missed: look at all of them.
    Missed,
}

/// The interfaces of the cluster node, as far as the switch touches them.
pub trait Interfaces: Send {
    /// Opens a port. What arrives before it is served is dropped.
    ///
    /// # Errors
    /// In words, with the interface.
    fn open(&mut self, interface: &str) -> Result<Opened, String>;

    /// Switches an interface on.
    ///
    /// # Errors
    /// In words, with the interface.
    fn bring_up(&mut self, interface: &str) -> Result<(), String>;

    /// The number of an interface, `None` if it does not exist.
    ///
    /// # Errors
    /// If the kernel does not answer.
    fn index(&mut self, interface: &str) -> Result<Option<u32>, String>;

    /// Makes the host port, or brings it into this state; the MAC address of the kernel's end.
    ///
    /// # Errors
    /// In words.
    fn set_up_host_port(&mut self, config: &HostPortConfig) -> Result<Mac, String>;

    /// Takes the switch's program off the host port's interface: the switch ends.
    ///
    /// # Errors
    /// In words.
    fn release_host_port(&mut self, interface: &str) -> Result<(), String>;

    /// Calls `tell` for whatever happens from now on.
    ///
    /// # Errors
    /// In words.
    fn watch(&mut self, tell: Box<dyn Fn(InterfaceEvent) + Send>) -> Result<(), String>;
}

/// The real ones: AF_XDP ports over one UMEM, configured through netlink.
pub struct KernelInterfaces {
    umem: Umem,
    frames_per_port: u32,
    netlink: Netlink,
}

impl KernelInterfaces {
    /// Over this UMEM, in the calling thread's network namespace; each port keeps
    /// `frames_per_port` frames ready.
    ///
    /// # Errors
    /// If the kernel gives no netlink socket.
    pub fn new(umem: Umem, frames_per_port: u32) -> Result<Self, String> {
        let netlink = Netlink::open().map_err(|error| error.to_string())?;
        Ok(Self { umem, frames_per_port, netlink })
    }
}

impl Interfaces for KernelInterfaces {
    fn open(&mut self, interface: &str) -> Result<Opened, String> {
        let index = self.netlink.link(interface).map_err(|error| error.to_string())?.index;
        let options = PortOptions { fill: self.frames_per_port, fallback: Fallback::Drop };
        let port = self.umem.open(interface, &options).map_err(|error| error.to_string())?;
        Ok(Opened { mode: port.mode().to_string(), port: Box::new(port), index })
    }

    fn bring_up(&mut self, interface: &str) -> Result<(), String> {
        let up = self.netlink.link(interface).and_then(|link| self.netlink.set_up(link.index));
        up.map_err(|error| format!("switch on {interface}: {error}"))
    }

    fn index(&mut self, interface: &str) -> Result<Option<u32>, String> {
        let link = self.netlink.find_link(interface).map_err(|error| error.to_string())?;
        Ok(link.map(|link| link.index))
    }

    fn set_up_host_port(&mut self, config: &HostPortConfig) -> Result<Mac, String> {
        let port = host_port::set_up(config).map_err(|error| error.to_string())?;
        let mac = port.host.mac.ok_or_else(|| format!("{} has no MAC", port.host.name))?;
        Ok(mac.0)
    }

    fn release_host_port(&mut self, interface: &str) -> Result<(), String> {
        Umem::detach(interface).map_err(|error| error.to_string())
    }

    fn watch(&mut self, tell: Box<dyn Fn(InterfaceEvent) + Send>) -> Result<(), String> {
        let events = LinkEvents::open().map_err(|error| error.to_string())?;
        let listen = move || {
            for event in events {
                match event {
                    Ok(LinkEvent::Gone(link)) => tell(InterfaceEvent::Gone(link.index)),
                    Ok(LinkEvent::Changed(_)) => {}
                    Ok(LinkEvent::Missed) => tell(InterfaceEvent::Missed),
                    Err(error) => {
                        // Workers still notice, only later.
                        log::error!("interfaces are no longer watched: {error}");
                        return;
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("interfaces".into()).spawn(listen);
        thread.map(drop).map_err(|error| format!("start a thread: {error}"))
    }
}
