//! The kernel's side, played: interfaces that lead to memory, and what the switch asks for.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use agent::run::{
    HostEnd, HostNetwork, InterfaceEvent, Interfaces, KernelError, Opened, OpenedUplink, Undo,
};
use dataplane::port::af_xdp::UplinkFilter;
use dataplane::port::memory::Wire;
use linux_net::host_port::HostPortConfig;
use linux_net::redirect::Redirects;
use linux_net::{MacAddress, NextHop, filter, masquerade};

use crate::node::Pod;

/// The kernel's interfaces.
#[derive(Clone, Default)]
pub(crate) struct Kernel(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    interfaces: HashMap<String, Interface>,
    made: u32,
    tell: Option<Box<dyn Fn(InterfaceEvent) + Send>>,
    redirects: Option<Redirects>,
    filter: Option<filter::Rules>,
    uplink_filter: Option<UplinkFilter>,
    addresses: Vec<IpAddr>,
    /// Next hops by destination.
    routes: HashMap<IpAddr, IpAddr>,
    /// Whether no call about the network's configuration returns.
    hangs: bool,
    /// Whether no call about an interface returns.
    interfaces_hang: bool,
    /// Calls that wait because of that.
    waiting: usize,
    /// So many of the next redirects fail.
    failures: usize,
    /// Errors about objects of the host port.
    refused: Vec<String>,
    /// Says of an interface that comes up whether that is right.
    on_up: Option<OnUp>,
    wrong_ups: usize,
    downs: usize,
}

type OnUp = Arc<dyn Fn(&str) -> bool + Send + Sync>;

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

    /// The redirects in force.
    pub(crate) fn redirects(&self) -> Option<Redirects> {
        self.lock().redirects.clone()
    }

    /// The filter of the forward hook in force.
    pub(crate) fn filter(&self) -> Option<filter::Rules> {
        self.lock().filter.clone()
    }

    /// The filter of the uplink's program.
    pub(crate) fn uplink_filter(&self) -> Option<UplinkFilter> {
        self.lock().uplink_filter.clone()
    }

    /// Routes packets for an address to this neighbour.
    pub(crate) fn route(&self, to: IpAddr, neighbour: IpAddr) {
        self.lock().routes.insert(to, neighbour);
    }

    /// The other end of an interface.
    pub(crate) fn pod(&self, name: &str) -> Pod {
        Pod { wire: self.lock().interfaces[name].wire.clone() }
    }

    /// From now on no call about the network's configuration returns, or all do again.
    pub(crate) fn hang(&self, hangs: bool) {
        self.lock().hangs = hangs;
        self.0.1.notify_all();
    }

    /// From now on no call about an interface returns, or all do again.
    pub(crate) fn hang_interfaces(&self, hang: bool) {
        self.lock().interfaces_hang = hang;
        self.0.1.notify_all();
    }

    /// Whether a call about an interface waits.
    pub(crate) fn is_waiting(&self) -> bool {
        self.lock().waiting > 0
    }

    /// Calls `is_right` for each interface that comes up from now on.
    pub(crate) fn on_up(&self, is_right: impl Fn(&str) -> bool + Send + Sync + 'static) {
        self.lock().on_up = Some(Arc::new(is_right));
    }

    /// Number of times that an interface was switched off.
    pub(crate) fn downs(&self) -> usize {
        self.lock().downs
    }

    /// Whether all that came up did so rightly.
    pub(crate) fn came_up_in_order(&self) -> bool {
        self.lock().wrong_ups == 0
    }

    /// Takes the XDP program off an interface.
    pub(crate) fn lose_program(&self, name: &str) {
        let state = self.lock();
        let index = state.interfaces[name].index;
        if let Some(tell) = &state.tell {
            tell(InterfaceEvent::ProgramLost(index));
        }
    }

    /// The next redirects fail.
    pub(crate) fn fail_redirects(&self, count: usize) {
        self.lock().failures = count;
    }

    /// Refuses objects of the host port from now on, with these errors.
    pub(crate) fn refuse(&self, errors: &[&str]) {
        self.lock().refused = errors.iter().map(|&error| error.to_owned()).collect();
    }

    /// Gives the node's kernel this address, as a container runtime's bridge has one.
    pub(crate) fn add_address(&self, address: IpAddr) {
        let mut state = self.lock();
        state.addresses.push(address);
        if let Some(tell) = &state.tell {
            tell(InterfaceEvent::Routes);
        }
    }

    /// Forgets the redirects, as `nft flush ruleset` does.
    pub(crate) fn flush(&self) {
        self.lock().redirects = None;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().expect("no test panics under this lock")
    }

    /// The same once calls about interfaces return.
    fn interfaces(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        state.waiting += 1;
        let hangs = |state: &mut State| state.interfaces_hang;
        let mut state = self.0.1.wait_while(state, hangs).expect("no test panics under it");
        state.waiting -= 1;
        state
    }

    /// The same once nothing hangs.
    fn answering(&self) -> MutexGuard<'_, State> {
        self.0.1.wait_while(self.lock(), |state| state.hangs).expect("no test panics under it")
    }
}

