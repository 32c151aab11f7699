//! Generates ICMP errors and TCP resets for dropped packets, as a router does.
//!
//! Limits their rate for each owner of sessions, a port or a remote sender (RFC 1812, section 4.3.2.8;
//! RFC 4443, section 2.4); beyond it, packets are dropped silently.

use ahash::AHashMap;

use super::owner::owner;
use super::{Context, Next, Node};
use crate::packet::Packet;
use crate::session::Owner;
use crate::wire::icmp_error::{self, IcmpError, LONGEST};
use crate::{Adjacency, Now, Outcome, PortId, PortKind};

/// A reply to a packet's sender.
pub(super) enum Reply {
    /// It has so many bytes.
    Written(usize),
    /// The packet gets none.
    None,
    /// The sender has had too many.
    Limited,
}

pub(super) fn step(context: &mut Context<'_>, packet: &mut Packet) -> Next {
    let outcome = packet.outcome.unwrap_or(Outcome::NoRoute);
    let dropped = Next::End(outcome);
    let error = match outcome {
        Outcome::TtlExpired => IcmpError::TimeExceeded,
        Outcome::TooBig => IcmpError::TooBig(context.snapshot.mtu(packet.adjacency)),
        Outcome::NoEndpoint => IcmpError::PortUnreachable,
        Outcome::PolicyDenied => IcmpError::Prohibited,
        _ => return dropped,
    };
    packet.out_port = PortId::NONE;
    let mut text = [0; LONGEST];
    let Reply::Written(length) = reply(context, packet, error, &mut text) else { return dropped };
    if !context.memory.fill(&mut packet.frame, &text[..length]) {
        return dropped;
    }
    return_to_sender(packet)
}

/// Writes the error about a packet, if its sender's rate allows one.
pub(super) fn reply(
    context: &mut Context<'_>,
    packet: &Packet,
    error: IcmpError,
    text: &mut [u8; LONGEST],
) -> Reply {
    let flow = packet.headers.flow;
    let snapshot = context.snapshot;
    let is_from_host = snapshot.port(packet.in_port).is_some_and(|it| it.kind == PortKind::Host);
    let from = match error {
        // The error about a service comes from the service's address, as does the one about a denial:
        // from the address that the sender knows the other end by.
        IcmpError::PortUnreachable | IcmpError::Prohibited => Some(flow.destination),
        // The kernel drops packets from its own addresses.
        _ if is_from_host => snapshot.switch_address(flow.source).or(Some(flow.destination)),
        _ => snapshot.node_address(flow.source),
    };
    let Some(from) = from else { return Reply::None };
    if !context.admits_error(owner(context, packet)) {
        return Reply::Limited;
    }
    let frame = context.memory.bytes(&packet.frame);
    icmp_error::write(error, frame, &packet.headers, from, text).map_or(Reply::None, Reply::Written)
}

/// Sends a packet whose frame holds the reply to it back where it came from.
pub(super) fn return_to_sender(packet: &mut Packet) -> Next {
    packet.is_reply = true;
    if packet.from_peer == Adjacency::NONE {
        packet.out_port = packet.in_port;
        return Next::End(packet.outcome.unwrap_or(Outcome::NoRoute));
    }
    packet.adjacency = packet.from_peer;
    Next::Node(Node::Encapsulate)
}

impl Context<'_> {
    /// Whether one more reply to this owner is within its rate; counts it.
    pub(super) fn admits_error(&mut self, owner: Owner) -> bool {
        self.rate_limiter.admits(owner, self.now)
    }
}

/// Errors towards one owner: burst, and rate a second.
const BURST: u32 = 50;
const RATE: u32 = 1000;
/// Errors towards all remote owners together: so many times that of one.
const ALL_REMOTE: u32 = 16;

/// Limits errors by a token bucket for each owner, and one for all remote owners. The number of owners
/// is bounded.
#[derive(Default)]
pub(crate) struct RateLimiter {
    owners: AHashMap<Owner, Bucket>,
    all_remote: Option<Bucket>,
}

#[derive(Clone, Copy)]
struct Bucket {
    left: u32,
    filled: Now,
}

impl RateLimiter {
    fn admits(&mut self, owner: Owner, now: Now) -> bool {
        let full = |times: u32| Bucket { left: BURST * times, filled: now };
        let own = self.owners.entry(owner).or_insert_with(|| full(1));
        own.fill(1, now);
        if !owner.is_remote() {
            return own.take();
        }
        let all = self.all_remote.get_or_insert_with(|| full(ALL_REMOTE));
        all.fill(ALL_REMOTE, now);
        all.left > 0 && own.take() && all.take()
    }
}

impl Bucket {
    /// Adds what was earned since, at so many times the rate of one owner.
    fn fill(&mut self, times: u32, now: Now) {
        let passed = now.0.saturating_sub(self.filled.0);
        let most = BURST * times;
        let earned = passed.as_micros() * u128::from(RATE * times) / 1_000_000;
        let earned = earned.min(u128::from(most)) as u32;
        if earned > 0 {
            *self = Self { left: (self.left + earned).min(most), filled: now };
        }
    }

    fn take(&mut self) -> bool {
        let has_some = self.left > 0;
        self.left -= u32::from(has_some);
        has_some
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::{Sessions, Timeouts};
    use std::time::Duration;

    #[test]
    fn the_rate_is_limited_for_each_owner_alone_and_for_all_remote_ones() {
        let mut rate_limiter = RateLimiter::default();
        let mut told = |owner: Owner, millis: u64| {
            let now = Now(Duration::from_millis(millis));
            (0..10_000).filter(|_| rate_limiter.admits(owner, now)).count()
        };
        let port = |n: u16| Owner::port(PortId(n));
        assert_eq!(told(port(3), 0), 50);
        assert_eq!(told(port(3), 0), 0);
        assert_eq!(told(port(4), 0), 50);
        assert_eq!(told(port(3), 10), 10);
        assert_eq!(told(port(3), 10_000), 50);
        let sessions = Sessions::new(65_536, 4, Timeouts::default());
        let remote = |n: u32| sessions.remote_owner(acl::Address::from_v4_bits(n << 8), false);
        assert_eq!((told(remote(1), 10_000), told(remote(1), 10_000)), (50, 0));
        let all: usize = (2..500).map(|n| told(remote(n), 10_000)).sum();
        assert_eq!(all, 750);
        assert_eq!(told(port(5), 10_000), 50, "pods here are no remote owners");
    }
}
