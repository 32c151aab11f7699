//! Routing, MTUs, masquerading.

use acl::Address;

use super::node_addresses::is_link_local;
use super::{Adjacency, Egress, Peer, PortId, PortKind, Snapshot, Underlay};
use crate::Outcome;
use crate::wire::vxlan::Vxlan;
use crate::wire::{Flow, protocol};

impl Snapshot {
    /// Looks up the adjacency of `destination`.
    ///
    /// # Errors [`Outcome::LinkLocal`] or [`Outcome::NoRoute`] if there is none.
    #[inline]
    pub fn route(&self, destination: Address) -> Result<Adjacency, Outcome> {
        if let Some(port) = self.owners.find(destination) {
            let is_there = port != PortId::NONE;
            return if is_there { Ok(Adjacency::port(port)) } else { Err(Outcome::NoRoute) };
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

    /// Looks up the adjacency of a pod's packet to a link-local `destination`: the node's
    /// kernel is asked for some.
    ///
    /// # Errors [`Outcome::LinkLocal`] for all others.
    #[cold]
    pub fn link_local_route(&self, destination: Address) -> Result<Adjacency, Outcome> {
        let host = self.host.filter(|_| self.link_local_destinations.contains(destination));
        host.map(Adjacency::port).ok_or(Outcome::LinkLocal)
    }

    /// The egress port of an adjacency, and the node behind it.
    #[inline]
    pub fn egress(&self, adjacency: Adjacency) -> Option<(PortId, Option<&Peer>)> {
        match adjacency.egress() {
            Egress::Port(port) => Some((port, None)),
            Egress::Peer(n) => Some((self.uplink?, Some(self.routes.peer(n)?))),
        }
    }

    /// The MTU of an adjacency in bytes, or 0 without a limit.
    #[inline]
    pub fn mtu(&self, adjacency: Adjacency) -> u16 {
        let Some((port, peer)) = self.egress(adjacency) else { return 0 };
        let of_path = peer.map_or(0, |peer| peer.mtu);
        let mtu = match self.port(port).map_or(0, |port| port.mtu) {
            0 => of_path,
            mtu if of_path > 0 => mtu.min(of_path),
            mtu => mtu,
        };
        match (peer, &self.underlay) {
            (Some(peer), Underlay::Overlay(_)) if mtu > 0 => {
                mtu.saturating_sub(Vxlan::overhead(peer.endpoint.is_v4()) as u16)
            }
            _ => mtu,
        }
    }

    /// Whether packets with these ends arrive by the uplink in tunnels only: those of other
    /// nodes' pods, and those of their processes for pods here.
    #[inline]
    pub fn arrives_in_tunnels_only(&self, flow: &Flow) -> bool {
        let is_for_pod = || self.pod_of(flow.destination).is_some();
        matches!(self.underlay, Underlay::Overlay(_))
            && self.routes.find(flow.source).is_some()
            && (self.routes.is_pod(flow.source) || is_for_pod())
    }

    /// Whether replies of what is behind the uplink to this node's own address arrive outside of
    /// tunnels: of this node's traffic there, translated connections alone are the switch's.
    pub(crate) fn replies_in_clear(&self, address: Address) -> bool {
        !(matches!(self.underlay, Underlay::Overlay(_)) && self.routes.is_pod(address))
    }

    /// The group of a sender, for the header of a tunnel; 0 without group policies.
    #[inline]
    pub fn tunnel_group(&self, overlay: &Vxlan, sender: Address) -> u16 {
        match overlay.group {
            true => self.address_map().lookup(sender).0 as u16,
            false => 0,
        }
    }

    /// Whether any connection is masqueraded.
    #[inline]
    pub(crate) fn may_masquerade(&self) -> bool {
        self.masquerade
    }

    /// Whether a connection from `source` by this adjacency is masqueraded: networks outside have
    /// no routes to pods.
    #[inline]
    pub fn masquerades(&self, source: Address, adjacency: Adjacency) -> bool {
        self.masquerade
            && self.uplink.is_some_and(|uplink| Adjacency::port(uplink) == adjacency)
            && self.pod_of(source).is_some()
    }

    /// Whether a packet to the overlay's port would leave this node outside of its tunnels,
    /// where another one could take it for a tunnel packet. Packets from the uplink to this kernel
    /// do not leave it.
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
