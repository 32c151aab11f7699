//! Makes the sessions of connections that both gates let pass.

use super::{Context, Next, Node, Translation};
use crate::packet::Packet;
use crate::session::{Opened, Opening, Refusal, Views};
use crate::wire::{Flow, protocol};
use crate::{Hop, Outcome};

pub(super) fn step(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    let flow = packet.headers.flow;
    let mut views = context.translation(packet).map_or(Views::plain(flow), |it| it.views);
    let hop = packet.hop;
    let from_pod = context.snapshot.masquerades(flow.source, hop);
    if from_pod && let Some(own) = context.snapshot.node_address(flow.source) {
        views.receiver.source = own;
    }
    if let Err(outcome) = open(context, packet, &mut views, hop) {
        return Next::End(outcome);
    }
    if views.is_translated() {
        let to = views.receiver;
        let translation = Translation { views, to, quoted: None, returns: false };
        match context.translations.get_mut(usize::from(packet.translation)) {
            Some(known) => *known = translation,
            None => context.translate(packet, translation),
        }
    }
    context.remember_fragment(packet);
    Next::Node(Node::Rewrite)
}

/// Ports that are tried before a connection is given up.
const ATTEMPTS: u16 = 32;

/// Makes the session, seen from another port if the receiver could not tell it from another one.
/// If another packet of the connection made it meanwhile, `views` are what that one chose.
fn open(
    context: &Context<'_>,
    packet: &Packet,
    views: &mut Views,
    hop: Hop,
) -> Result<(), Outcome> {
    let opening = Opening {
        payer: packet.in_port,
        hop,
        generation: context.snapshot.generation,
        tcp_flags: packet.headers.tcp_flags,
    };
    let own = context.snapshot.is_own_node(views.receiver.source)
        && views.receiver.source != views.opener.source;
    // Connections of pods must not seem to come from a port that the kernel uses itself.
    let wanted = views.receiver;
    for n in 0..ATTEMPTS {
        let port = match n {
            0 if !own => Some(wanted.source_port),
            _ => other_port(context, &wanted, own, packet.hash, n),
        };
        let Some(port) = port else { break };
        views.receiver = Flow { source_port: port, ..wanted };
        match context.sessions.open(views, &opening, context.now.seconds()) {
            Ok(Opened::New(_)) => return Ok(()),
            // What the receiver sends back opens nothing; its answers belong to the session.
            Ok(Opened::Known(found)) if found.translated && !found.forward => {
                return Err(Outcome::NoSession);
            }
            Ok(Opened::Known(found)) => {
                *views = context.sessions.views(&found).ok_or(Outcome::NoSession)?;
                return Ok(());
            }
            Err(Refusal::Full) => return Err(Outcome::SessionTableFull),
            Err(Refusal::Quota) => return Err(Outcome::SessionQuota),
            Err(Refusal::Taken) => {}
        }
    }
    Err(Outcome::NoTranslationPort)
}

/// Another port for a connection to seem to come from; its `n`th try.
fn other_port(context: &Context<'_>, receiver: &Flow, own: bool, hash: u64, n: u16) -> Option<u16> {
    let has_ports = matches!(
        receiver.protocol,
        protocol::TCP | protocol::UDP | protocol::SCTP | protocol::ICMP | protocol::ICMPV6
    );
    let ports = if own { context.snapshot.translation_ports() } else { 1024..=u16::MAX };
    let count = u64::from(ports.end().checked_sub(*ports.start())?) + 1;
    // Steps of an odd size visit many ports before one comes again.
    let at = (hash >> 8).wrapping_add(u64::from(n) * ((hash >> 40) | 1)) % count;
    has_ports.then_some(ports.start() + at as u16)
}
