//! DNS of pods that follow domain names: copies questions and answers, and holds answers.
//!
//! | packet | what happens |
//! |---|---|
//! | to port 53, from a pod that follows names | copied; it leaves at once |
//! | from port 53 to such a pod, in a session | copied and held until it is released |
//! | the same, without data (TCP) | copied where it opens or resets; it leaves at once |
//!
//! Addresses and ports are those that the pod sees, before or after translation. The packet is
//! rewritten already; one that was held enters this node again when it is released, and leaves.

mod held;

use super::{Context, Next, Node};
use crate::dns::{DNS_PORT, Draft, Ticket};
use crate::packet::Packet;
use crate::snapshot::PortLine;
use crate::wire::{Flow, Fragment, Role, protocol, tcp_flags};
use crate::{Outcome, PortId};
pub(super) use held::HeldAnswers;

/// Whether a packet that leaves by `port` is DNS of a pod that follows names.
#[inline(never)]
pub(super) fn is_wanted(context: &Context<'_>, packet: &Packet, port: &PortLine) -> bool {
    let headers = &packet.headers;
    let has_ports = matches!(headers.flow.protocol, protocol::TCP | protocol::UDP);
    if !has_ports || headers.role == Role::Quotes || headers.fragment != Fragment::Whole {
        return false;
    }
    let asks = || {
        let sender = context.snapshot.port(packet.in_port);
        headers.flow.destination_port == DNS_PORT && sender.is_some_and(|it| it.follows_names)
    };
    let receives = port.traits & PortLine::FOLLOWS_NAMES != 0;
    receives && seen_by_receiver(context, packet).source_port == DNS_PORT || asks()
}

/// Addresses and ports as they leave.
fn seen_by_receiver(context: &Context<'_>, packet: &Packet) -> Flow {
    context.translation(packet).map_or(packet.headers.flow, |it| it.to)
}

pub(super) fn step(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    let next = match (packet.out_port, packet.outcome) {
        (PortId::NONE, _) => Next::Node(Node::Encapsulate),
        (_, Some(outcome)) => Next::End(outcome),
        (_, None) => return release(context, packet),
    };
    // A pod that answers itself, through a service, answers nothing.
    if packet.out_port == packet.in_port {
        return next;
    }
    let Some(tap) = context.waiting.answers.tap.clone() else { return next };
    let from_pod = packet.headers.flow.destination_port == DNS_PORT
        && context.snapshot.port(packet.in_port).is_some_and(|it| it.follows_names);
    let (pod, flow) = match from_pod {
        true => (packet.in_port, packet.headers.flow),
        false => (packet.out_port, seen_by_receiver(context, packet).reversed()),
    };
    let Some(draft) = copy(context, packet, pod, flow, from_pod) else { return next };
    let Some(guard) = tap.reserve(pod) else {
        tap.uncopied.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        return next;
    };
    // Only a packet of a session answers anything.
    let is_answer = !from_pod && packet.outcome == Some(Outcome::Session);
    let ticket = (is_answer && !draft.payload.is_empty())
        .then(|| context.waiting.answers.ticket(pod))
        .flatten();
    let held = ticket.map(|number| Ticket { worker: context.waiting.answers.worker, number });
    match (tap.send(draft, held, guard), ticket) {
        (true, Some(number)) => {
            // The flow is not looked up any more.
            packet.hash = number;
            packet.outcome = None;
            Next::Node(Node::Hold)
        }
        (false, Some(_)) => {
            context.waiting.answers.give_back(pod);
            next
        }
        (_, None) => next,
    }
}

/// Releases a held answer. Its pod may have gone meanwhile, and another one may have the port's number.
fn release(context: &Context<'_>, packet: &Packet) -> Next {
    let receiver = context.memory.bytes(&packet.frame).first_chunk::<6>();
    let port = context.snapshot.pod(packet.out_port);
    let is_there = port.is_some_and(|port| port.mac.is_none() || port.mac.as_ref() == receiver);
    Next::End(if is_there { Outcome::Session } else { Outcome::PortGone })
}

/// Copies a packet; `None` for a segment that says nothing.
fn copy(
    context: &Context<'_>,
    packet: &Packet,
    pod: PortId,
    flow: Flow,
    from_pod: bool,
) -> Option<Draft> {
    let headers = &packet.headers;
    let frame = context.memory.bytes(&packet.frame);
    let l4 = usize::from(headers.l4);
    let (start, segment) = match flow.protocol {
        protocol::UDP => (l4 + 8, None),
        _ => {
            let field: [u8; 4] = frame.get(l4 + 4..l4 + 8)?.try_into().ok()?;
            let length = usize::from(frame.get(l4 + 12)? >> 4) * 4;
            (l4 + length, Some((u32::from_be_bytes(field), headers.tcp_flags)))
        }
    };
    let end = usize::from(headers.end).max(start);
    let opens_or_resets = headers.tcp_flags & (tcp_flags::SYN | tcp_flags::RST) != 0;
    if start == end && !(segment.is_some() && opens_or_resets) {
        return None;
    }
    let mut payload = Vec::with_capacity(end - start);
    for chunk in context.memory.chunks_in(&packet.frame, start..end) {
        payload.extend_from_slice(chunk);
    }
    Some(Draft { pod, flow, from_pod, segment, payload })
}
