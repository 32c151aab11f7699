//! The interfaces that the programs are attached to, and those that they know.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dataplane::PortId;
use dataplane::bpf::NetworkKey;
use dataplane::port::af_xdp::UplinkFilter;

use super::Kernel;
use crate::layout::{PORTS, PortShare, PuntedPort, Settings};
use crate::{Error, ingress, lock, tcx};

/// The uplink as the programs see it; without one both numbers are 0.
#[derive(Clone, Copy, Default)]
pub(super) struct Uplink {
    pub(super) ifindex: u32,
    pub(super) link: u32,
    /// Whether the program is attached to it.
    is_steered: bool,
}

/// Notes which programs at these interfaces of this network an earlier process left there. Called
/// while the process may still read programs' names (CAP_SYS_ADMIN).
pub fn recognize_programs(interfaces: impl IntoIterator<Item = u32>) {
    tcx::recognize(interfaces.into_iter());
}

impl Kernel {
    /// Takes `ifindex` for the kernel's end of the punt link: what the switch sends there reaches
    /// the pods, what it is to decide leaves by it.
    ///
    /// # Errors
    /// If the program cannot be attached.
    pub fn set_punt(&self, ifindex: u32) -> Result<(), Error> {
        self.ingress.attach(self.from_switch, "from_switch", ifindex)?;
        self.punt.store(ifindex, Ordering::Relaxed);
        self.beat(Duration::ZERO)
    }

    /// Takes `ifindex` for the uplink and `link` for the kernel's end of its link to the switch: what
    /// the switch sends there leaves by the uplink. Nothing is taken from the uplink before
    /// [`steer_uplink`](Self::steer_uplink).
    ///
    /// # Errors
    /// If the program cannot be attached.
    pub fn set_uplink(&self, ifindex: u32, link: u32) -> Result<(), Error> {
        *lock(&self.uplink) = Uplink { ifindex, link, is_steered: false };
        let settings = self.settings.get(&0).unwrap_or_default();
        let Settings { good_until_ns, fins_until_ns, opens_until_ns, .. } = settings;
        self.beat_until([good_until_ns, fins_until_ns, opens_until_ns].map(Duration::from_nanos))?;
        self.ingress.attach(self.to_uplink, "to_uplink", link)
    }

    /// Sets which packets the switch takes from the uplink.
    ///
    /// # Errors
    /// If the kernel refuses. Another call continues from the state reached.
    pub fn set_uplink_filter(&self, filter: &UplinkFilter) -> Result<(), Error> {
        let set = lock(&self.uplink_maps).set(filter);
        set.map_err(|error| Error::new(error.attempt, error.cause))
    }

    /// Takes nothing from the uplink any more that other nodes have to encrypt, unless it arrived so: what comes in a
    /// tunnel, and what the values of `networks` say, which `dataplane/bpf/sealed.h` defines. `port` is where
    /// encrypted packets arrive.
    ///
    /// # Errors
    /// If the kernel refuses. Another call continues from the state reached.
    pub fn require_encryption(
        &self,
        networks: &BTreeMap<NetworkKey, u32>,
        port: u16,
    ) -> Result<(), Error> {
        let failed = |cause| Error::new("require encryption at the uplink", cause);
        self.sealed.put(&0, &port.into()).map_err(failed)?;
        lock(&self.sealed_networks).set(networks).map_err(failed)
    }

    /// The program for what a WireGuard device has decrypted, for `Programs::forward_by` of encryption.
    pub fn from_device(&self) -> RawFd {
        self.from_device
    }

    /// Attaches the uplink's program, unless that is done.
    ///
    /// # Errors
    /// If there is no uplink, or the program cannot be attached.
    pub fn steer_uplink(&self) -> Result<(), Error> {
        let mut uplink = lock(&self.uplink);
        if !uplink.is_steered {
            self.ingress.attach(self.from_uplink, "from_uplink", uplink.ifindex)?;
            uplink.is_steered = true;
        }
        Ok(())
    }

    /// Whether the uplink is guarded: its program is the first there. One in front of it could take
    /// the switch's packets, or pass them to the kernel.
    pub fn is_uplink_guarded(&self) -> bool {
        let uplink = *lock(&self.uplink);
        !uplink.is_steered || self.ingress.is_first(self.from_uplink, uplink.ifindex)
    }

