//! The kernel of a node on which nothing is a port of the switch: nftables enforces.

use std::sync::Arc;

use dataplane::port::af_xdp::UplinkFilter;

use super::event::{EventSink, InterfaceEvent, listen, paths};
use super::host_network::{HostNetwork, KernelNetwork, addresses};
use super::interfaces::{Interfaces, Opened, OpenedUplink, Undo};
use linux_net::{LinkEvent, LinkEvents, Netlink};

/// Interfaces that stay the kernel's: they are watched, and never opened.
pub struct WithoutPorts {
    netlink: Netlink,
}

const REFUSED: &str = "with enforcer nftables there are no ports";

impl WithoutPorts {
    /// In the calling thread's network namespace.
    ///
    /// # Errors
    /// If the kernel gives no netlink socket.
    pub fn new() -> Result<Self, String> {
        Ok(Self { netlink: Netlink::open().map_err(|error| error.to_string())? })
    }
}

impl Interfaces for WithoutPorts {
    fn open(&mut self, _: &str) -> Result<Opened, String> {
        Err(REFUSED.to_owned())
    }

    fn open_punt_link(&mut self, _: u32) -> Result<(Opened, u32), String> {
        Err(REFUSED.to_owned())
    }

    fn describe(&mut self, _: &str) -> Result<(u32, u16), String> {
        Err(REFUSED.to_owned())
    }

    fn take_xdp_off(&mut self, _: &str) -> Result<(), String> {
        Err(REFUSED.to_owned())
    }

    fn bring_up(&mut self, _: &str) -> Result<(), String> {
        Err(REFUSED.to_owned())
    }

    fn addresses(&mut self) -> Result<Vec<std::net::IpAddr>, String> {
        addresses(&mut self.netlink)
    }

    fn bring_down(&mut self, _: &str) -> Result<(), String> {
        Err(REFUSED.to_owned())
    }

    fn index(&mut self, interface: &str) -> Result<Option<u32>, String> {
        let link = self.netlink.find_link(interface).map_err(|error| error.to_string())?;
        Ok(link.map(|link| link.index))
    }

    fn release_host_port(&mut self, _: &str) -> Result<(), String> {
        Ok(())
    }

    fn open_steered_uplink(
        &mut self,
        _: &str,
        _: Arc<flow_offload::Offload>,
    ) -> Result<OpenedUplink, String> {
        Err(REFUSED.to_owned())
    }

    fn open_uplink(&mut self, _: &str) -> Result<OpenedUplink, String> {
        Err(REFUSED.to_owned())
    }

    fn set_uplink_filter(&mut self, _: &UplinkFilter) -> Result<(), String> {
        Ok(())
    }

    fn release_uplink(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn watch(&mut self, sink: Box<dyn Fn(InterfaceEvent) + Send>) -> Result<(), String> {
        let links = LinkEvents::open().map_err(|error| error.to_string())?;
        let sink: EventSink = std::sync::Arc::new(parking_lot::Mutex::new(sink));
        listen("interfaces", links, &sink, |event| {
            Some(match event {
                // A new interface may be a pod's.
                LinkEvent::Changed(_) => InterfaceEvent::Routes,
                LinkEvent::Gone(link) => InterfaceEvent::Gone(link.index),
                LinkEvent::Missed => InterfaceEvent::Missed,
            })
        })?;
        paths(&sink)
    }

    fn undo(&mut self) -> Result<Undo, String> {
        Ok(Box::new(|| Ok(())))
    }

    fn host_network(&self) -> Result<Box<dyn HostNetwork>, String> {
        Ok(Box::new(KernelNetwork::open()?))
    }
}
