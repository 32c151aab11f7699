//! The kernel's side, played: interfaces that lead to memory, and what the switch asks for.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use agent::run::{InterfaceEvent, Interfaces, Opened, OpenedUplink};
use dataplane::port::af_xdp::UplinkFilter;
use dataplane::port::memory::Wire;
use linux_net::host_port::HostPortConfig;
use linux_net::redirect::Redirects;
use linux_net::{NextHop, masquerade};

use crate::node::Pod;

/// The kernel's interfaces.
#[derive(Clone, Default)]
pub(crate) struct Kernel(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    interfaces: HashMap<String, Interface>,
    made: u32,
    tell: Option<Box<dyn Fn(InterfaceEvent) + Send>>,
    redirects: Option<Redirects>,
}

struct Interface {
    index: u32,
    wire: Wire,
    up: bool,
}

impl Kernel {
    pub(crate) fn add(&self, name: &str) {
        let mut state = self.lock();
        state.made += 1;
        let interface = Interface { index: state.made, wire: Wire::default(), up: false };
        assert!(state.interfaces.insert(name.to_owned(), interface).is_none(), "{name} exists");
    }

    /// Deletes an interface, without a word to anybody.
    pub(crate) fn remove(&self, name: &str) -> u32 {
        self.lock().interfaces.remove(name).unwrap_or_else(|| panic!("no {name}")).index
    }

    /// Deletes an interface, as the kernel does.
    pub(crate) fn delete(&self, name: &str) {
        let index = self.remove(name);
        if let Some(tell) = &self.lock().tell {
            tell(InterfaceEvent::Gone(index));
        }
    }

    /// Says that an interface is gone although it is there.
    pub(crate) fn say_gone(&self, name: &str) {
        let state = self.lock();
        let index = state.interfaces[name].index;
        if let Some(tell) = &state.tell {
            tell(InterfaceEvent::Gone(index));
        }
    }

    pub(crate) fn is_up(&self, name: &str) -> bool {
        self.lock().interfaces[name].up
    }

    /// What of the cluster node's own is led to the switch.
    pub(crate) fn redirects(&self) -> Option<Redirects> {
        self.lock().redirects.clone()
    }

    /// The other end of an interface.
    pub(crate) fn pod(&self, name: &str) -> Pod {
        Pod { wire: self.lock().interfaces[name].wire.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no test panics under this lock")
    }
}

impl Interfaces for Kernel {
    fn open(&mut self, interface: &str) -> Result<Opened, String> {
        let state = self.lock();
        let found =
            state.interfaces.get(interface).ok_or_else(|| format!("{interface} is not there"))?;
        let queues = vec![found.wire.port()];
        Ok(Opened { queues, mode: "memory".to_owned(), index: found.index, mtu: 1500 })
    }

    fn bring_up(&mut self, interface: &str) -> Result<(), String> {
        let mut state = self.lock();
        let found = state.interfaces.get_mut(interface);
        found.ok_or_else(|| format!("{interface} is not there"))?.up = true;
        Ok(())
    }

    fn index(&mut self, interface: &str) -> Result<Option<u32>, String> {
        Ok(self.lock().interfaces.get(interface).map(|found| found.index))
    }

    fn set_up_host_port(&mut self, config: &HostPortConfig) -> Result<[u8; 6], String> {
        if self.index(&config.switch_interface)?.is_none() {
            self.add(&config.switch_interface);
        }
        Ok(HOST_MAC)
    }

    fn release_host_port(&mut self, _interface: &str) -> Result<(), String> {
        Ok(())
    }

    fn find_uplink(&mut self, _node_addresses: &[IpAddr]) -> Result<String, String> {
        Err("no interface is the uplink".to_owned())
    }

    fn open_uplink(&mut self, interface: &str) -> Result<OpenedUplink, String> {
        Ok(OpenedUplink { port: self.open(interface)?, mac: [2, 0, 0, 0, 0, 2] })
    }

    fn masquerade(&mut self, _rules: &masquerade::Rules) -> Result<(), String> {
        Ok(())
    }

    fn redirect(&mut self, redirects: &Redirects) -> Result<(), String> {
        self.lock().redirects = Some(redirects.clone());
        Ok(())
    }

    fn release_redirects(&mut self) -> Result<(), String> {
        self.lock().redirects = None;
        Ok(())
    }

    fn set_uplink_filter(&mut self, _filter: &UplinkFilter) -> Result<(), String> {
        Ok(())
    }

    fn release_uplink(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn next_hop(&mut self, address: IpAddr) -> Result<NextHop, String> {
        Err(format!("there is no way to {address}"))
    }

    fn watch(&mut self, tell: Box<dyn Fn(InterfaceEvent) + Send>) -> Result<(), String> {
        self.lock().tell = Some(tell);
        Ok(())
    }
}

const HOST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
