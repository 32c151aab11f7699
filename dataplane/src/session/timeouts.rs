//! Lifetimes of sessions.

use std::time::Duration;

use super::ConnectionState;
use crate::wire::protocol;

/// Lifetimes of sessions without a packet. Most are those of Linux' conntrack
/// (<https://docs.kernel.org/networking/nf_conntrack-sysctl.html>); what is over, and questions to resolvers, end
/// earlier than there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// TCP after the handshake.
    pub tcp_established: Duration,
    /// Any connection after its last packet that a policy denied. TCP that one end has closed keeps
    /// the time-out of an established one, up to [`HALF_CLOSED`].
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

/// Lifetime of a TCP session after a FIN of one end, which may be forged: no sequence number was
/// looked at. An idle connection whose ends go on must be kept this long (RFC 5382, REQ-5).
const HALF_CLOSED: Duration = Duration::from_secs(2 * 3600 + 4 * 60);

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

/// [`Timeouts`] in seconds, as packets need them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    tcp_established: u32,
    tcp_half_closed: u32,
    tcp_transient: u32,
    tcp_closed: u32,
    udp: u32,
    dns: u32,
    icmp: u32,
    other: u32,
    opening: u32,
    /// The shortest of them.
    pub(super) least: u32,
}

impl From<Timeouts> for Limits {
    fn from(timeouts: Timeouts) -> Self {
        let limits = Self {
            tcp_established: seconds(timeouts.tcp_established),
            tcp_half_closed: seconds(timeouts.tcp_established.min(HALF_CLOSED)),
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
    pub(super) fn of(&self, protocol: u8, state: ConnectionState) -> u32 {
        let has = |bits: u8| state.0 & bits != 0;
        if state.is_refused() {
            return self.tcp_transient;
        }
        let (answered, is_opening) = match protocol {
            protocol::UDP if has(ConnectionState::QUESTION) && has(ConnectionState::PENDING) => {
                (self.udp, true)
            }
            protocol::UDP if has(ConnectionState::QUESTION) => (self.dns, false),
            protocol::UDP => (self.udp, !has(ConnectionState::STREAM)),
            protocol::TCP if state.is_established() => (self.tcp_established, false),
            protocol::TCP if state.is_half_closed() => (self.tcp_half_closed, false),
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