    /// Takes the uplink's program off an interface that is the uplink no more; returns whether one
    /// was there.
    pub fn release_former_uplink(ifindex: u32) -> bool {
        let was_left = ingress::has("from_uplink", ifindex);
        if was_left {
            ingress::detach(ifindex);
        }
        was_left
    }

    /// Forwards what the node's kernel sends by `ifindex`, its end of the host port, by
    /// entries.
    ///
    /// # Errors
    /// If the program cannot be attached: the switch forwards all of it.
    pub fn set_host(&self, ifindex: u32) -> Result<(), Error> {
        self.host.store(ifindex, Ordering::Relaxed);
        self.restore_host()
    }

    /// Attaches the program of the host port again if it is not there any more.
    pub(crate) fn restore_host(&self) -> Result<(), Error> {
        match self.host.load(Ordering::Relaxed) {
            0 => Ok(()),
            ifindex => self.ingress.attach_to_egress(self.from_host, "from_host", ifindex),
        }
    }

    /// Begins to count connections of a port that is no pod's.
    ///
    /// # Errors
    /// If the number is too large.
    pub(crate) fn enter_wire(&self, id: PortId) -> Result<(), Error> {
        let failed = |cause| Error::new(format!("serve port {}", id.0), cause);
        let share = PortShare { opened: self.progress.noted(id), ..PortShare::default() };
        self.shares.put(&u32::from(id.0), &share).map_err(failed)
    }

    /// Serves a pod's interface: closes it to the kernel's own stack, and has its frames take the
    /// punt link as those of `id`.
    ///
    /// # Errors
    /// As [`enter_port`](Self::enter_port) and [`attach`](Self::attach).
    pub fn add_port(&self, id: PortId, port: &PuntedPort) -> Result<(), Error> {
        self.enter_port(id, port)?;
        self.attach(port.ifindex)
    }

    /// Attaches the pods' program to an interface, in the place of that of an earlier process. From now
    /// on the entries of the port and of its connections count there.
    ///
    /// # Errors
    /// If the program cannot be attached.
    pub fn attach(&self, ifindex: u32) -> Result<(), Error> {
        self.ingress.attach(self.from_pod, "from_pod", ifindex)
    }

    /// The same at many interfaces; the result of each.
    pub fn attach_all(&self, interfaces: &[u32]) -> Vec<Result<(), Error>> {
        self.ingress.attach_all(self.from_pod, "from_pod", interfaces)
    }

    /// Enters a pod's interface: frames reach it, and those that its program will take are those of `id`.
    ///
    /// # Errors
    /// If the number is too large.
    pub fn enter_port(&self, id: PortId, port: &PuntedPort) -> Result<(), Error> {
        let failed = |cause| Error::new(format!("enter interface {}", port.ifindex), cause);
        if id.0 >= PORTS {
            return Err(failed(io::ErrorKind::InvalidInput.into()));
        }
        let number = u32::from(id.0);
        let share = PortShare { opened: self.progress.noted(id), ..PortShare::default() };
        self.shares.put(&number, &share).map_err(failed)?;
        self.ports.put(&number, port).map_err(failed)?;
        self.interfaces.put(&port.ifindex, port).map_err(failed)
    }

    /// Serves a pod's interface no more. What it sends is dropped: the program stays.
    pub fn remove_port(&self, id: PortId) {
        let number = u32::from(id.0);
        let Some(port) = self.ports.get(&number).filter(|port| port.ifindex != 0) else { return };
        // Neither fails: the places are there, and the interface's need not be.
        let _ = self.ports.put(&number, &PuntedPort::default());
        if self.interfaces.get(&port.ifindex) == Some(port) {
            let _ = self.interfaces.remove(&port.ifindex);
        }
    }

    /// Frames of a port that were dropped because it had used up its share of the punt link.
    pub fn over_share(&self, id: PortId) -> u64 {
        self.shares.get(&u32::from(id.0)).unwrap_or_default().dropped
    }

    /// Whether a pod's interface is guarded: its program is the first there.
    pub fn is_guarded(&self, ifindex: u32) -> bool {
        self.ingress.is_first(self.from_pod, ifindex)
    }

    /// Takes the programs of flow offload off an interface.
    pub fn release(ifindex: u32) {
        ingress::detach(ifindex);
    }

    /// Takes the program of flow offload off the kernel's end of the host port.
    pub fn release_host(ifindex: u32) {
        ingress::detach_from_egress(ifindex);
    }
}
