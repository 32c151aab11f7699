//! State that nodes use beside the packet.

use acl::Address;

use super::Node;
use super::decapsulate::Arrival;
use super::encapsulate::Tunnel;
use super::icmp_error::RateLimiter;
use super::reevaluate::Stale;
use super::reject::Extras;
use super::staged::Difference;
use super::verify::Verifier;
use super::waiting::Waiting;
use crate::packet::Packet;
use crate::policy::PolicyBatch;
use crate::session::{SessionId, Sessions, Tuples};
use crate::snapshot::is_link_local;
use crate::wire::vxlan::Outer;
use crate::wire::{Flow, Mac};
use crate::{Adjacency, Memory, Now, Outcome, PortId, Snapshot};

/// A node's decision about a packet: the next node, or an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Node(Node),
    End(Outcome),
}

/// State that nodes use beside the packet.
pub(crate) struct Context<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) memory: &'a Memory,
    pub(crate) sessions: &'a Sessions,
    pub(super) waiting: &'a mut Waiting,
    pub(super) rate_limiter: &'a mut RateLimiter,
    pub(super) extras: &'a mut Extras,
    pub(super) translations: &'a mut Vec<Translation>,
    pub(super) policy_batch: &'a mut PolicyBatch<'static>,
    /// Sessions to re-evaluate, in the order of the packets on the session node's list.
    pub(super) stale: &'a mut Vec<Stale>,
    /// Packets of the vector that open connections which staged ACLs decide otherwise about.
    pub(super) staged: &'a mut Vec<Difference>,
    pub(super) verifier: &'a mut Verifier,
    pub(super) tunnel: LastTunnel,
    /// UDP port of the overlay in the order of the wire; no port where there is none.
    pub(super) tunnel_port: u32,
    /// Whether packets and bytes of sessions are counted.
    pub(super) counts: bool,
    /// Whether packets are traced: each node then does its part by itself.
    pub(super) traces: bool,
    pub(crate) now: Now,
}

/// Findings about the last tunnel packets of the vector: the next one is often of the same tunnel.
#[derive(Default)]
pub(super) struct LastTunnel {
    /// Outer source and destination, which anti-spoofing has verified.
    pub(super) ends: Option<(Address, Address)>,
    /// Outer source, and the peer whose tunnel ends there.
    pub(super) peer: Option<(Address, u16)>,
    /// Tunnels that parse may take packets out of itself.
    pub(super) from: [Option<Arrival>; Outer::PLACES],
    /// The tunnel that the last packet left in.
    pub(super) to: Option<Tunnel>,
}

/// The address translation of one packet of the vector.
#[derive(Clone, Debug)]
pub(super) struct Translation {
    /// The packet's new addresses and ports; of a packet that opens a connection, the reply tuple
    /// reversed.
    pub(super) to: Flow,
    /// The same for the packet that an ICMP error quotes. (Aside, so that a translation takes one cache line.)
    pub(super) quoted: Option<Box<Flow>>,
    /// See [`Tuples::return_mac`].
    pub(super) return_mac: Mac,
    /// Whether this packet returns to it.
    pub(super) returns: bool,
}

impl Translation {
    /// The translation of a packet whose connection has this reply tuple, reversed, and this return
    /// address.
    #[inline]
    pub(super) fn forward(responder: Flow, return_mac: Mac) -> Self {
        Self { to: responder, quoted: None, return_mac, returns: false }
    }

    /// The translation of a reply to the initiator's original tuple.
    #[inline]
    pub(super) fn reverse(initiator: &Flow, return_mac: Mac) -> Self {
        let returns = return_mac != Mac::default();
        Self { to: initiator.reversed(), quoted: None, return_mac, returns }
    }
}

impl Context<'_> {
    /// Looks up the adjacency and egress port of a packet with these addresses; refuses packets
    /// that may not leave there.
    #[inline]
    pub(super) fn route(&self, packet: &Packet, to: &Flow) -> Result<(Adjacency, PortId), Outcome> {
        let adjacency = match self.snapshot.route(to.destination) {
            Err(Outcome::LinkLocal) if self.snapshot.pod(packet.in_port).is_some() => {
                self.snapshot.link_local_route(to.destination)?
            }
            found => found?,
        };
        let Some((port, _)) = self.snapshot.egress(adjacency) else {
            return Err(Outcome::PortGone);
        };
        if port == packet.in_port && !self.translates(packet) {
            return Err(Outcome::NotLocal);
        }
        if self.snapshot.is_stray_tunnel(to, packet.in_port, adjacency) {
            return Err(Outcome::TunnelRefused);
        }
        Ok((adjacency, port))
    }

    /// Whether a packet from the uplink has a source that is valid on that link only: a router does
    /// not forward it (RFC 3927, section 7; RFC 4291, section 2.5.6).
    #[inline]
    pub(super) fn is_from_its_link_alone(&self, packet: &Packet) -> bool {
        self.snapshot.uplink() == Some(packet.in_port) && is_link_local(packet.headers.flow.source)
    }

    /// Counts the packet in its session's usage, if that is counted.
    #[inline]
    pub(super) fn count(&self, session: SessionId, packet: &Packet) {
        if self.counts && !packet.frame.is_copy() {
            self.sessions.count(session, packet.frame.len());
        }
    }

    #[inline]
    pub(super) fn translates(&self, packet: &Packet) -> bool {
        packet.translation != Packet::AS_IT_IS
    }

    /// Records the packet's translation, which the rewrite node applies.
    pub(super) fn translate(&mut self, packet: &mut Packet, translation: Translation) {
        packet.translation = self.translations.len() as u16;
        self.translations.push(translation);
    }

    #[inline(always)]
    pub(super) fn translation<'b>(&'b self, packet: &Packet) -> Option<&'b Translation> {
        match packet.translation {
            Packet::AS_IT_IS => None,
            n => self.translations.get(usize::from(n)),
        }
    }

    /// Both tuples of the connection that a packet opens.
    #[inline]
    pub(super) fn tuples(&self, packet: &Packet) -> Tuples {
        let plain = Tuples::plain(packet.headers.flow);
        match self.translation(packet) {
            None => plain,
            Some(it) => Tuples { responder: it.to, return_mac: it.return_mac, ..plain },
        }
    }
}
