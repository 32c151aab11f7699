//! Virtual reassembly: later fragments carry no ports and are forwarded by the flow of their first.
//!
//! No datagram is reassembled. The [`Table`] records the outcome of first fragments, and holds
//! later ones that arrive before theirs; those enter this node again when their first is let
//! through (see [`super::waiting`]).
//!
//! This node follows those that classify first fragments, so that fragments in one vector need not
//! be held.

mod datagram;
mod port_table;
mod table;

use super::{Context, Next, Node, session};
use crate::packet::Packet;
use crate::policy;
use crate::session::TupleOrigin;
use crate::wire::{Flow, Fragment};
use crate::{Outcome, PortId, Verdict};
pub(super) use datagram::{Datagram, First};
pub(super) use table::Table;

pub(super) fn step(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    let Some(datagram) = Datagram::of(packet) else { return Next::End(Outcome::FragmentUnknown) };
    let (flow, has_session) = match context.waiting.fragments.first(&datagram, context.now) {
        None => return Next::Node(Node::Hold),
        Some(First::Refused) => return Next::End(Outcome::FragmentUnknown),
        Some(First::Passed { flow, has_session }) => (flow, has_session),
    };
    packet.headers.flow = flow;
    if !has_session {
        return without_policy(context, packet);
    }
    packet.hash = context.sessions.hash(&flow);
    match context.sessions.find(packet.hash, &flow, TupleOrigin::Entering, context.now.seconds()) {
        Some(found) => session::go_on(context, packet, &found, Outcome::Fragment),
        None => Next::End(Outcome::FragmentUnknown),
    }
}

/// Forwards a fragment of traffic without policies, which has no sessions.
fn without_policy(context: &Context<'_>, packet: &mut Packet) -> Next {
    let flow = &packet.headers.flow;
    let (adjacency, port) = match context.route(packet, flow) {
        Ok(found) => found,
        Err(outcome) => return Next::End(outcome),
    };
    let pod = |id: PortId| context.snapshot.pod(id).map(|_| id);
    // The snapshot may be another one than the first fragment's.
    let exempt = policy::exempt(context.snapshot, flow, pod(packet.in_port), pod(port));
    if exempt != Some(Outcome::NoPolicy) || context.snapshot.masquerades(flow.source, adjacency) {
        return Next::End(Outcome::FragmentUnknown);
    }
    packet.adjacency = adjacency;
    packet.outcome = Some(Outcome::Fragment);
    Next::Node(Node::Rewrite)
}

impl Context<'_> {
    /// Records a first fragment that is let through.
    pub(super) fn remember_fragment(&mut self, packet: &Packet, has_session: bool) {
        if let Fragment::First(_) = packet.headers.fragment
            && let Some(datagram) = Datagram::of(packet)
        {
            let first = First::Passed { flow: packet.headers.flow, has_session };
            self.waiting.decide(datagram, first, self.now);
        }
    }

    /// Records the first fragments of a vector that were dropped.
    pub(super) fn refuse_fragments(&mut self, packets: &[Packet]) {
        if !self.waiting.fragments.take_has_first() {
            return;
        }
        for packet in packets {
            let is_first = matches!(packet.headers.fragment, Fragment::First(_));
            let is_refused = packet.outcome.is_some_and(|it| it.verdict() == Verdict::Drop);
            if is_first
                && is_refused
                && let Some(datagram) = Datagram::of(packet)
                && self.waiting.fragments.first(&datagram, self.now).is_none()
            {
                self.waiting.decide(datagram, First::Refused, self.now);
            }
        }
    }

    /// The flow of the first fragment of a later fragment's datagram, if it was let through.
    pub(super) fn first_flow(&self, packet: &Packet) -> Option<Flow> {
        match self.waiting.fragments.first(&Datagram::of(packet)?, self.now)? {
            First::Passed { flow, .. } => Some(flow),
            First::Refused => None,
        }
    }
}
