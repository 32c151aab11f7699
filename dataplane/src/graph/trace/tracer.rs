//! Tracing on one worker.

use std::sync::Arc;

use super::Tracing;
use super::observe::{self, Before};
use super::record::{End, PacketTrace, Step};
use crate::Outcome;
use crate::graph::{Context, Node};
use crate::packet::{Packet, VECTOR};

/// Traces the packets of one vector after the other.
pub(in crate::graph) struct Tracer {
    worker: u16,
    tracing: Arc<Tracing>,
    /// Packets of this vector that may match, by their place in it.
    following: Vec<Option<Following>>,
    /// State of the current packet before its node.
    before: Before,
}

struct Following {
    /// Whether its headers match; later nodes may find others.
    is_wanted: bool,
    trace: PacketTrace,
}

impl Tracer {
    pub(in crate::graph) fn new(worker: u16, tracing: Arc<Tracing>) -> Self {
        let following = Vec::with_capacity(VECTOR);
        Self { worker, tracing, following, before: Before::Nothing }
    }

    /// Whether no more packets are followed.
    pub(in crate::graph) fn is_over(&self) -> bool {
        self.tracing.is_over()
    }

    /// Starts a vector.
    pub(in crate::graph) fn begin(&mut self, context: &Context<'_>, packets: &[Packet]) {
        self.following.clear();
        for packet in packets {
            let port = context.snapshot.port(packet.in_port).map(|port| &port.name);
            let filter = &self.tracing.filter;
            let follows = filter.matches_entry(port.map(|name| &**name)).then(|| Following {
                is_wanted: false,
                trace: PacketTrace {
                    at: context.now,
                    worker: self.worker,
                    vector: packets.len() as u16,
                    generation: context.snapshot.generation,
                    in_port: port.cloned(),
                    frame: packet.frame.index(),
                    length: packet.frame.len() as u32,
                    steps: Vec::new(),
                    end: End::Waits,
                },
            });
            self.following.push(follows);
        }
    }

    /// Called before a node handles the packet at this place.
    pub(in crate::graph) fn before(
        &mut self,
        node: Node,
        context: &Context<'_>,
        index: u8,
        packet: &Packet,
    ) {
        let is_followed = self.following[usize::from(index)].is_some();
        self.before =
            if is_followed { observe::before(node, context, packet) } else { Before::Nothing };
    }

    /// Called after the node has sent it to `next`.
    pub(in crate::graph) fn after(
        &mut self,
        node: Node,
        context: &Context<'_>,
        index: u8,
        packet: &Packet,
        next: Option<Node>,
    ) {
        let before = std::mem::replace(&mut self.before, Before::Nothing);
        let place = &mut self.following[usize::from(index)];
        let Some(following) = place else { return };
        // The outcome, if this node decided it.
        let outcome = match (node, next) {
            (Node::Open, Some(_)) => None,
            (_, None | Some(Node::IcmpError | Node::Open | Node::Rewrite)) => packet.outcome,
            _ => None,
        };
        let finding = observe::after(node, before, context, packet, outcome);
        following.trace.steps.push(Step { node, finding, next, outcome });
        if matches!(node, Node::Parse | Node::Decapsulate | Node::Reassembly | Node::Dns) {
            following.is_wanted |= self.tracing.filter.matches_headers(&packet.headers);
        }
        let may_become =
            matches!(next, Some(Node::AntiSpoofing | Node::Decapsulate | Node::Reassembly));
        if !following.is_wanted && !may_become {
            *place = None;
        }
    }

    /// Finishes the traces of a vector.
    pub(in crate::graph) fn finish(&mut self, context: &Context<'_>, packets: &[Packet]) {
        for (following, packet) in self.following.drain(..).zip(packets) {
            let Some(Following { is_wanted: true, mut trace }) = following else { continue };
            let is_done = trace.steps.last().is_some_and(|step| step.next.is_none());
            let outcome: Option<Outcome> = packet.outcome.filter(|_| is_done);
            let port = context.snapshot.port(packet.out_port).filter(|_| packet.leaves());
            let out_port = port.map(|port| Arc::clone(&port.name));
            if !self.tracing.filter.matches_end(outcome, out_port.as_deref()) {
                continue;
            }
            if let Some(outcome) = outcome {
                trace.end = End::Done { outcome, out_port, answered: packet.is_reply };
            }
            self.tracing.keep(trace);
        }
    }
}
