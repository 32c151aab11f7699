//! An interface that the node itself uses: the switch takes its own traffic from it and
//! leaves the rest to the kernel.
//!
//! ```text
//!            ┌─ ours (UplinkFilter) ─▶ sockets, one a queue ─▶ the switch
//! frames ──▶ uplink.bpf.c
//!            └─ anything else ─▶ the kernel
//! ```
//!
//! The program passes everything until the first filter is set. The switch detaches it when it
//! ends. After a kill it stays attached without sockets, and drops the switch's traffic, which the
//! kernel would answer with resets. The next switch replaces it without a restart of the driver.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};

use ipnet::IpNet;

use super::program;
use super::programs::OpenUplink;
use super::queue::AfXdpPort;
use super::socket::Socket;
use super::umem::{Umem, index_of};
use super::{AfXdpError, XdpMode};
use crate::bpf::{AddressKey, KeySet, Map, NetworkKey, Object, Plain};

/// The packets that the switch takes from an uplink.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UplinkFilter {
    /// UDP port of the overlay at the node's addresses.
    pub vxlan_port: Option<u16>,
    /// The node's addresses.
    pub node_addresses: BTreeSet<IpAddr>,
    /// Networks whose addresses are pods of this node, where the network between
    /// nodes routes them here.
    pub pod_networks: BTreeSet<IpNet>,
    /// Node ports, external and load-balancer addresses.
    pub services: BTreeSet<UplinkService>,
    /// First and last of the ports (and identifiers of echo requests) that connections leaving
    /// under the node's addresses get.
    pub masquerade_ports: Option<(u16, u16)>,
}

/// An address, protocol and port by which a service is reached from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UplinkService {
    /// An address of the node, or one that is led to it.
    pub address: IpAddr,
    /// IP protocol number.
    pub protocol: u8,
    /// The port.
    pub port: u16,
}

/// The program on an uplink, and its filter.
pub struct Uplink {
    interface: String,
    index: u32,
    mode: XdpMode,
    program: OpenUplink,
}

/// The maps of a program that recognises the switch's packets (`bpf/uplink.h`).
pub struct UplinkMaps {
    settings: Map<u32, Settings>,
    node_addresses: KeySet<AddressKey>,
    pod_networks: KeySet<NetworkKey>,
    services: KeySet<Service>,
}

impl Umem {
    /// Attaches the uplink's program to `interface` and opens a port on each of its queues, with up
    /// to `fill` frames posted to each. It passes everything until [`Uplink::set`].
    ///
    /// Uses zero copy if the driver can. Another application's XDP program on it is left alone, and
    /// is an error.
    pub fn open_uplink(
        &self,
        interface: &str,
        fill: u32,
    ) -> Result<(Uplink, Vec<AfXdpPort>), AfXdpError> {
        let index = index_of(interface)?;
        if let Some(name) = program::foreign(index) {
            return Err(AfXdpError::new(
                format!(
                    "attach to {interface}, which has the XDP program {name} of another program"
                ),
                io::ErrorKind::AlreadyExists.into(),
            ));
        }
        let program = self.programs.open_uplink()?;
        let attached = program.program().attach(interface, index)?;
        let own = self.bind_own(index);
        let mode = XdpMode { attached, zero_copy: own.is_some() };
        let enter = |queue, socket: &Socket| {
            program.program().serve(queue, socket.as_fd().as_raw_fd()).map(|()| None)
        };
        let handed = |port: AfXdpPort, queue| Ok(port.counting(program.handed(queue)?));
        let opened = self.open_all(interface, index, mode, own, fill, enter).and_then(|ports| {
            ports.into_iter().zip(0..).map(|(port, queue)| handed(port, queue)).collect()
        });
        let ports = opened.inspect_err(|_| {
            // It would only pass everything; the first error is returned.
            let _ = program::detach(interface, index);
        })?;
        Ok((Uplink { interface: interface.to_owned(), index, mode, program }, ports))
    }
}

impl Uplink {
    /// Mode in which frames reach the ports.
    pub fn mode(&self) -> XdpMode {
        self.mode
    }

    /// Makes `filter` the traffic of the switch, as [`UplinkMaps::set`] does.
    pub fn set(&mut self, filter: &UplinkFilter) -> Result<(), AfXdpError> {
        let failed = |error: AfXdpError| {
            AfXdpError::new(format!("{}: {}", self.interface, error.attempt), error.cause)
        };
        self.program.maps().set(filter).map_err(failed)
    }

    /// Detaches the program: all frames reach the kernel again, and none the ports. Interfaces are
    /// named by number: call it in the network namespace where it was opened.
    pub fn detach(self) -> Result<(), AfXdpError> {
        program::detach(&self.interface, self.index)
    }
}

impl UplinkMaps {
    /// Finds the maps by their names; they are usable for as long as `object` is there.
    ///
    /// # Errors
    /// If one of them is not there.
    pub fn find(object: &Object) -> io::Result<Self> {
        Ok(Self {
            settings: object.map(c"uplink_settings")?,
            node_addresses: KeySet::new(object.map(c"node_addresses")?),
            pod_networks: KeySet::new(object.map(c"pod_networks")?),
            services: KeySet::new(object.map(c"services")?),
        })
    }

    /// Makes `filter` the traffic of the switch. Unchanged entries are not touched, so connections
    /// continue. After an error, another call continues from the state reached.
    ///
    /// # Errors
    /// Names what the kernel refuses.
    pub fn set(&mut self, filter: &UplinkFilter) -> Result<(), AfXdpError> {
        let failed = |what: &'static str| {
            move |cause| AfXdpError::new(format!("set {what} of the uplink's filter"), cause)
        };
        let (first, last) = filter.masquerade_ports.unwrap_or_default();
        let settings = Settings {
            vxlan_port: filter.vxlan_port.unwrap_or(0),
            masquerade_first: first,
            masquerade_last: last,
            unused: 0,
        };
        let addresses = filter.node_addresses.iter().map(|address| AddressKey::of(*address));
        let networks = filter.pod_networks.iter().map(NetworkKey::of);
        let services = filter.services.iter().map(Service::of);
        self.settings.put(&0, &settings).map_err(failed("the ports"))?;
        self.node_addresses.set(addresses.collect()).map_err(failed("the node addresses"))?;
        self.pod_networks.set(networks.collect()).map_err(failed("the pod networks"))?;
        self.services.set(services.collect()).map_err(failed("the services"))
    }
}

/// `struct uplink_settings` of the program; ports in host byte order.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Settings {
    vxlan_port: u16,
    masquerade_first: u16,
    masquerade_last: u16,
    unused: u16,
}

/// `struct service`; the port in the order of the wire.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Service {
    address: AddressKey,
    port: [u8; 2],
    protocol: u8,
    zero: u8,
}

// SAFETY: the fields fill the structure.
unsafe impl Plain for Settings {}
// SAFETY: as above.
unsafe impl Plain for Service {}

impl Service {
    fn of(service: &UplinkService) -> Self {
        let UplinkService { address, protocol, port } = *service;
        Self { address: AddressKey::of(address), port: port.to_be_bytes(), protocol, zero: 0 }
    }
}
