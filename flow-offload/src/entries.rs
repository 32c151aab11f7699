//! The entries that follow from a connection.

use dataplane::session::Tuples;
use dataplane::wire::{Flow, Mac, protocol};
use dataplane::{PortId, PortState, Snapshot};

use crate::Kernel;
use crate::layout::{FlowEntry, FlowKey, GUARD_NONE, GUARD_SERVICES};

/// The entries of a connection.
#[derive(Clone, Debug)]
pub struct Entries {
    /// The ports of its initiator and its responder.
    pub ports: [PortId; 2],
    /// Forward and reverse.
    pub both: [(FlowKey, FlowEntry); 2],
}

/// The entries of both directions of a connection that `snapshot` allows;
/// `interface` finds the number of a port's interface, if flow offload serves it, and `generation`
/// the generation of a guard as of the snapshot.
///
/// `None` if the connection is not between two such pods, or neither TCP nor UDP.
pub fn entries(
    snapshot: &Snapshot,
    tuples: &Tuples,
    interface: impl Fn(PortId) -> Option<u32>,
    generation: impl Fn(u32) -> u32,
) -> Option<Entries> {
    let Tuples { initiator, responder, return_mac } = *tuples;
    let is_known = matches!(initiator.protocol, protocol::TCP | protocol::UDP);
    if !is_known || return_mac != Mac::default() {
        return None;
    }
    let (sender_id, sender) = snapshot.pod_of(initiator.source)?;
    let (responder_id, peer) = snapshot.pod_of(responder.destination)?;
    // The kernel redirects no packet to where it came from.
    if sender_id == responder_id {
        return None;
    }
    let services = if tuples.is_translated() { GUARD_SERVICES } else { GUARD_NONE };
    let guards = [Kernel::guard_of(sender_id), Kernel::guard_of(responder_id), services];
    let guarded = FlowEntry { guards, generations: guards.map(generation), ..FlowEntry::default() };
    let (sender_at, peer_at) = (interface(sender_id)?, interface(responder_id)?);
    let (to_peer, to_sender) = (leaving(guarded, sender, peer)?, leaving(guarded, peer, sender)?);
    let both = [
        entry((sender_at, peer_at), to_peer, &initiator, &responder),
        entry((peer_at, sender_at), to_sender, &responder.reversed(), &initiator.reversed()),
    ];
    Some(Entries { ports: [sender_id, responder_id], both })
}

/// An entry from one pod to another, as far as it follows from the ports.
fn leaving(entry: FlowEntry, from: &PortState, to: &PortState) -> Option<FlowEntry> {
    Some(FlowEntry {
        mtu: to.mtu,
        ingress_mac: from.mac?,
        destination_mac: to.mac?,
        source_mac: to.own_mac,
        ..entry
    })
}

fn entry(
    (ingress, egress): (u32, u32),
    entry: FlowEntry,
    enters: &Flow,
    leaves: &Flow,
) -> (FlowKey, FlowEntry) {
    let entry = FlowEntry { egress, ..entry }.rewriting(enters, leaves);
    (FlowKey::new(ingress, enters), entry)
}
