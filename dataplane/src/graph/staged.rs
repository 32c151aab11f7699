//! Compares the decisions of enforced ACLs with those of staged ones.

use super::Context;
use crate::packet::Packet;
use crate::policy::{self, StagedDecision};
use crate::{Outcome, Snapshot};

/// A connection about which staged ACLs decide otherwise than the enforced ones.
#[derive(Debug)]
pub(crate) struct Difference {
    /// The index in the vector of the packet that opens it.
    pub(crate) packet: u8,
    pub(crate) decision: StagedDecision,
}

/// Notes the packets whose connections staged ACLs decide otherwise about, after
/// [`classify`](super::policy::classify).
#[cold]
pub(super) fn compare(context: &mut Context<'_>, packets: &[Packet], items: &[u8]) {
    let snapshot: &Snapshot = context.snapshot;
    for index in items {
        let packet = &packets[usize::from(*index)];
        let Some(outcome @ (Outcome::PolicyAllowed | Outcome::PolicyDenied)) = packet.outcome
        else {
            continue;
        };
        let flow = match context.translation(packet) {
            None => packet.headers.flow,
            Some(_) => context.tuples(packet).policy_flow(),
        };
        if let Some(decision) = policy::staged_difference(snapshot, &flow, outcome) {
            context.staged.push(Difference { packet: *index, decision });
        }
    }
}
