//! Routes a packet that no session knows, asks the tables, and makes the session.

use super::{Context, Next, Node};
use crate::packet::Packet;
use crate::policy::judge;
use crate::session::{Opening, Refusal};
use crate::wire::Role;
use crate::{Outcome, Verdict};

pub(super) fn step(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    let headers = &packet.headers;
    let out_port = match context.route(packet, headers.flow.destination) {
        Ok(port) => port,
        Err(outcome) => return Next::End(outcome),
    };
    let judgement = judge(context.snapshot, &headers.flow);
    if headers.role == Role::Follows && judgement.outcome != Outcome::NoPolicy {
        return Next::End(Outcome::NoSession);
    }
    packet.out_port = out_port;
    packet.by = judgement.by;
    if judgement.outcome.verdict() != Verdict::Forward {
        return Next::End(judgement.outcome);
    }
    if judgement.outcome != Outcome::NoPolicy {
        let opening = Opening {
            payer: packet.in_port,
            out_port,
            generation: context.snapshot.generation,
            tcp_flags: headers.tcp_flags,
        };
        let now_s = context.now.seconds();
        match context.sessions.open(packet.hash, &headers.flow, &opening, now_s) {
            Ok(_) => {}
            Err(Refusal::Full) => return Next::End(Outcome::SessionTableFull),
            Err(Refusal::Quota) => return Next::End(Outcome::SessionQuota),
        }
    }
    context.remember_fragment(packet);
    packet.outcome = Some(judgement.outcome);
    Next::Node(Node::Rewrite)
}
