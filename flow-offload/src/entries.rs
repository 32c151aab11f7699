//! The entries that follow from a connection.

use acl::Address;
use dataplane::dns::DNS_PORT;
use dataplane::session::Tuples;
use dataplane::wire::{Flow, Mac, protocol};
use dataplane::{PortId, PortState, Snapshot, Underlay};

use crate::Kernel;
use crate::layout::{FlowEntry, FlowKey, GUARD_NONE, GUARD_SERVICES};

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

    /// What both have in common: guards and generations.
    pub(crate) fn guarded(&self) -> FlowEntry {
        let entry = self.both.iter().flatten().next();
        entry.map_or_else(FlowEntry::default, |(_, entry)| *entry)
    }
}

/// One end of a connection.
enum End<'a> {
    /// A pod of this cluster node.
    Pod(PortId, &'a PortState),
    /// Whatever is behind the uplink.
    Remote(PortId, NextHop),
}

/// How packets leave by the uplink.
struct NextHop {
    mac: Mac,
    own_mac: Mac,
    mtu: u16,
}

/// The entries of both directions of a connection that `snapshot` allows; `interface` finds the
/// number of a port's interface, if flow offload serves it, and `generation` the generation of a
/// guard as of the snapshot.
///
/// What enters by the uplink has no entry, and neither has what leaves in a tunnel. `None` if no
/// direction has one: the connection is of no such pod, neither TCP nor UDP, or
/// the DNS of a pod that follows names.
pub fn entries(
    snapshot: &Snapshot,
    tuples: &Tuples,
    interface: impl Fn(PortId) -> Option<u32>,
    generation: impl Fn(u32) -> u32,
) -> Option<Entries> {
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
    // The kernel redirects no packet to where it came from.
    if from_id == to_id {
        return None;
    }
    let services = if tuples.is_translated() { GUARD_SERVICES } else { GUARD_NONE };
    let guards = [Kernel::guard_of(from_id), Kernel::guard_of(to_id), services];
    let guarded = FlowEntry { guards, generations: guards.map(generation), ..FlowEntry::default() };
    let entry = |one: &End<'_>, other: &End<'_>, enters: &Flow, leaves: &Flow| {
        let End::Pod(id, pod) = one else { return None };
        let (ingress, egress) = (interface(*id)?, interface(other.port())?);
        let entry = FlowEntry { egress, ingress_mac: pod.mac?, ..other.leaving(guarded)? };
        Some((FlowKey::new(ingress, enters), entry.rewriting(enters, leaves)))
    };
    let both = [
        entry(&from, &to, &initiator, &to_responder),
        entry(&to, &from, &responder.reversed(), &to_initiator),
    ];
    both.iter().any(Option::is_some).then_some(Entries { ports: [from_id, to_id], both })
}

/// Where packets of a flow go; those that return to the MAC address they came from leave by the
/// uplink.
fn end<'a>(snapshot: &'a Snapshot, flow: &Flow, return_mac: Mac) -> Option<End<'a>> {
    let destination: Address = flow.destination;
    if return_mac == Mac::default()
        && let Some((id, pod)) = snapshot.pod_of(destination)
    {
        return Some(End::Pod(id, pod));
    }
    let uplink = snapshot.uplink()?;
    let state = snapshot.port(uplink)?;
    let next_hop = |mac: Mac, mtu| {
        let next_hop = NextHop { mac, own_mac: state.own_mac, mtu };
        Some(End::Remote(uplink, next_hop))
    };
    if return_mac != Mac::default() {
        return next_hop(return_mac, state.mtu);
    }
    let adjacency = snapshot.route(destination).ok()?;
    let (port, peer) = snapshot.egress(adjacency)?;
    let is_tunnel = peer.is_some() && matches!(snapshot.underlay(), Underlay::Overlay(_));
    if port != uplink || is_tunnel || snapshot.is_stray_tunnel(flow, PortId::NONE, adjacency) {
        return None;
    }
    match peer {
        Some(peer) => next_hop(peer.next_hop?, snapshot.mtu(adjacency)),
        None => next_hop(state.mac?, state.mtu),
    }
}

impl End<'_> {
    fn port(&self) -> PortId {
        match self {
            Self::Pod(id, _) | Self::Remote(id, _) => *id,
        }
    }

    /// An entry for packets towards it, as far as it follows from the ports.
    fn leaving(&self, entry: FlowEntry) -> Option<FlowEntry> {
        Some(match self {
            Self::Pod(_, pod) => FlowEntry {
                mtu: pod.mtu,
                destination_mac: pod.mac?,
                source_mac: pod.own_mac,
                ..entry
            },
            Self::Remote(_, hop) => FlowEntry {
                mtu: hop.mtu,
                destination_mac: hop.mac,
                source_mac: hop.own_mac,
                on_wire: 1,
                ..entry
            },
        })
    }
}
