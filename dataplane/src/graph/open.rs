//! Creates the sessions of connections that both ACLs permit.

use super::owner::owner;
use super::{Context, Next, Node, Translation, session};
use crate::packet::Packet;
use crate::session::{Found, Opened, Opening, Owner, Refusal, Tuples};
use crate::wire::{Flow, protocol};
use crate::{Adjacency, Outcome};

pub(super) fn step(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    let mut tuples = context.tuples(packet);
    let (source, adjacency) = (packet.headers.flow.source, packet.adjacency);
    let from_pod = context.snapshot.masquerades(source, adjacency);
    if from_pod && let Some(own) = context.snapshot.node_address(source) {
        tuples.responder.source = own;
    }
    let opening = Opening {
        owner: owner(context, packet),
        adjacency,
        generation: context.snapshot.generation,
        tcp_flags: packet.headers.tcp_flags,
    };
    // A connection that returns to the switch at the node's address must not use a port of the
    // kernel's own dynamic range. A process of the node may have that address already.
    let Flow { source: seen, destination, .. } = tuples.responder;
    let returns_in_clear = || {
        tuples.is_translated()
            && context.snapshot.host() == Some(packet.in_port)
            && context.snapshot.host().map(Adjacency::port) != Some(adjacency)
            && context.snapshot.pod_of(destination).is_none()
            && context.snapshot.replies_in_clear(destination)
            && !context.snapshot.is_in_pod_networks(seen)
    };
    let own = context.snapshot.is_own_node(seen) && (seen != source || returns_in_clear());
    if !own {
        let opened = try_open(context, packet, &tuples, &opening);
        if !matches!(opened, Err(Refusal::Taken)) {
            return go_on(context, packet, &tuples, opened);
        }
    }
    open_elsewhere(context, packet, tuples, &opening, own)
}

/// Sends a packet on by its new session, or by the one that another packet of the connection created first.
#[inline(always)]
fn go_on(
    context: &mut Context<'_>,
    packet: &mut Packet,
    tuples: &Tuples,
    opened: Result<Opened, Refusal>,
) -> Next {
    match opened {
        Ok(Opened::New(id)) => context.count(id, packet),
        // A reply does not open a connection.
        Ok(Opened::Known(found)) if found.translated && !found.forward => {
            return Next::End(Outcome::NoSession);
        }
        Ok(Opened::Known(found)) => return join(context, packet, &found),
        Err(Refusal::Full) => return Next::End(Outcome::SessionTableFull),
        Err(Refusal::Quota) => return Next::End(Outcome::SessionQuota),
        Err(Refusal::Taken) => return Next::End(Outcome::NoTranslationPort),
    }
    if tuples.is_translated() {
        let translation = Translation::forward(tuples.responder, tuples.return_mac);
        match context.translations.get_mut(usize::from(packet.translation)) {
            Some(known) => *known = translation,
            None => context.translate(packet, translation),
        }
    }
    context.remember_fragment(packet, true);
    Next::Node(Node::Rewrite)
}

/// Forwards a packet by the session that another packet of its connection created first, with that
/// session's translation.
#[inline(never)]
fn join(context: &mut Context<'_>, packet: &mut Packet, known: &Found) -> Next {
    packet.translation = Packet::AS_IT_IS;
    let outcome = packet.outcome.unwrap_or(Outcome::Session);
    match session::go_on(context, packet, known, outcome) {
        Next::Node(Node::Rewrite) => Next::Node(Node::Rewrite),
        Next::Node(Node::IcmpError) => Next::End(Outcome::PolicyDenied),
        Next::Node(_) => Next::End(Outcome::NoSession),
        end => end,
    }
}

/// Other source ports to try before a connection is refused.
const ATTEMPTS: usize = 32;

/// Creates the session with another source port.
#[cold]
fn open_elsewhere(
    context: &mut Context<'_>,
    packet: &mut Packet,
    mut tuples: Tuples,
    opening: &Opening,
    own: bool,
) -> Next {
    let wanted = tuples.responder;
    let ports = other_ports(context, &wanted, own.then_some(opening.owner), packet.hash);
    let opened = ports.take(ATTEMPTS).find_map(|port| {
        tuples.responder = Flow { source_port: port, ..wanted };
        let opened = try_open(context, packet, &tuples, opening);
        (!matches!(opened, Err(Refusal::Taken))).then_some(opened)
    });
    go_on(context, packet, &tuples, opened.unwrap_or(Err(Refusal::Taken)))
}

#[inline]
fn try_open(
    context: &Context<'_>,
    packet: &Packet,
    tuples: &Tuples,
    opening: &Opening,
) -> Result<Opened, Refusal> {
    context.sessions.open_hashed(tuples, packet.hash, opening, context.now.seconds())
}

