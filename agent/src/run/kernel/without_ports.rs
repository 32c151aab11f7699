//! The kernel of a node on which nothing is a port of the switch: nftables enforces.

use std::sync::Arc;

use dataplane::port::af_xdp::UplinkFilter;

use super::error::KernelError;
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
    pub fn new() -> Result<Self, KernelError> {
        Ok(Self { netlink: Netlink::open()? })
    }
}

impl Interfaces for WithoutPorts {
    fn open(&mut self, _: &str) -> Result<Opened, KernelError> {
        Err(REFUSED.into())
    }

    fn open_punt_link(&mut self, _: u32) -> Result<(Opened, u32), KernelError> {
        Err(REFUSED.into())
    }

    fn describe(&mut self, _: &str) -> Result<(u32, u16), KernelError> {
        Err(REFUSED.into())
    }

    fn take_xdp_off(&mut self, _: &str) -> Result<(), KernelError> {
        Err(REFUSED.into())
    }

    fn bring_up(&mut self, _: &str) -> Result<(), KernelError> {
        Err(REFUSED.into())
    }

    fn addresses(&mut self) -> Result<Vec<std::net::IpAddr>, KernelError> {
        addresses(&mut self.netlink)
    }

    fn bring_down(&mut self, _: &str) -> Result<(), KernelError> {
        Err(REFUSED.into())
    }

    fn index(&mut self, interface: &str) -> Result<Option<u32>, KernelError> {
        let link = self.netlink.find_link(interface)?;
        Ok(link.map(|link| link.index))
    }

    fn release_host_port(&mut self, _: &str) -> Result<(), KernelError> {
        Ok(())
    }

    fn open_steered_uplink(
        &mut self,
        _: &str,
        _: Arc<flow_offload::Offload>,
    ) -> Result<OpenedUplink, KernelError> {
        Err(REFUSED.into())
    }

    fn open_uplink(&mut self, _: &str) -> Result<OpenedUplink, KernelError> {
        Err(REFUSED.into())
    }

    fn set_uplink_filter(&mut self, _: &UplinkFilter) -> Result<(), KernelError> {
        Ok(())
    }

    fn release_uplink(&mut self) -> Result<(), KernelError> {
        Ok(())
    }

    fn watch(&mut self, sink: Box<dyn Fn(InterfaceEvent) + Send>) -> Result<(), KernelError> {
        let links = LinkEvents::open()?;
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

    fn undo(&mut self) -> Result<Undo, KernelError> {
        Ok(Box::new(|| Ok(())))
    }

    fn host_network(&self) -> Result<Box<dyn HostNetwork>, KernelError> {
        Ok(Box::new(KernelNetwork::open()?))
    }
}
