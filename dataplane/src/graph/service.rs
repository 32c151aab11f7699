//! Maps a connection to a service to one of its backends.
//!
//! Handles packets without a session whose destination is a service's address or one of this
//! node's own. The nodes behind it evaluate the translated connection and create its
//! session.

use acl::Address;

use super::{Context, Next, Node, Translation};
use crate::packet::Packet;
use crate::policy;
use crate::services::{Backend, Entry, Kept, choice_hash};
use crate::session::Tuples;
use crate::wire::{Flow, Mac, Role, protocol};
use crate::{Adjacency, Outcome, PortKind, Snapshot};

/// Whether a packet without a session is for a service. Only an address that is reserved for
/// services refuses all other ports: an external one may be a node's as well.
#[inline]
pub(super) fn is_wanted(snapshot: &Snapshot, flow: &Flow) -> bool {
    !snapshot.services().is_empty() && is_for_any(snapshot, flow)
}

#[inline(never)]
fn is_for_any(snapshot: &Snapshot, flow: &Flow) -> bool {
    let services = snapshot.services();
    services.is_claimed(flow.destination) || snapshot.service(flow).is_some()
}

/// Whether the service that a flow is for admits its client: `loadBalancerSourceRanges`.
pub(super) fn admits(snapshot: &Snapshot, flow: &Flow) -> bool {
    let services = snapshot.services();
    let destination = (flow.destination, flow.protocol, flow.destination_port);
    let Some(sources) = services.sources(destination.0, destination.1, destination.2) else {
        return true;
    };
    let admitted = |client: Address| sources.iter().any(|net| net.contains(&client.to_ip()));
    // The kernel may use another one of the node's addresses as the source.
    let own = || snapshot.node_address(flow.source).filter(|_| snapshot.is_own_node(flow.source));
    admitted(flow.source) || own().is_some_and(admitted)
}

/// Whether a session of an earlier generation may not go on because of what its addresses mean now:
/// its service does not admit the client any more, or the next packet of the UDP flow would open
/// another connection. (A TCP client detects that its endpoint is gone, and opens another one
/// itself.)
pub(super) fn is_outdated(snapshot: &Snapshot, tuples: &Tuples) -> bool {
    if !admits(snapshot, &tuples.initiator) {
        return true;
    }
    tuples.initiator.protocol == protocol::UDP
        && (leads_elsewhere(snapshot, tuples) || leaves_otherwise(snapshot, tuples))
}

/// Whether the destination of a flow means another end now: a service came, went or lost the flow's
/// endpoint.
fn leads_elsewhere(snapshot: &Snapshot, tuples: &Tuples) -> bool {
    let Flow { destination: address, destination_port: port, .. } = tuples.responder;
    let Flow { destination, destination_port, .. } = tuples.initiator;
    let Some(entry) = snapshot.service(&tuples.initiator) else {
        let was_of_service = (destination, destination_port) != (address, port);
        return was_of_service || snapshot.services().is_claimed(destination);
    };
    let lists = [entry.backends(false), entry.backends(true)];
    !lists.iter().any(|backends| backends.list().binary_search(&Backend { address, port }).is_ok())
}

/// Whether the flow of a pod is masqueraded and would not be now, or the other way round: its
/// destination has another route.
fn leaves_otherwise(snapshot: &Snapshot, tuples: &Tuples) -> bool {
    let Tuples { initiator, responder, .. } = tuples;
    let client = initiator.source;
    if responder.source == client && !snapshot.may_masquerade() || snapshot.pod_of(client).is_none()
    {
        return false;
    }
    // A pod that reaches itself through a service is seen as the service.
    let is_masqueraded = ![client, initiator.destination].contains(&{ responder.source });
    let masquerades = snapshot.node_address(client).is_some()
        && snapshot
            .route(responder.destination)
            .is_ok_and(|adjacency| snapshot.masquerades(client, adjacency));
    is_masqueraded != masquerades
}