/// Alternative source ports of a connection: those of the node's own address that `of` may
/// use, or any.
fn other_ports<'a>(
    context: &'a Context<'_>,
    responder: &Flow,
    of: Option<Owner>,
    hash: u64,
) -> impl Iterator<Item = u16> + use<'a> {
    let has_ports = matches!(
        responder.protocol,
        protocol::TCP | protocol::UDP | protocol::SCTP | protocol::ICMP | protocol::ICMPV6
    );
    let ports = match of {
        Some(_) => context.snapshot.translation_ports(),
        None => 1024..=u16::MAX,
    };
    let span = ports.end().checked_sub(*ports.start()).filter(|_| has_ports);
    let count = span.map_or(0, |span| u64::from(span) + 1);
    // An odd step visits many ports before one repeats.
    let (first, step) = (hash >> 8, (hash >> 40) | 1);
    let at = move |n: u64| first.wrapping_add(n.wrapping_mul(step)) % count;
    let all = (1..=count).map(move |n| ports.start() + at(n) as u16);
    // A quarter of very few ports may be none.
    let of = of.filter(|_| count >= LEAST_DIVIDED);
    all.filter(move |port| of.is_none_or(|owner| context.sessions.may_use_port(owner, *port)))
}

/// Fewest translation ports that are divided among owners.
const LEAST_DIVIDED: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::icmp_error::RateLimiter;
    use crate::graph::reject::Extras;
    use crate::graph::waiting::Waiting;
    use crate::policy::PolicyBatch;
    use crate::session::{Sessions, Timeouts};
    use crate::{AclBinding, Memory, Now, Parts, PortId, PortKind, PortState, Snapshot};

    /// Two workers take a packet of one new connection each and choose different backends. The
    /// second packet takes the first one's, in its addresses and in its way out.
    #[test]
    fn a_packet_leaves_where_the_session_made_meanwhile_leads() {
        let address = |n: u32| acl::Address::from_v4_bits(0x0a01_0002 + n);
        let pod = |n| PortState {
            addresses: vec![address(n)],
            to_pod: AclBinding::Open,
            from_pod: AclBinding::Open,
            ..PortState::new(format!("default/pod{n}"), PortKind::Pod)
        };
        let ports = (0..3).map(|n| Some(pod(n))).collect();
        let snapshot = Snapshot::new(Parts { generation: 1, ports, ..Parts::default() });
        let initiator = Flow {
            source: address(0),
            destination: acl::Address::from_v4_bits(0x0a60_0001),
            source_port: 4000,
            destination_port: 80,
            protocol: protocol::UDP,
        };
        let to = |n| Flow { destination: address(n), ..initiator };
        let tuples = |n| Tuples { responder: to(n), ..Tuples::plain(initiator) };
        let sessions = Sessions::new(16, 4, Timeouts::default());
        let opening = Opening {
            owner: Owner::port(PortId(0)),
            adjacency: Adjacency::port(PortId(1)),
            generation: 1,
            tcp_flags: 0,
        };
        sessions.open(&tuples(1), &opening, 0).unwrap();

        let (memory, mut frames) = Memory::heap(512, 1);
        let mut packet = Packet::new(frames.pop().unwrap(), PortId(0));
        packet.headers.flow = initiator;
        packet.hash = sessions.hash(&initiator);
        packet.adjacency = Adjacency::port(PortId(2));
        packet.outcome = Some(Outcome::PolicyAllowed);
        let (mut waiting, mut rate_limiter) = (Waiting::default(), RateLimiter::default());
        let (mut translations, mut policy_batch) = (Vec::new(), PolicyBatch::default());
        let mut context = Context {
            snapshot: &snapshot,
            memory: &memory,
            sessions: &sessions,
            waiting: &mut waiting,
            rate_limiter: &mut rate_limiter,
            extras: &mut Extras::default(),
            translations: &mut translations,
            policy_batch: &mut policy_batch,
            stale: &mut Vec::new(),
            staged: &mut Vec::new(),
            verifier: &mut Default::default(),
            tunnel: Default::default(),
            tunnel_port: u32::MAX,
            counts: false,
            traces: false,
            now: Now::default(),
        };
        context.translate(&mut packet, Translation::forward(to(2), Default::default()));
        assert_eq!(step(&mut context, &mut packet), Next::Node(Node::Rewrite));
        assert_eq!(context.tuples(&packet), tuples(1));
        assert_eq!(packet.adjacency, Adjacency::port(PortId(1)));
    }
}
