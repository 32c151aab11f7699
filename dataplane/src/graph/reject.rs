//! Replies to connections that policies deny, where the pod whose ACL denies asks for them.
//!
//! | denied | the initiator receives | the other end receives |
//! |---|---|---|
//! | a packet that opens a connection | a TCP reset, or an ICMP error | nothing |
//! | a packet of a live TCP connection, once | a TCP reset | a TCP reset |
//! | a packet of a refused TCP connection | its sender, whichever it is, receives a TCP reset | |
//! | any other packet of a session | an ICMP error, if it is the sender | nothing |

use std::collections::VecDeque;

use acl::Address;

use super::icmp_error::{Reply, reply, return_to_sender};
use super::owner::owner;
use super::session::{route, translation_of};
use super::{Context, Next, Node};
use crate::packet::Packet;
use crate::session::{Found, Tuples};
use crate::snapshot::DeniedReply;
use crate::wire::icmp_error::{IcmpError, LONGEST, write_abort};
use crate::wire::{self, Fragment, Headers, protocol};
use crate::{Frame, FreeList, Outcome, PortId, Snapshot};

/// Packets that take frames of their own beside those of the vector: resets to the senders of
/// packets whose frames have become resets to the other ends, and fragments.
#[derive(Default)]
pub(crate) struct Extras {
    pub(super) spare: Vec<Frame>,
    /// They only have to be sent, in this order.
    pub(super) ready: VecDeque<Packet>,
}

/// Frames kept for them: as many as the longest datagram has fragments of 1,450 bytes. Beyond them
/// the other end is reset at its own next packet, and no packet is cut.
const SPARE: usize = 48;

impl Extras {
    pub(super) fn stock(&mut self, free: &mut FreeList) {
        let missing = SPARE.saturating_sub(self.spare.len());
        self.spare.extend(std::iter::from_fn(|| free.take()).take(missing));
    }

    pub(super) fn spare_frames(&self) -> usize {
        self.spare.len()
    }

    pub(super) fn take_ready(&mut self) -> Option<Packet> {
        self.ready.pop_front()
    }

    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Packet> + use<'_> {
        let spare = self.spare.drain(..).map(|frame| Packet::new(frame, PortId::NONE));
        self.ready.drain(..).chain(spare)
    }
}

/// Ends a packet that opens a connection which policies deny, with a reply to its sender if it gets one.
#[cold]
pub(super) fn opening(context: &Context<'_>, packet: &Packet) -> Next {
    match replies(context, packet, End::Initiator(packet.headers.flow.source)) {
        true => Next::Node(Node::IcmpError),
        false => Next::End(Outcome::PolicyDenied),
    }
}

/// Ends a packet of a session that policies deny.
#[cold]
pub(super) fn session(
    context: &mut Context<'_>,
    packet: &mut Packet,
    found: &Found,
    tuples: &Tuples,
) -> Next {
    let denied = Next::End(Outcome::PolicyDenied);
    if !context.snapshot.rejects() || matches!(packet.headers.fragment, Fragment::Later(_)) {
        return denied;
    }
    packet.outcome = Some(Outcome::PolicyDenied);
    let is_tcp = found.protocol() == protocol::TCP;
    let is_live = is_tcp && !found.state().is_refused() && !found.state().is_over();
    let initiator = End::Initiator(tuples.initiator.source);
    let responder = End::Responder(tuples.responder.destination);
    let (sender, other) =
        if found.forward { (initiator, responder) } else { (responder, initiator) };
    let to_sender = replies(context, packet, sender);
    if is_live
        && packet.headers.fragment == Fragment::Whole
        && replies(context, packet, other)
        && let Some(next) = abort(context, packet, found, tuples, to_sender)
    {
        return next;
    }
    match to_sender && (is_tcp || found.forward) {
        true => Next::Node(Node::IcmpError),
        false => denied,
    }
}

/// An end of a connection by its address.
#[derive(Clone, Copy)]
enum End {
    Initiator(Address),
    Responder(Address),
}

impl End {
    /// Whether it is in the cluster. Behind the address of a node that opens a connection may be
    /// a client outside, whose connection the node has translated.
    fn is_in_cluster(self, snapshot: &Snapshot) -> bool {
        match self {
            Self::Initiator(address) => snapshot.is_pod(address),
            Self::Responder(address) => !snapshot.is_outside(address),
        }
    }
}

/// Whether the pod whose ACL denied has replies sent to this end of the connection.
fn replies(context: &Context<'_>, packet: &Packet, end: End) -> bool {
    let snapshot = context.snapshot;
    let by = packet.by.to_pod.or(packet.by.from_pod);
    match by.and_then(|at| snapshot.port(at.port)).map(|port| port.denied_reply) {
        None | Some(DeniedReply::Drop) => false,
        Some(DeniedReply::Reject) => end.is_in_cluster(snapshot),
        Some(DeniedReply::RejectAll) => true,
    }
}

/// Turns a packet of a live TCP connection into the reset by which its sender would end the connection,
/// on its way to the other end, and sends the sender one in another frame. Returns `None` if the other
/// end is not reached, or no frame is left.
fn abort(
    context: &mut Context<'_>,
    packet: &mut Packet,
    found: &Found,
    tuples: &Tuples,
    to_sender: bool,
) -> Option<Next> {
    if found.translated {
        context.translate(packet, translation_of(found, tuples));
    }
    packet.adjacency = route(context, packet).ok()?;
    if to_sender {
        reset_sender(context, packet)?;
    } else if !context.admits_error(owner(context, packet)) {
        return Some(Next::End(Outcome::PolicyDenied));
    }
    let mut text = [0; LONGEST];
    let length = write_abort(context.memory.bytes(&packet.frame), &packet.headers, &mut text);
    let parsed = wire::parse(&text[..length]).ok()?;
    if !context.memory.fill(&mut packet.frame, &text[..length]) {
        return None;
    }
    // Observers see the packet that was denied.
    packet.headers = Headers { tcp_flags: packet.headers.tcp_flags, ..parsed };
    packet.is_plain = false;
    packet.is_reply = true;
    Some(Next::Node(Node::Rewrite))
}

/// Sends a packet's sender a reset in a spare frame; returns `None` if there is none, or its rate is spent.
fn reset_sender(context: &mut Context<'_>, packet: &Packet) -> Option<()> {
    let mut frame = context.extras.spare.pop()?;
    let mut text = [0; LONGEST];
    let fills = match reply(context, packet, IcmpError::Prohibited, &mut text) {
        Reply::Written(length) => context.memory.fill(&mut frame, &text[..length]),
        // A packet that resets the connection gets none.
        Reply::None => false,
        Reply::Limited => {
            context.extras.spare.push(frame);
            return None;
        }
    };
    if !fills {
        context.extras.spare.push(frame);
        return Some(());
    }
    let mut reset = Packet::new(frame, packet.in_port);
    (reset.from_peer, reset.hash, reset.headers) = (packet.from_peer, packet.hash, packet.headers);
    reset.outcome = packet.outcome;
    if return_to_sender(&mut reset) == Next::Node(Node::Encapsulate) {
        super::encapsulate::step(context, &mut reset);
    }
    context.extras.ready.push_back(reset);
    Some(())
}