pub(super) fn step(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    if packet.headers.role != Role::Opens {
        return Next::End(Outcome::NoSession);
    }
    let initiator = packet.headers.flow;
    if !admits(context.snapshot, &initiator) {
        return Next::End(Outcome::SourceNotAdmitted);
    }
    let outside = is_outside(context.snapshot, packet);
    let chosen = context.snapshot.service(&initiator).and_then(|entry| {
        choose(context, entry, &initiator, is_external(context.snapshot, packet))
    });
    let Some(backend) = chosen else {
        packet.outcome = Some(Outcome::NoEndpoint);
        return Next::Node(Node::IcmpError);
    };
    let mut responder =
        Flow { destination: backend.address, destination_port: backend.port, ..initiator };
    let mut return_mac = Mac::default();
    let (source, destination) = (responder.source, responder.destination);
    let map = context.snapshot.address_map();
    let refused =
        if outside { policy::refuse_outside(context.snapshot, map, &responder) } else { None };
    let by_host = || policy::refuse_by_host(context.snapshot, map, &responder);
    if let Some(denied) = refused.or_else(by_host) {
        packet.by = denied.by;
        return Next::End(denied.outcome);
    }
    let is_own = |address| context.snapshot.is_own_node(address);
    if source == destination || is_own(source) && is_own(destination) {
        // A pod that reaches itself would reply to itself directly, and the kernel drops packets
        // from its own addresses. Both need another source.
        responder.source = initiator.destination;
    } else {
        let in_port = context.snapshot.port(packet.in_port);
        let by_uplink = in_port.is_some_and(|port| port.kind == PortKind::Uplink);
        if outside && by_uplink {
            let frame = context.memory.bytes(&packet.frame);
            return_mac = frame[6..12].try_into().expect("checked by parse");
        }
        let by_host = in_port.is_some_and(|port| port.kind == PortKind::Host);
        let hides = if by_host && !outside {
            hides_process(context.snapshot, &responder)
        } else {
            // Another node would reply to the client directly, and drops packets that claim
            // another node's pods.
            (outside || by_uplink) && context.snapshot.pod_of(backend.address).is_none()
        };
        if hides {
            let Some(source) = own_source(context.snapshot, &responder) else {
                return Next::End(Outcome::NoRoute);
            };
            responder.source = source;
        }
    }
    context.translate(packet, Translation::forward(responder, return_mac));
    Next::Node(Node::Policy)
}

/// Whether a connection that the kernel sends to a backend needs an address of the switch's as its
/// source, so that replies return to the switch: the backend is reached through the kernel again,
/// or replies outside of tunnels.
fn hides_process(snapshot: &Snapshot, responder: &Flow) -> bool {
    match leaves_by(snapshot, responder.destination) {
        Some(PortKind::Host) => true,
        // Other nodes reply to addresses of pod networks, the host port's own among them, through
        // the switch.
        Some(PortKind::Uplink) => {
            snapshot.replies_in_clear(responder.destination)
                && (snapshot.is_outside(responder.destination)
                    || !snapshot.is_in_pod_networks(responder.source))
        }
        Some(PortKind::Pod) | None => false,
    }
}

/// The source of a connection that is not seen to come from its client: the node's address. Towards
/// this node's kernel, which drops packets from its own addresses and masquerades what it forwards,
/// it is that of the switch.
fn own_source(snapshot: &Snapshot, responder: &Flow) -> Option<Address> {
    let is_to_kernel = leaves_by(snapshot, responder.destination) == Some(PortKind::Host);
    let of_switch = snapshot.switch_address(responder.source).filter(|_| is_to_kernel);
    of_switch.or_else(|| snapshot.node_address(responder.source))
}

fn leaves_by(snapshot: &Snapshot, destination: Address) -> Option<PortKind> {
    let (port, _) = snapshot.egress(snapshot.route(destination).ok()?)?;
    snapshot.port(port).map(|port| port.kind)
}

/// Whether the packet is of a client to whom `externalTrafficPolicy` applies: one outside of this
/// node, as upstream's tests have it. (A pod that asks a load balancer's address gets its endpoint
/// from its own node.)
fn is_external(snapshot: &Snapshot, packet: &Packet) -> bool {
    let source = packet.headers.flow.source;
    snapshot.owner(source).is_none() && !snapshot.is_own_node(source)
}

/// Whether the packet comes from outside the cluster.
fn is_outside(snapshot: &Snapshot, packet: &Packet) -> bool {
    packet.from_peer == Adjacency::NONE && snapshot.is_outside(packet.headers.flow.source)
}

fn choose(
    context: &Context<'_>,
    entry: &Entry,
    initiator: &Flow,
    outside: bool,
) -> Option<Backend> {
    let backends = entry.backends(outside);
    let Some(affinity_s) = entry.port.affinity_s else {
        return backends.choose(choice_hash(initiator));
    };
    let (affinities, now_s) = (context.sessions.affinities(), context.now.seconds());
    let is_backend = |it: &Backend| backends.list().binary_search(it).is_ok();
    let backend = match affinities.find(initiator, now_s) {
        Kept::Now(backend) if is_backend(&backend) => backend,
        // The affinity has expired: chosen as for any connection.
        Kept::Over => backends.choose(choice_hash(initiator))?,
        // Hashes the client alone, so that it reaches the same backend where the affinity table is
        // full.
        Kept::Now(_) | Kept::Never => {
            backends.choose(choice_hash(&Flow { source_port: 0, ..*initiator }))?
        }
    };
    affinities.note(initiator, backend, affinity_s, now_s);
    Some(backend)
}
