//! Finds whose quota a session counts against.

use super::Context;
use crate::packet::Packet;
use crate::session::Owner;
use crate::{Adjacency, PortKind};

/// The owner whose quota the connection of an initiator's packet counts against.
pub(super) fn owner(context: &Context<'_>, packet: &Packet) -> Owner {
    let (snapshot, sender) = (context.snapshot, packet.headers.flow.source);
    let kind = snapshot.line(packet.in_port).map(|port| port.kind);
    match kind {
        Some(PortKind::Pod) => Owner::port(packet.in_port),
        Some(PortKind::Host) if snapshot.is_own_node(sender) => Owner::port(packet.in_port),
        _ => {
            let is_in_cluster =
                packet.from_peer != Adjacency::NONE || snapshot.routes().find(sender).is_some();
            context.sessions.remote_owner(sender, is_in_cluster)
        }
    }
}
