//! Compares the decisions of enforced ACLs with those of staged ones.

use super::Context;
use crate::Outcome;
use crate::packet::Packet;
use crate::policy::{Decision, StagedDecision};

/// A connection about which staged ACLs decide otherwise than the enforced ones.
#[derive(Debug)]
pub(crate) struct Difference {
    /// The index in the vector of the packet that opens it.
    pub(crate) packet: u8,
    pub(crate) decision: StagedDecision,
}

/// Notes the packets whose connections staged ACLs decide otherwise about, by the decisions of these.
pub(super) fn compare(
    context: &mut Context<'_>,
    packets: &[Packet],
    decisions: impl Iterator<Item = (u8, Decision)>,
) {
    for (packet, decision) in decisions {
        if let Some(enforced @ (Outcome::PolicyAllowed | Outcome::PolicyDenied)) =
            packets[usize::from(packet)].outcome
            && let Some(decision) = StagedDecision::new(context.snapshot, decision, enforced)
        {
            context.staged.push(Difference { packet, decision });
        }
    }
}