impl Interfaces for Kernel {
    fn open(&mut self, interface: &str) -> Result<Opened, KernelError> {
        let state = self.interfaces();
        let found =
            state.interfaces.get(interface).ok_or_else(|| format!("{interface} is not there"))?;
        let queues = vec![found.wire.port()];
        let mode = "memory".to_owned();
        Ok(Opened { queues, mode, index: found.index, mtu: 1500, kernel_end: None })
    }

    fn undo(&mut self) -> Result<Undo, KernelError> {
        Ok(Box::new(|| Ok(())))
    }

    fn open_punt_link(&mut self, _queues: u32) -> Result<(Opened, u32), KernelError> {
        Err("there is no punt link".into())
    }

    fn describe(&mut self, interface: &str) -> Result<(u32, u16), KernelError> {
        let index = self.index(interface)?.ok_or_else(|| format!("{interface} is not there"))?;
        Ok((index, 1500))
    }

    fn take_xdp_off(&mut self, _interface: &str) -> Result<(), KernelError> {
        Ok(())
    }

    fn addresses(&mut self) -> Result<Vec<IpAddr>, KernelError> {
        Ok(self.interfaces().addresses.clone())
    }

    fn bring_up(&mut self, interface: &str) -> Result<(), KernelError> {
        let on_up = self.interfaces().on_up.clone();
        let is_right = on_up.is_none_or(|is_right| is_right(interface));
        let mut state = self.lock();
        state.wrong_ups += usize::from(!is_right);
        let found = state.interfaces.get_mut(interface);
        found.ok_or_else(|| format!("{interface} is not there"))?.up = true;
        Ok(())
    }

    fn bring_down(&mut self, interface: &str) -> Result<(), KernelError> {
        let mut state = self.interfaces();
        let found = state.interfaces.get_mut(interface);
        found.ok_or_else(|| format!("{interface} is not there"))?.up = false;
        state.downs += 1;
        Ok(())
    }

    fn index(&mut self, interface: &str) -> Result<Option<u32>, KernelError> {
        Ok(self.interfaces().interfaces.get(interface).map(|found| found.index))
    }

    fn release_host_port(&mut self, _interface: &str) -> Result<(), KernelError> {
        Ok(())
    }

    fn open_uplink(&mut self, interface: &str) -> Result<OpenedUplink, KernelError> {
        Ok(OpenedUplink { port: self.open(interface)?, mac: [2, 0, 0, 0, 0, 2] })
    }

    fn open_steered_uplink(
        &mut self,
        _interface: &str,
        _offload: Arc<flow_offload::Offload>,
    ) -> Result<OpenedUplink, KernelError> {
        Err("there is no flow offload".into())
    }

    fn set_uplink_filter(&mut self, filter: &UplinkFilter) -> Result<(), KernelError> {
        self.lock().uplink_filter = Some(filter.clone());
        Ok(())
    }

    fn release_uplink(&mut self) -> Result<(), KernelError> {
        Ok(())
    }

    fn watch(&mut self, tell: Box<dyn Fn(InterfaceEvent) + Send>) -> Result<(), KernelError> {
        self.lock().tell = Some(tell);
        Ok(())
    }

    fn host_network(&self) -> Result<Box<dyn HostNetwork>, KernelError> {
        Ok(Box::new(self.clone()))
    }
}

impl HostNetwork for Kernel {
    fn find_uplink(&mut self, _node_addresses: &[IpAddr]) -> Result<String, KernelError> {
        Err("no interface is the uplink".into())
    }

    fn host_firewall(
        &mut self,
        _: &control::View,
        _: &nftables::Failsafe,
    ) -> Result<(), KernelError> {
        Ok(())
    }

    fn set_up_host_port(&mut self, config: &HostPortConfig) -> Result<HostEnd, KernelError> {
        drop(self.answering());
        if self.index(&config.switch_interface)?.is_none() {
            self.add(&config.switch_interface);
        }
        Ok(HostEnd { mac: HOST_MAC, refused: self.answering().refused.clone() })
    }

    fn filter(&mut self, rules: &filter::Rules) -> Result<(), KernelError> {
        self.answering().filter = Some(rules.clone());
        Ok(())
    }

    fn masquerade(&mut self, _rules: &masquerade::Rules) -> Result<(), KernelError> {
        drop(self.answering());
        Ok(())
    }

    fn redirect(&mut self, redirects: &Redirects) -> Result<(), KernelError> {
        let mut state = self.answering();
        if state.failures > 0 {
            state.failures -= 1;
            return Err("the kernel refuses".into());
        }
        state.redirects = Some(redirects.clone());
        Ok(())
    }

    fn release_redirects(&mut self) -> Result<(), KernelError> {
        self.answering().redirects = None;
        Ok(())
    }

    fn next_hop(&mut self, address: IpAddr) -> Result<NextHop, KernelError> {
        let neighbour = self.lock().routes.get(&address).copied();
        let neighbour = neighbour.ok_or_else(|| format!("there is no way to {address}"))?;
        let mac = Some(MacAddress([2, 0, 0, 0, 0, 9]));
        Ok(NextHop { link: 1, source: None, neighbour, mac, mtu: None })
    }
}

const HOST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
