//! Operations on the node's interfaces, a trait that tests implement without root.

use std::net::IpAddr;
use std::sync::Arc;

use dataplane::port::Port;
use dataplane::port::af_xdp::UplinkFilter;
use dataplane::wire::Mac;
use flow_offload::Offload;

use super::error::KernelError;
use super::event::InterfaceEvent;
use super::host_network::HostNetwork;

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
    /// Number of the other end, of the host port alone: the kernel's.
    pub kernel_end: Option<u32>,
}

/// An uplink that was opened.
pub struct OpenedUplink {
    /// The port.
    pub port: Opened,
    /// Its own MAC address.
    pub mac: Mac,
}

/// Removes what a start that failed has made.
///
/// # Errors
/// Says what is left.
pub type Undo = Box<dyn FnOnce() -> Result<(), KernelError>>;

/// Operations on the node's interfaces.
pub trait Interfaces: Send {
    /// Called with `true` before a group of operations on many interfaces, and with `false` after it: these may be
    /// looked up with one call.
    fn look_ahead(&mut self, _begins: bool) {}

    /// Opens a port. Frames that arrive before it is served are dropped.
    ///
    /// # Errors
    /// Names the interface.
    fn open(&mut self, interface: &str) -> Result<Opened, KernelError>;

    /// Switches an interface on.
    ///
    /// # Errors
    /// Names the interface.
    fn bring_up(&mut self, interface: &str) -> Result<(), KernelError>;

    /// The kernel's own addresses, but for those of loopback.
    ///
    /// # Errors
    /// If the kernel does not answer.
    fn addresses(&mut self) -> Result<Vec<IpAddr>, KernelError>;

    /// Switches an interface off.
    ///
    /// # Errors
    /// Names the interface.
    fn bring_down(&mut self, interface: &str) -> Result<(), KernelError>;

    /// The number of an interface, `None` if it does not exist.
    ///
    /// # Errors
    /// If the kernel does not answer.
    fn index(&mut self, interface: &str) -> Result<Option<u32>, KernelError>;

    /// Detaches the switch's program from the host port's interface, at the switch's end.
    ///
    /// # Errors
    /// If the kernel refuses it.
    fn release_host_port(&mut self, interface: &str) -> Result<(), KernelError>;

    /// Opens a port on an interface that the kernel uses as well. Until a filter is set, all
    /// packets go to the kernel. There is at most one such interface.
    ///
    /// # Errors
    /// Names the interface.
    fn open_uplink(&mut self, interface: &str) -> Result<OpenedUplink, KernelError>;

    /// The same by a link of its own, with programs of flow offload between the two.
    ///
    /// # Errors
    /// Names the interface.
    fn open_steered_uplink(
        &mut self,
        interface: &str,
        offload: Arc<Offload>,
    ) -> Result<OpenedUplink, KernelError>;

    /// Sets which packets the switch takes from the uplink; setting an equal filter costs nothing.
    ///
    /// # Errors
    /// If the kernel refuses it. Setting it again continues from the state reached.
    fn set_uplink_filter(&mut self, filter: &UplinkFilter) -> Result<(), KernelError>;

    /// Returns the uplink to the kernel. Programs of flow offload stay: they forward what the switch
    /// has allowed until the grace ends, and drop its other packets.
    ///
    /// # Errors
    /// Names the interface.
    fn release_uplink(&mut self) -> Result<(), KernelError>;

    /// The programs of flow offload, with room for so many entries.
    ///
    /// # Errors
    /// If the kernel refuses them.
    fn load_programs(&mut self, entries: u32) -> Result<flow_offload::Kernel, flow_offload::Error> {
        flow_offload::Kernel::load(entries)
    }

    /// Makes the punt link of flow offload and opens the switch's end, with so many queues; also the
    /// number of the other end. Both stay switched off.
    ///
    /// # Errors
    /// If the kernel refuses it.
    fn open_punt_link(&mut self, queues: u32) -> Result<(Opened, u32), KernelError>;

    /// Number and MTU of an interface.
    ///
    /// # Errors
    /// Names the interface.
    fn describe(&mut self, interface: &str) -> Result<(u32, u16), KernelError>;

    /// Takes the XDP program off an interface that flow offload serves: an earlier process may have
    /// left one.
    ///
    /// # Errors
    /// Names the interface.
    fn take_xdp_off(&mut self, interface: &str) -> Result<(), KernelError>;

    /// Calls `sink` for each event from now on.
    ///
    /// # Errors
    /// If the kernel refuses it.
    fn watch(&mut self, sink: Box<dyn Fn(InterfaceEvent) + Send>) -> Result<(), KernelError>;

    /// Returns an action that removes the switch's own interfaces and tables that are made after this
    /// call, except tables that enforce policies.
    ///
    /// # Errors
    /// If the kernel does not answer.
    fn undo(&mut self) -> Result<Undo, KernelError>;

    /// The configuration of the same network, for another thread.
    ///
    /// # Errors
    /// If the kernel gives no socket.
    fn host_network(&self) -> Result<Box<dyn HostNetwork>, KernelError>;
}
