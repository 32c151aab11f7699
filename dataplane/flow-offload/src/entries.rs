//! The entries that follow from a connection.

use acl::Address;
use dataplane::dns::DNS_PORT;
use dataplane::session::Tuples;
use dataplane::wire::vxlan::Vxlan;
use dataplane::wire::{Flow, Mac, protocol};
use dataplane::{Peer, PortId, PortKind, PortState, Snapshot, Underlay};

use crate::Kernel;
use crate::layout::{FlowEntry, FlowKey, GUARD_NONE, GUARD_SERVICES, Tunnel, role};

/// The entries of a connection.
#[derive(Clone, Debug)]
pub struct Entries {
    /// The ports of its initiator and its responder.
    pub ports: [PortId; 2],
    /// Forward and reverse; `None` for a direction that the switch forwards.
    pub both: [Option<(FlowKey, FlowEntry)>; 2],
}

impl Entries {
    pub(crate) fn keys(&self) -> [Option<FlowKey>; 2] {
        self.both.each_ref().map(|one| one.as_ref().map(|(key, _)| *key))
    }

    /// The guards and generations, which both have in common.
    pub(crate) fn guarded(&self) -> FlowEntry {
        let entry = self.both.iter().flatten().next();
        entry.map_or_else(FlowEntry::default, |(_, entry)| *entry)
    }
}

/// One end of a connection.
enum End<'a> {
    /// A pod of this node.
    Pod(PortId, &'a PortState),
    /// Another host, behind the uplink.
    Remote(PortId, NextHop<'a>),
    /// This node's kernel.
    Host(PortId, NextHop<'a>),
}

/// The way out by an interface of the node.
struct NextHop<'a> {
    mac: Mac,
    own_mac: Mac,
    mtu: u16,
    /// The tunnel that they leave in and others arrive in.
    tunnel: Option<Ends<'a>>,
    /// The MAC address, if it is that of the last packet from there.
    returns_to: Option<Mac>,
}

/// A tunnel.
#[derive(Clone, Copy)]
struct Ends<'a> {
    overlay: &'a Vxlan,
    own: Address,
    peer: &'a Peer,
}

/// The node's part in entries, beside the snapshot.
pub struct NodeContext<'a> {
    /// The number of a port's interface, if flow offload serves it.
    pub interface: &'a dyn Fn(PortId) -> Option<u32>,
    /// The generation of a guard as of the snapshot.
    pub generation: &'a dyn Fn(u32) -> u32,
    /// The hash of a flow that the switch's tunnel packets are sent by.
    pub hash: &'a dyn Fn(&Flow) -> u64,
}

/// The entries of both directions of a connection that `snapshot` allows.
///
/// `None` if no direction has one: the connection is of no pod of this node, neither TCP nor
/// UDP, or the DNS of a pod that follows names.
pub fn entries(snapshot: &Snapshot, tuples: &Tuples, node: &NodeContext<'_>) -> Option<Entries> {
    let Tuples { initiator, responder, return_mac } = *tuples;
    if !matches!(initiator.protocol, protocol::TCP | protocol::UDP) {
        return None;
    }
    // The graph has to see the answers.
    let follows_names = snapshot.pod_of(initiator.source).is_some_and(|(_, pod)| pod.follows_names);
    if follows_names && initiator.destination_port == DNS_PORT {
        return None;
    }
    let (to_responder, to_initiator) = (responder, initiator.reversed());
    let from = end(snapshot, &to_initiator, return_mac)?;
    let to = end(snapshot, &to_responder, Mac::default())?;
    let (from_id, to_id) = (from.port(), to.port());
    let has_pod = matches!((&from, &to), (End::Pod(..), _) | (_, End::Pod(..)));
    // The kernel redirects no packet to where it came from.
    if from_id == to_id || !has_pod {
        return None;
    }
    // What the destination of a datagram means is decided anew when services change.
    let depends = tuples.is_translated() || initiator.protocol == protocol::UDP;
    let services = if depends { GUARD_SERVICES } else { GUARD_NONE };
    let guards = [Kernel::guard_of(from_id), Kernel::guard_of(to_id), services];
    let generations = guards.map(node.generation);
    let has_host = matches!((&from, &to), (End::Host(..), _) | (_, End::Host(..)));
    let has_roles = !has_host && (initiator.protocol == protocol::TCP || is_question(tuples));
    let takes_fin = u8::from(has_roles || matches!(from, End::Pod(..)));
    let guarded = FlowEntry { guards, generations, takes_fin, ..FlowEntry::default() };
    let entry = |one: &End<'_>, other: &End<'_>, role: u32, enters: &Flow, leaves: &Flow| {
        let (key, mut entry) = one.entering(snapshot, guarded, node, enters)?;
        entry.role = if has_roles { role } else { role::NONE };
        let egress = (node.interface)(other.port())?;
        let entry = other.leaving(snapshot, FlowEntry { egress, ..entry }, node, enters)?;
        Some((key, entry.rewriting(enters, leaves)))
    };
    let mut both = [
        entry(&from, &to, role::INITIATOR, &initiator, &to_responder),
        entry(&to, &from, role::RESPONDER, &responder.reversed(), &to_initiator),
    ];
    // The switch has to see the end of one that arrives, unless the programs see both directions of it.
    if !matches!(from, End::Pod(..)) && both.iter().any(Option::is_none) {
        both.iter_mut().flatten().for_each(|(_, entry)| entry.takes_fin = 0);
    }
    both.iter().any(Option::is_some).then_some(Entries { ports: [from_id, to_id], both })
}

