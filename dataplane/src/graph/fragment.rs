//! Cuts IPv4 packets that are longer than the way out takes, where their senders permit it.

use super::{Context, Next, Node, encapsulate};
use crate::packet::Packet;
use crate::wire::{self, ETHERNET};
use crate::{Outcome, PortId};

/// Whether a packet may be cut.
pub(super) fn is_divisible(context: &Context<'_>, packet: &Packet) -> bool {
    let ip = context.memory.bytes(&packet.frame).get(usize::from(packet.headers.l3)..);
    ip.is_some_and(wire::fragment::is_divisible)
}

/// Sends a packet that is otherwise ready to leave, in fragments of no more than `most` bytes. The
/// first one takes its frame, and the others spare ones: without enough of them it is dropped.
pub(super) fn send(context: &mut Context<'_>, packet: &mut Packet, most: u16) -> Next {
    let dropped = Next::End(Outcome::TooBig);
    context.memory.complete_checksum(&mut packet.frame);
    let mut bytes = Vec::new();
    context.memory.append_to(&packet.frame, &mut bytes, usize::from(packet.headers.end));
    context.memory.detach(&mut packet.frame, |frame| context.extras.spare.push(frame));
    let (ethernet, ip) = bytes.split_at(ETHERNET);
    let most = usize::from(most).min(context.memory.capacity().saturating_sub(ETHERNET));
    let mut fragments: Vec<_> = wire::fragment::fragments(ip, most)
        .map(|fragment| [ethernet, &fragment].concat())
        .collect();
    if fragments.is_empty() || fragments.len() - 1 > context.extras.spare.len() {
        return dropped;
    }
    let rest = fragments.split_off(1);
    let encapsulates = packet.out_port == PortId::NONE;
    if !fill(context, packet, &fragments[0]) {
        return dropped;
    }
    for bytes in rest {
        let Some(frame) = context.extras.spare.pop() else { return dropped };
        let mut fragment = Packet::new(frame, packet.in_port);
        (fragment.hash, fragment.adjacency) = (packet.hash, packet.adjacency);
        (fragment.out_port, fragment.outcome) = (packet.out_port, packet.outcome);
        fragment.headers = packet.headers;
        if !fill(context, &mut fragment, &bytes) {
            fragment.outcome = Some(Outcome::TooBig);
        } else if encapsulates && let Next::End(outcome) = encapsulate::step(context, &mut fragment)
        {
            fragment.outcome = Some(outcome);
        }
        context.extras.ready.push_back(fragment);
    }
    if encapsulates {
        return Next::Node(Node::Encapsulate);
    }
    Next::End(packet.outcome.unwrap_or(Outcome::TooBig))
}

/// Writes a fragment into a packet's frame; returns whether it fits.
fn fill(context: &Context<'_>, packet: &mut Packet, bytes: &[u8]) -> bool {
    packet.is_plain = false;
    packet.headers.end = bytes.len() as u16;
    context.memory.fill(&mut packet.frame, bytes)
}
