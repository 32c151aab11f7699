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
//! node or from outside leaves room for the other senders there. Within its quota an owner's
//! oldest sessions make room for its new ones ([`table::evict`]).
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
pub use pass::{Passing, Translated};
pub use store::SESSION_BYTES;
pub use table::{Evicted, Guess, Opened, Opening, Refusal, Sessions, TupleOrigin};
pub use translation::Tuples;
pub use usage::Usage;

use std::time::Duration;

use crate::dns::DNS_PORT;
use crate::wire::{Flow, protocol, tcp_flags};

/// Lifetimes of sessions without a packet. Most are those of Linux' conntrack
/// (<https://docs.kernel.org/networking/nf_conntrack-sysctl.html>); what is over, and questions to resolvers, end
/// earlier than there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// TCP after the handshake.
    pub tcp_established: Duration,
    /// TCP after one end has closed; any connection after its last packet that a policy denied.
    pub tcp_transient: Duration,
    /// TCP after both ends have closed, or one has reset the connection.
    pub tcp_closed: Duration,
    /// UDP with several datagrams each way.
    pub udp: Duration,
    /// UDP to port 53, after the answer to the last question.
    pub dns: Duration,
    /// ICMP and ICMPv6 after a reply, and at most without one.
    pub icmp: Duration,
    /// Everything else after a reply.
    pub other: Duration,
    /// TCP before the handshake is complete, UDP with a single exchange, and everything else before a reply; at
    /// most what the protocol has otherwise.
    pub opening: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            tcp_established: Duration::from_secs(24 * 3600),
            tcp_transient: Duration::from_secs(120),
            tcp_closed: Duration::from_secs(10),
            udp: Duration::from_secs(120),
            dns: Duration::from_secs(5),
            icmp: Duration::from_secs(10),
            other: Duration::from_secs(600),
            opening: Duration::from_secs(30),
        }
    }
}

/// The state of a connection, as bits: for TCP the flags seen, for others which end has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct State(u8);

impl State {
    const SYN: u8 = 1;
    const SYN_ACK: u8 = 2;
    const ACK: u8 = 4;
    const FIN_FORWARD: u8 = 8;
    const FIN_REVERSE: u8 = 16;
    const RST: u8 = 32;

    // Others than TCP.
    /// The initiator waits for an answer; for questions alone.
    const PENDING: u8 = 1;
    /// The initiator has sent after an answer.
    const CONTINUED: u8 = 2;
    /// The responder is a resolver.
    const QUESTION: u8 = 4;
    /// The responder has answered that too.
    const STREAM: u8 = 8;
    const ANSWERED: u8 = 64;

    /// A policy denied the connection's last packet; its other bits are as they were before.
    const REFUSED: u8 = 128;

    /// The state after a packet that a policy denied.
    #[must_use]
    pub(crate) fn refused(self) -> Self {
        Self(self.0 | Self::REFUSED)
    }

    /// The state of a connection that is allowed again.
    #[must_use]
    pub(crate) fn allowed(self) -> Self {
        Self(self.0 & !Self::REFUSED)
    }

    /// A policy denied the connection's last packet.
    #[inline]
    pub fn is_refused(self) -> bool {
        self.0 & Self::REFUSED != 0
    }

    /// The state after the packet that opens a connection with this tuple at the responder.
    #[inline]
    pub(crate) fn opened(responder: &Flow, tcp_flags: u8) -> Self {
        let is_question =
            responder.protocol == protocol::UDP && responder.destination_port == DNS_PORT;
        let state = Self(if is_question { Self::QUESTION } else { 0 });
        state.after(responder.protocol, tcp_flags, true)
    }

    /// The state after a packet of the initiator (`forward`) or of the responder; `flags` are those
    /// of TCP.
    #[must_use]
    #[inline]
    pub fn after(self, protocol: u8, flags: u8, forward: bool) -> Self {
        match protocol {
            protocol::TCP => self.after_tcp(flags, forward),
            _ => self.after_datagram(forward),
        }
    }

    #[inline(always)]
    fn after_datagram(self, forward: bool) -> Self {
        Self(AFTER_DATAGRAM[usize::from(forward)][usize::from(self.0)])
    }

    #[inline]
    fn after_tcp(self, flags: u8, forward: bool) -> Self {
        // Data of an established connection changes nothing; most packets are such.
        if flags & (tcp_flags::SYN | tcp_flags::FIN | tcp_flags::RST) == 0 && self.is_established()
        {
            return self;
        }
        self.after_tcp_event(flags, forward)
    }