/// Whether a connection is one with a resolver, which is over with its answer.
fn is_question(Tuples { initiator, responder, .. }: &Tuples) -> bool {
    initiator.protocol == protocol::UDP
        && [initiator, responder].iter().all(|it| it.destination_port == DNS_PORT)
}

/// The end that packets of a flow go to; those that return to the MAC address they came from leave by
/// the uplink.
fn end<'a>(snapshot: &'a Snapshot, flow: &Flow, return_mac: Mac) -> Option<End<'a>> {
    let destination: Address = flow.destination;
    if return_mac != Mac::default() {
        let uplink = snapshot.uplink()?;
        let next_hop = NextHop::of(snapshot.port(uplink)?, return_mac);
        return Some(End::Remote(uplink, NextHop { returns_to: Some(return_mac), ..next_hop }));
    }
    if let Some((id, pod)) = snapshot.pod_of(destination) {
        return Some(End::Pod(id, pod));
    }
    let adjacency = snapshot.route(destination).ok()?;
    let (id, peer) = snapshot.egress(adjacency)?;
    let port = snapshot.port(id)?;
    if snapshot.is_stray_tunnel(flow, PortId::NONE, adjacency) {
        return None;
    }
    let Some(peer) = peer else {
        let next_hop = NextHop::of(port, port.mac?);
        return match port.kind {
            PortKind::Uplink => Some(End::Remote(id, next_hop)),
            PortKind::Host => Some(End::Host(id, next_hop)),
            PortKind::Pod => None,
        };
    };
    let tunnel = match snapshot.underlay() {
        Underlay::Overlay(overlay) => {
            let own = snapshot.node_address(peer.endpoint)?;
            Some(Ends { overlay, own, peer })
        }
        Underlay::Plain | Underlay::Routed => None,
    };
    let next_hop = NextHop::of(port, peer.next_hop?);
    Some(End::Remote(id, NextHop { mtu: snapshot.mtu(adjacency), tunnel, ..next_hop }))
}

impl NextHop<'_> {
    fn of(port: &PortState, mac: Mac) -> Self {
        Self { mac, own_mac: port.own_mac, mtu: port.mtu, tunnel: None, returns_to: None }
    }
}

impl Ends<'_> {
    /// The tunnel as packets of a flow leave in it.
    fn of(self, snapshot: &Snapshot, enters: &Flow, node: &NodeContext<'_>) -> Tunnel {
        let source_port = Vxlan::source_port((node.hash)(enters));
        let group = snapshot.tunnel_group(self.overlay, enters.source);
        let ends = (self.own, self.peer.endpoint);
        Tunnel::new(self.overlay, ends, (source_port, group), self.peer.least_hop_limit)
    }
}

impl End<'_> {
    fn port(&self) -> PortId {
        match self {
            Self::Pod(id, _) | Self::Remote(id, _) | Self::Host(id, _) => *id,
        }
    }

    /// The key of packets from it, and the entry as far as that follows.
    fn entering(
        &self,
        snapshot: &Snapshot,
        entry: FlowEntry,
        node: &NodeContext<'_>,
        enters: &Flow,
    ) -> Option<(FlowKey, FlowEntry)> {
        let interface = (node.interface)(self.port())?;
        let key = FlowKey::new(interface, enters);
        match self {
            Self::Pod(_, pod) => Some((key, FlowEntry { ingress_mac: pod.mac?, ..entry })),
            Self::Remote(_, NextHop { tunnel: Some(ends), .. }) => {
                let tunnel = ends.of(snapshot, enters, node);
                Some((key.in_tunnel(), FlowEntry { tunnel, ..entry }))
            }
            Self::Remote(_, hop @ NextHop { tunnel: None, .. }) => {
                let is_spoofed =
                    snapshot.is_local(enters.source) || snapshot.arrives_in_tunnels_only(enters);
                // From another MAC address the switch has to see it: replies return there then.
                let entry = FlowEntry { ingress_mac: hop.returns_to.unwrap_or_default(), ..entry };
                (!is_spoofed).then_some((key, entry))
            }
            Self::Host(_, hop) => {
                let key = FlowKey::of_host(enters);
                let is_spoofed = snapshot.is_pod(enters.source);
                // It leaves the kernel here, where no packet goes past an interface.
                let entry = FlowEntry { ingress_mac: hop.mac, on_wire: 1, ..entry };
                (!is_spoofed).then_some((key, entry))
            }
        }
    }

    /// An entry for packets towards it, as far as it follows from the ports.
    fn leaving(
        &self,
        snapshot: &Snapshot,
        entry: FlowEntry,
        node: &NodeContext<'_>,
        enters: &Flow,
    ) -> Option<FlowEntry> {
        Some(match self {
            Self::Pod(_, pod) => FlowEntry {
                mtu: pod.mtu,
                destination_mac: pod.mac?,
                source_mac: pod.own_mac,
                ..entry
            },
            Self::Remote(_, hop) | Self::Host(_, hop) => FlowEntry {
                mtu: hop.mtu,
                destination_mac: hop.mac,
                source_mac: hop.own_mac,
                on_wire: 1,
                tunnel: match hop.tunnel {
                    Some(ends) => ends.of(snapshot, enters, node),
                    None => entry.tunnel,
                },
                ..entry
            },
        })
    }
}
