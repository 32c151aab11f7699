//! Sessions: connections that were allowed, seen in both directions.
//!
//! One table ([`table`]) serves all workers. A session is one cache line ([`record`]) found through
//! an index of buckets ([`index`]) under a hash that is the same for both directions ([`hash`]).
//! Finding one takes no lock; making one takes a lock that only packets of the same few flows
//! contend for.
//!
//! A connection to a service looks different at its two ends; its session is found by what
//! either end sends, and knows both sights ([`translation`]).
//!
//! A session holds no verdict but the number of the policy generation that allowed it, so that
//! a change of policy sweeps nothing: each session is judged again at its next packet.
//!
//! The table may stand in a file ([`store`]), so that connections outlive the process.
//!
//! The table has a fixed size. Half of it is divided into guarantees, one for each port; the
//! other half is for whoever comes first. A port that opens connections beyond its guarantee
//! while the shared half is taken is refused ([`Refusal::Quota`]), so that one pod's flood
//! leaves every other pod its guarantee.

mod hash;
mod index;
mod pass;
mod record;
mod region;
mod store;
mod table;
mod translation;

pub use record::{Found, SessionId};
pub use table::{Guess, Opened, Opening, Refusal, Sessions, Sight};
pub use translation::Views;

use std::time::Duration;

use crate::wire::{protocol, tcp_flags};

/// How long sessions live without a packet; the defaults are those of VPP's ACL plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// TCP after the handshake.
    pub tcp_established: Duration,
    /// TCP before it, and after FIN or RST.
    pub tcp_transient: Duration,
    /// UDP.
    pub udp: Duration,
    /// Everything else.
    pub other: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            tcp_established: Duration::from_secs(24 * 3600),
            tcp_transient: Duration::from_secs(120),
            udp: Duration::from_secs(600),
            other: Duration::from_secs(600),
        }
    }
}

/// What has been seen of a TCP connection, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TcpState(u8);

impl TcpState {
    const SYN: u8 = 1;
    const SYN_ACK: u8 = 2;
    const ACK: u8 = 4;
    const FIN_FORWARD: u8 = 8;
    const FIN_REVERSE: u8 = 16;
    const RST: u8 = 32;

    /// The state after a packet with these flags from the opener (`forward`) or its peer.
    #[must_use]
    #[inline]
    pub fn after(self, flags: u8, forward: bool) -> Self {
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

    /// Handshake complete, nobody has said goodbye.
    #[inline]
    pub fn is_established(self) -> bool {
        self.0 == Self::SYN | Self::SYN_ACK | Self::ACK
    }

    /// Both ends are done, so that the opener may use the ports again.
    #[inline]
    pub fn is_over(self) -> bool {
        const BOTH: u8 = TcpState::FIN_FORWARD | TcpState::FIN_REVERSE;
        self.0 & Self::RST != 0 || self.0 & BOTH == BOTH
    }
}

impl Timeouts {
    /// Seconds that a session may be idle.
    #[inline]
    pub(crate) fn seconds(&self, protocol: u8, state: TcpState) -> u32 {
        let timeout = match protocol {
            protocol::TCP if state.is_established() => self.tcp_established,
            protocol::TCP => self.tcp_transient,
            protocol::UDP => self.udp,
            _ => self.other,
        };
        timeout.as_secs().min(u64::from(u32::MAX)) as u32
    }
}
