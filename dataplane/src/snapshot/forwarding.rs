//! Where packets leave, and as whom.

use acl::Address;

use super::node_addresses::is_link_local;
use super::{Adjacency, Egress, Peer, PortId, PortKind, Snapshot, Underlay};
use crate::Outcome;
use crate::wire::vxlan::Vxlan;
use crate::wire::{Flow, protocol};

impl Snapshot {
    /// Looks up where a packet to `destination` leaves.
    ///
    /// # Errors
    /// [`Outcome::LinkLocal`] or [`Outcome::NoRoute`] if it leaves nowhere.
    #[inline]
    pub fn route(&self, destination: Address) -> Result<Adjacency, Outcome> {
        if let Some(port) = self.owners.get(&destination) {
            let is_there = *port != PortId::NONE;
            return if is_there { Ok(Adjacency::port(*port)) } else { Err(Outcome::NoRoute) };
        }
        if is_link_local(destination) {
            return Err(Outcome::LinkLocal);
        }
        if self.local_networks.contains(destination) {
            return Err(Outcome::NoRoute);
        }
        if let Some(uplink) = self.uplink
            && self.underlay != Underlay::Plain
        {
            let found = match self.routes.find(destination) {
                Some(peer) => Some(Adjacency::peer(peer)),
                None if self.masquerade => Some(Adjacency::port(uplink)),
                None => self.host.or(self.uplink).map(Adjacency::port),
            };
            return found.ok_or(Outcome::NoRoute);
        }
        self.uplink.or(self.host).map(Adjacency::port).ok_or(Outcome::NoRoute)
    }

    /// The port that packets for `adjacency` leave by, and the cluster node they are for.
    #[inline]
    pub fn egress(&self, adjacency: Adjacency) -> Option<(PortId, Option<&Peer>)> {
        match adjacency.egress() {
            Egress::Port(port) => Some((port, None)),
            Egress::Peer(n) => Some((self.uplink?, Some(self.routes.peer(n)?))),
        }
    }

    /// Bytes of the largest IP packet that `adjacency` takes, or 0 if it takes any.
    #[inline]
    pub fn mtu(&self, adjacency: Adjacency) -> u16 {
        let Some((port, peer)) = self.egress(adjacency) else { return 0 };
        let mtu = self.port(port).map_or(0, |port| port.mtu);
        match (peer, &self.underlay) {
            (Some(peer), Underlay::Overlay(_)) if mtu > 0 => {
                mtu.saturating_sub(Vxlan::overhead(peer.endpoint.is_v4()) as u16)
            }
            _ => mtu,
        }
    }

    /// Whether a connection that `source` opens by this adjacency must seem to come from this cluster
    /// node: the world outside does not know pods.
    #[inline]
    pub fn masquerades(&self, source: Address, adjacency: Adjacency) -> bool {
        self.masquerade
            && self.uplink.is_some_and(|uplink| Adjacency::port(uplink) == adjacency)
            && self.pod_of(source).is_some()
    }

    /// Whether a packet is for the overlay's port and may leave this cluster node outside of its
    /// tunnels, where another one could take it for a tunnel packet of this one. What came by the
    /// uplink for the kernel itself goes no further.
    #[inline]
    pub fn is_stray_tunnel(&self, flow: &Flow, in_port: PortId, adjacency: Adjacency) -> bool {
        let Underlay::Overlay(overlay) = &self.underlay else { return false };
        let leaves_cluster_node = || match adjacency.egress() {
            Egress::Port(port) => match self.port(port).map(|port| port.kind) {
                Some(PortKind::Uplink) => true,
                Some(PortKind::Host) => Some(in_port) != self.uplink,
                Some(PortKind::Pod) | None => false,
            },
            Egress::Peer(_) => false,
        };
        flow.protocol == protocol::UDP
            && flow.destination_port == overlay.port
            && leaves_cluster_node()
    }
}
