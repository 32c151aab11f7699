//! Re-evaluates sessions of an earlier generation, those of a vector as one policy batch.
//!
//! A session that may go on gets the snapshot's generation. The others stay as they are: the session
//! node decides about each of them alone.

use super::Context;
use super::owner::owner;
use super::service::is_outdated;
use crate::packet::Packet;
use crate::policy::{self, PolicyBatch};
use crate::session::{Found, Tuples};
use crate::{Adjacency, Verdict};

/// A session of an earlier generation.
pub(super) struct Stale {
    found: Found,
    state: State,
}

/// Progress of its re-evaluation.
enum State {
    /// It is decided about alone.
    Left,
    /// No ACL applies to it: it may go on.
    Exempt(Adjacency),
    /// It is in the batch.
    Asked(Adjacency),
}

impl Stale {
    pub(super) fn new(found: Found) -> Self {
        Self { found, state: State::Left }
    }
}

/// Re-evaluates the sessions of these packets.
pub(super) fn batch(context: &mut Context<'_>, packets: &[Packet], items: &[u8]) {
    let snapshot = context.snapshot;
    let mut batch = std::mem::take(context.policy_batch).emptied();
    let mut stale = std::mem::take(context.stale);
    for (index, it) in items.iter().zip(&mut stale) {
        it.state = add(context, &packets[usize::from(*index)], &it.found, &mut batch);
    }
    let mut decisions = batch.evaluate(snapshot.live_address_map());
    for (index, it) in items.iter().zip(&stale) {
        let (may_go_on, adjacency) = match it.state {
            State::Left => continue,
            State::Exempt(adjacency) => (true, adjacency),
            State::Asked(adjacency) => {
                let decision = decisions.next();
                let permits = decision.is_some_and(|it| it.outcome.verdict() == Verdict::Forward);
                (permits, adjacency)
            }
        };
        if may_go_on {
            let packet = &packets[usize::from(*index)];
            if it.found.forward {
                context.sessions.claim(&it.found, || owner(context, packet));
            }
            context.sessions.stamp(&it.found, snapshot.generation, adjacency);
        }
    }
    stale.clear();
    *context.stale = stale;
    *context.policy_batch = batch.emptied();
}

/// Adds a session to the batch, if an ACL applies to it.
#[inline]
fn add<'a>(
    context: &Context<'a>,
    packet: &Packet,
    found: &Found,
    batch: &mut PolicyBatch<'a>,
) -> State {
    let snapshot = context.snapshot;
    let flow = &packet.headers.flow;
    let (policy_flow, adjacency, pods);
    if found.translated {
        let Some(tuples) = context.sessions.tuples(found) else { return State::Left };
        if is_over(context, found, &tuples) {
            return State::Left;
        }
        policy_flow = tuples.policy_flow();
        // It is routed when its packet is translated.
        adjacency = Adjacency::NONE;
        pods = [policy_flow.source, policy_flow.destination].map(|it| snapshot.pod_of(it));
    } else {
        policy_flow = if found.forward { *flow } else { flow.reversed() };
        if is_over(context, found, &Tuples::plain(policy_flow)) {
            return State::Left;
        }
        let Ok((found_adjacency, port)) = context.route(packet, flow) else { return State::Left };
        adjacency = found_adjacency;
        // Anti-spoofing has verified the source; the egress port is the destination's.
        let mut ends = [packet.in_port, port];
        if !found.forward {
            ends.reverse();
        }
        pods = ends.map(|id| snapshot.pod(id).map(|port| (id, port)));
    }
    let [initiator, responder] = pods;
    let [one, other] = pods.map(|pod| pod.map(|(id, _)| id));
    match policy::exempt(snapshot, &policy_flow, one, other) {
        None => {}
        // A service may have led a client outside, or one of the node itself, where it must not go.
        Some(_) if found.translated => return State::Left,
        Some(_) => return State::Exempt(adjacency),
    }
    batch.push_all_forms(snapshot, &policy_flow, initiator, responder);
    State::Asked(adjacency)
}

/// Whether a session may not go on, whatever the policies say.
fn is_over(context: &Context<'_>, found: &Found, tuples: &Tuples) -> bool {
    context.sessions.has_departed(found, tuples) || is_outdated(context.snapshot, tuples)
}
