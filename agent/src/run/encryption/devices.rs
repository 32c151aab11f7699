//! The WireGuard devices: the first one, and the second one for the time in which a key rotates.

use std::collections::BTreeMap;
use std::sync::Arc;

use encryption::{PrivateKey, Programs};
use linux_net::{
    Netlink, SECOND_WIREGUARD_DEVICE, WIREGUARD_DEVICE, WireGuardConfig, WireGuardDevice,
    WireGuardPeer, WireGuardPeerState,
};

use super::plan::Plan;

/// The devices, while the uplink is open.
#[derive(Default)]
pub(super) struct Devices {
    pub(super) first: Option<WireGuardDevice>,
    /// The second one, once a node changes its key, or where an earlier process has left it.
    pub(super) second: Option<WireGuardDevice>,
    pub(super) is_left: bool,
    pub(super) mtu: u32,
    /// Why the second one cannot be used.
    pub(super) fault: Option<String>,
}

impl Devices {
    /// The second device, if it is needed.
    pub(super) fn second(
        &mut self,
        plan: &Plan,
        programs: &Programs,
    ) -> Option<&mut WireGuardDevice> {
        let is_needed = plan.is_known() && (self.is_left || !plan.second.is_empty());
        if self.second.is_none() && is_needed {
            let open = || {
                let mut netlink = Netlink::open()?;
                WireGuardDevice::open(&mut netlink, SECOND_WIREGUARD_DEVICE, self.mtu)
            };
            let opened = open().map_err(|error| error.to_string()).and_then(|(device, link)| {
                programs.attach_second(link.index).map_err(|error| error.to_string())?;
                Ok(device)
            });
            match opened {
                Ok(device) => self.second = Some(device),
                Err(error) => self.report(&Err::<(), _>(error)),
            }
        }
        self.second.as_mut()
    }

    /// Logs a fault of the second device once.
    pub(super) fn report<T, E: ToString>(&mut self, result: &Result<T, E>) {
        let fault = result.as_ref().err().map(ToString::to_string);
        if let Some(fault) = &fault
            && self.fault.as_ref() != Some(fault)
        {
            tracing::warn!("encryption: the second device: {fault}");
        }
        if fault.is_some() {
            self.fault = fault;
        }
    }
}

/// A device's configuration.
pub(super) fn config(
    key: &PrivateKey,
    port: u16,
    peers: &[(Arc<str>, WireGuardPeer)],
) -> WireGuardConfig {
    WireGuardConfig {
        private_key: key.bytes(),
        public_key: key.public(),
        port,
        peers: peers.iter().map(|(_, peer)| peer.clone()).collect(),
    }
}

/// The peers as a device has them, by node.
pub(super) fn found(
    peers: &[(Arc<str>, WireGuardPeer)],
    states: Vec<WireGuardPeerState>,
) -> BTreeMap<Arc<str>, WireGuardPeerState> {
    let mut states: BTreeMap<_, _> = states.into_iter().map(|it| (it.public_key, it)).collect();
    let of = |(node, peer): &(Arc<str>, WireGuardPeer)| {
        Some((Arc::clone(node), states.remove(&peer.public_key)?))
    };
    peers.iter().filter_map(of).collect()
}

/// Takes off an uplink what an earlier process encrypted with.
pub(in crate::run) fn release(uplink: u32) {
    if !Programs::seals(uplink) {
        return;
    }
    tracing::info!("encryption between nodes is off from now on");
    if let Err(error) = Programs::release(uplink) {
        tracing::warn!("encryption: {error}");
    }
    let delete = |name| {
        let mut netlink = Netlink::open()?;
        let link = netlink.find_link(name)?;
        link.map_or(Ok(()), |link| netlink.delete_link(link.index))
    };
    for device in [WIREGUARD_DEVICE, SECOND_WIREGUARD_DEVICE] {
        if let Err(error) = delete(device) {
            tracing::warn!("encryption: {error}");
        }
    }
}
