//! Generates ICMP errors and TCP resets for dropped packets, as a router does.
//!
//! Limits their rate for each port (RFC 1812, section 4.3.2.8; RFC 4443, section 2.4); beyond it,
//! packets are dropped silently.

use super::{Context, Next, Node};
use crate::packet::Packet;
use crate::wire::icmp_error::{self, IcmpError, LONGEST};
use crate::{Adjacency, Now, Outcome, PortId, PortKind};

pub(super) fn step(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    let outcome = packet.outcome.unwrap_or(Outcome::NoRoute);
    let dropped = Next::End(outcome);
    let error = match outcome {
        Outcome::TtlExpired => IcmpError::TimeExceeded,
        Outcome::TooBig => IcmpError::TooBig(context.snapshot.mtu(packet.adjacency)),
        Outcome::NoEndpoint => IcmpError::PortUnreachable,
        _ => return dropped,
    };
    packet.out_port = PortId::NONE;
    let flow = packet.headers.flow;
    let snapshot = context.snapshot;
    let is_from_host = snapshot.port(packet.in_port).is_some_and(|it| it.kind == PortKind::Host);
    let from = match error {
        // The error about a service comes from the service's address.
        IcmpError::PortUnreachable => Some(flow.destination),
        // The kernel drops packets from its own addresses.
        _ if is_from_host => snapshot.switch_address(flow.source).or(Some(flow.destination)),
        _ => snapshot.node_address(flow.source),
    };
    let Some(from) = from else { return dropped };
    if !context.rate_limiter.admits(packet.in_port, context.now) {
        return dropped;
    }
    let mut text = [0; LONGEST];
    let frame = context.memory.bytes(&packet.frame);
    let Some(length) = icmp_error::write(error, frame, &packet.headers, from, &mut text) else {
        return dropped;
    };
    if !context.memory.fill(&mut packet.frame, &text[..length]) {
        return dropped;
    }
    packet.is_reply = true;
    if packet.from_peer == Adjacency::NONE {
        packet.out_port = packet.in_port;
        return dropped;
    }
    packet.adjacency = packet.from_peer;
    Next::Node(Node::Encapsulate)
}

/// Errors towards a port: burst, and rate a second.
const BURST: u32 = 50;
const RATE: u32 = 1000;

/// Limits errors by a token bucket for each port.
#[derive(Default)]
pub(crate) struct RateLimiter {
    ports: Vec<Bucket>,
}

#[derive(Clone, Copy)]
struct Bucket {
    left: u32,
    filled: Now,
}

impl RateLimiter {
    fn admits(&mut self, port: PortId, now: Now) -> bool {
        let place = usize::from(port.0);
        if self.ports.len() <= place {
            self.ports.resize(place + 1, Bucket { left: BURST, filled: now });
        }
        let bucket = &mut self.ports[place];
        let passed = now.0.saturating_sub(bucket.filled.0);
        let earned = (passed.as_micros() * u128::from(RATE) / 1_000_000).min(u128::from(BURST));
        if earned > 0 {
            *bucket = Bucket { left: (bucket.left + earned as u32).min(BURST), filled: now };
        }
        let may = bucket.left > 0;
        bucket.left -= u32::from(may);
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_rate_is_limited_for_each_port_alone() {
        let mut rate_limiter = RateLimiter::default();
        let told = |rate_limiter: &mut RateLimiter, port: u16, millis: u64| {
            let now = Now(Duration::from_millis(millis));
            (0..10_000).filter(|_| rate_limiter.admits(PortId(port), now)).count()
        };
        assert_eq!(told(&mut rate_limiter, 3, 0), 50);
        assert_eq!(told(&mut rate_limiter, 3, 0), 0);
        assert_eq!(told(&mut rate_limiter, 4, 0), 50);
        assert_eq!(told(&mut rate_limiter, 3, 10), 10);
        assert_eq!(told(&mut rate_limiter, 3, 10_000), 50);
    }
}
