//! Compares the decisions of enforced ACLs with those of staged ones.

use super::Context;
use crate::packet::Packet;
use crate::policy::{Acls, StagedDecision};
use crate::{Egress, Outcome, PortId, PortState, Snapshot, VECTOR};

/// A connection about which staged ACLs decide otherwise than the enforced ones.
#[derive(Debug)]
pub(crate) struct Difference {
    /// The index in the vector of the packet that opens it.
    pub(crate) packet: u8,
    pub(crate) decision: StagedDecision,
}

/// Notes the packets whose connections staged ACLs decide otherwise about, after
/// [`classify`](super::policy::classify): as one policy batch more.
pub(super) fn compare(context: &mut Context<'_>, packets: &[Packet], items: &[u8]) {
    let snapshot: &Snapshot = context.snapshot;
    let mut batch = std::mem::take(context.policy_batch).emptied();
    let (mut asked, mut count) = ([0_u8; VECTOR], 0);
    for index in items {
        let packet = &packets[usize::from(*index)];
        if !matches!(packet.outcome, Some(Outcome::PolicyAllowed | Outcome::PolicyDenied)) {
            continue;
        }
        let pod = |id| snapshot.pod(id).map(|port| (id, port));
        let responder = match packet.adjacency.egress() {
            Egress::Port(port) => pod(port),
            Egress::Peer(_) => None,
        };
        let initiator = pod(packet.in_port);
        let is_staged =
            |pod: Option<(PortId, &PortState)>| pod.is_some_and(|(_, port)| port.staged.is_some());
        let is_of_one_pod = initiator.map(|it| it.0) == responder.map(|it| it.0);
        if !is_staged(initiator) && !is_staged(responder) || is_of_one_pod {
            continue;
        }
        let policy_flow;
        let flow = match context.translation(packet) {
            None => &packet.headers.flow,
            Some(_) => {
                policy_flow = context.tuples(packet).policy_flow();
                &policy_flow
            }
        };
        batch.push_all_forms(snapshot, flow, initiator, responder, Acls::Staged);
        asked[count] = *index;
        count += 1;
    }
    for (packet, decision) in asked[..count].iter().zip(batch.evaluate(snapshot.address_map())) {
        let outcome = packets[usize::from(*packet)].outcome;
        if let Some(enforced) = outcome
            && let Some(decision) = StagedDecision::new(snapshot, decision, enforced)
        {
            context.staged.push(Difference { packet: *packet, decision });
        }
    }
    *context.policy_batch = batch.emptied();
}
