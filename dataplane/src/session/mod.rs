//! Sessions: permitted connections, in both directions.
//!
//! One table ([`table`]) serves all workers. A session is one cache line ([`record`]) found through
//! an index of buckets ([`index`]) under a hash that is the same for both directions ([`hash`]). A
//! lookup takes no lock; creating a session takes a lock that only packets of the same few flows
//! contend for.
//!
//! A connection to a service has different tuples at its two ends; its session is found by either,
//! and holds both ([`translation`]).
//!
//! A session holds no verdict but the number of the policy generation that allowed it, so that
//! a change of policy sweeps nothing: each session is re-evaluated at its next packet.
//!
//! The table may stand in a file ([`store`]), so that connections outlive the process.
//!
//! The table has a fixed size. Every session has an [`Owner`], and each owner a quota
//! ([`table::quota`]): a pod's flood leaves every other pod its guarantee, and a flood from another
//! cluster node or from outside leaves room for the other senders there.
//!
//! Beside each record stands the session's [`Usage`]: when it was created and, on demand, its packets
//! and bytes.
//!
//! When an address changes its pod, the sessions that touch it end ([`table::departed`]).

mod found;
mod hash;
mod index;
mod owner;
mod pass;
mod record;
mod region;
mod store;
mod table;
mod translation;
mod usage;

pub use found::{Found, SessionId};
pub use owner::Owner;
pub use pass::{Passing, Translated, Unpassed};
pub use table::{Guess, Opened, Opening, Refusal, Sessions, TupleOrigin};
pub use translation::Tuples;
pub use usage::Usage;

use std::time::Duration;

use crate::wire::{protocol, tcp_flags};

/// How long sessions live without a packet; those of connections in use are the defaults of VPP's
/// ACL plugin, those of connections without a reply are Linux' own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// TCP after the handshake.
    pub tcp_established: Duration,
    /// TCP after FIN or RST.
    pub tcp_transient: Duration,
    /// UDP after a reply.
    pub udp: Duration,
    /// Everything else after a reply.
    pub other: Duration,
    /// TCP before the handshake is complete, and everything else before a reply; at most what the
    /// protocol has otherwise.
    pub opening: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            tcp_established: Duration::from_secs(24 * 3600),
            tcp_transient: Duration::from_secs(120),
            udp: Duration::from_secs(600),
            other: Duration::from_secs(600),
            opening: Duration::from_secs(30),
        }
    }
}

/// The state of a connection, as bits: for TCP the flags seen, for others whether the responder has
/// replied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct State(u8);

impl State {
    const SYN: u8 = 1;
    const SYN_ACK: u8 = 2;
    const ACK: u8 = 4;
    const FIN_FORWARD: u8 = 8;
    const FIN_REVERSE: u8 = 16;
    const RST: u8 = 32;
    const ANSWERED: u8 = 64;

    /// The state after a packet of the initiator (`forward`) or of the responder; `flags` are those
    /// of TCP.
    #[must_use]
    #[inline]
    pub fn after(self, protocol: u8, flags: u8, forward: bool) -> Self {
        match protocol {
            protocol::TCP => self.after_tcp(flags, forward),
            _ => Self(self.0 | (Self::ANSWERED * u8::from(!forward))),
        }
    }

    #[inline]
    fn after_tcp(self, flags: u8, forward: bool) -> Self {
        let has = |wanted: u8| flags & wanted == wanted;
        let mut bits = self.0;
        if has(tcp_flags::RST) {
            bits |= Self::RST;
        }
        match forward {
            true if has(tcp_flags::SYN) && !has(tcp_flags::ACK) => bits |= Self::SYN,
            true if has(tcp_flags::ACK) && bits & Self::SYN_ACK != 0 => bits |= Self::ACK,
            false if has(tcp_flags::SYN | tcp_flags::ACK) => bits |= Self::SYN_ACK,
            _ => {}
        }
        if has(tcp_flags::FIN) {
            bits |= if forward { Self::FIN_FORWARD } else { Self::FIN_REVERSE };
        }
        Self(bits)
    }

    /// TCP: the handshake is complete, and neither end has closed.
    #[inline]
    pub fn is_established(self) -> bool {
        self.0 == Self::SYN | Self::SYN_ACK | Self::ACK
    }

    /// TCP: the responder has accepted, and neither the handshake's last packet nor an end was seen.
    #[inline]
    pub fn is_accepted(self) -> bool {
        self.0 == Self::SYN | Self::SYN_ACK
    }

    /// Others than TCP: the responder has answered.
    #[inline]
    pub fn is_answered(self) -> bool {
        self.0 & Self::ANSWERED != 0
    }

    /// TCP: neither is the handshake complete nor has an end closed.
    #[inline]
    fn is_opening(self) -> bool {
        self.0 & (Self::ACK | Self::FIN_FORWARD | Self::FIN_REVERSE | Self::RST) == 0
    }

    /// Its name: `half-open`, `established`, `closing` (one end has closed) or `ended` for TCP, else
    /// `unanswered` or `answered`.
    pub fn name(self, protocol: u8) -> &'static str {
        match protocol {
            protocol::TCP if self.is_established() => "established",
            protocol::TCP if self.is_over() => "ended",
            protocol::TCP if self.is_opening() => "half-open",
            protocol::TCP => "closing",
            _ if self.is_answered() => "answered",
            _ => "unanswered",
        }
    }

    /// TCP: both ends have closed, so the initiator may reuse the ports.
    #[inline]
    pub fn is_over(self) -> bool {
        const BOTH: u8 = State::FIN_FORWARD | State::FIN_REVERSE;
        self.0 & Self::RST != 0 || self.0 & BOTH == BOTH
    }
}

/// [`Timeouts`] in seconds, as packets need them.
#[derive(Clone, Copy, Debug)]
struct Limits {
    tcp_established: u32,
    tcp_transient: u32,
    udp: u32,
    other: u32,
    opening: u32,
    /// The shortest of them.
    least: u32,
}

impl From<Timeouts> for Limits {
    fn from(timeouts: Timeouts) -> Self {
        let Timeouts { tcp_established, tcp_transient, udp, other, opening } = timeouts;
        let all = [tcp_established, tcp_transient, udp, other, opening].map(seconds);
        let [tcp_established, tcp_transient, udp, other, opening] = all;
        let least = all.into_iter().fold(u32::MAX, u32::min);
        Self { tcp_established, tcp_transient, udp, other, opening, least }
    }
}

impl Limits {
    /// Seconds that a session may be idle.
    #[inline]
    fn of(&self, protocol: u8, state: State) -> u32 {
        let (answered, is_opening) = match protocol {
            protocol::UDP => (self.udp, !state.is_answered()),
            protocol::TCP if state.is_established() => (self.tcp_established, false),
            protocol::TCP => (self.tcp_transient, state.is_opening()),
            _ => (self.other, !state.is_answered()),
        };
        if is_opening { self.opening.min(answered) } else { answered }
    }
}

fn seconds(timeout: Duration) -> u32 {
    timeout.as_secs().min(u64::from(u32::MAX)) as u32
}