    #[inline(never)]
    fn after_tcp_event(self, flags: u8, forward: bool) -> Self {
        let has = |wanted: u8| flags & wanted == wanted;
        let mut bits = self.0;
        // A forged reset resets nothing: the ends look at its sequence number (RFC 5961). So a connection whose
        // ends go on is what it was. One that has been reset may be opened again, and an end that knows it still
        // acknowledges the SYN with a challenge.
        if has(tcp_flags::RST) {
            bits |= Self::RST;
        } else if !forward && bits & Self::RST != 0 && has(tcp_flags::SYN | tcp_flags::ACK) {
            bits = bits & Self::REFUSED | Self::SYN;
        } else if has(tcp_flags::ACK) {
            bits &= !Self::RST;
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
        self.0 & (Self::ANSWERED | Self::REFUSED) == Self::ANSWERED
    }

    /// UDP to a resolver.
    #[inline]
    pub fn is_question(self, protocol: u8) -> bool {
        protocol == protocol::UDP && self.0 & Self::QUESTION != 0
    }

    /// UDP to a resolver: the last question has its answer.
    #[inline]
    fn is_settled(self, protocol: u8) -> bool {
        self.is_question(protocol) && self.is_answered() && self.0 & Self::PENDING == 0
    }

    /// TCP: neither is the handshake complete nor has an end closed.
    #[inline]
    fn is_opening(self) -> bool {
        self.0 & (Self::ACK | Self::FIN_FORWARD | Self::FIN_REVERSE | Self::RST) == 0
    }

    /// Its name: `half-open`, `established`, `closing` (one end has closed) or `ended` for TCP, else
    /// `unanswered` or `answered`; `refused` for any whose last packet a policy denied.
    pub fn name(self, protocol: u8) -> &'static str {
        match protocol {
            _ if self.is_refused() => "refused",
            protocol::TCP if self.is_established() => "established",
            protocol::TCP if self.is_over() => "ended",
            protocol::TCP if self.is_opening() => "half-open",
            protocol::TCP => "closing",
            _ if self.is_answered() => "answered",
            _ => "unanswered",
        }
    }

    /// TCP: the last packet that says so resets a connection that was accepted. It is over, unless it was forged.
    #[inline]
    pub fn is_reset(self) -> bool {
        const BITS: u8 = State::RST | State::SYN_ACK;
        self.0 & BITS == BITS && !self.is_closed()
    }

    /// TCP: both ends have closed.
    #[inline]
    fn is_closed(self) -> bool {
        const BOTH: u8 = State::FIN_FORWARD | State::FIN_REVERSE;
        self.0 & BOTH == BOTH
    }

    /// TCP: both ends have closed, or one has reset the connection, so the initiator may reuse the ports.
    #[inline]
    pub fn is_over(self) -> bool {
        self.0 & Self::RST != 0 || self.is_closed()
    }
}

/// The bits after a datagram, by whether it is the initiator's, and by the bits before.
const AFTER_DATAGRAM: [[u8; 256]; 2] = {
    let mut table = [[0; 256]; 2];
    let mut n = 0;
    while n < 256 {
        let bits = n as u8;
        table[1][n] = bits;
        if bits & State::ANSWERED != 0 {
            table[1][n] |= State::CONTINUED;
        }
        if bits & State::QUESTION != 0 {
            table[1][n] |= State::PENDING;
        }
        table[0][n] = bits & !State::PENDING | State::ANSWERED;
        if bits & State::CONTINUED != 0 {
            table[0][n] |= State::STREAM;
        }
        n += 1;
    }
    table
};

/// [`Timeouts`] in seconds, as packets need them.
#[derive(Clone, Copy, Debug)]
struct Limits {
    tcp_established: u32,
    tcp_transient: u32,
    tcp_closed: u32,
    udp: u32,
    dns: u32,
    icmp: u32,
    other: u32,
    opening: u32,
    /// The shortest of them.
    least: u32,
}

impl From<Timeouts> for Limits {
    fn from(timeouts: Timeouts) -> Self {
        let limits = Self {
            tcp_established: seconds(timeouts.tcp_established),
            tcp_transient: seconds(timeouts.tcp_transient),
            tcp_closed: seconds(timeouts.tcp_closed),
            udp: seconds(timeouts.udp),
            dns: seconds(timeouts.dns),
            icmp: seconds(timeouts.icmp),
            other: seconds(timeouts.other),
            opening: seconds(timeouts.opening),
            least: 0,
        };
        let Self {
            tcp_established, tcp_transient, tcp_closed, udp, dns, icmp, other, opening, ..
        } = limits;
        let all = [tcp_established, tcp_transient, tcp_closed, udp, dns, icmp, other, opening];
        Self { least: all.into_iter().fold(u32::MAX, u32::min), ..limits }
    }
}

impl Limits {
    /// Seconds that a session may be idle.
    #[inline]
    fn of(&self, protocol: u8, state: State) -> u32 {
        let has = |bits: u8| state.0 & bits != 0;
        if state.is_refused() {
            return self.tcp_transient;
        }
        let (answered, is_opening) = match protocol {
            protocol::UDP if has(State::QUESTION) && has(State::PENDING) => (self.udp, true),
            protocol::UDP if has(State::QUESTION) => (self.dns, false),
            protocol::UDP => (self.udp, !has(State::STREAM)),
            protocol::TCP if state.is_established() => (self.tcp_established, false),
            protocol::TCP if state.is_over() => (self.tcp_closed, false),
            protocol::TCP => (self.tcp_transient, state.is_opening()),
            protocol::ICMP | protocol::ICMPV6 => (self.icmp, !state.is_answered()),
            _ => (self.other, !state.is_answered()),
        };
        if is_opening { self.opening.min(answered) } else { answered }
    }
}

fn seconds(timeout: Duration) -> u32 {
    timeout.as_secs().min(u64::from(u32::MAX)) as u32
}
