//! The state of a connection, as its packets show it.

use crate::dns::DNS_PORT;
use crate::wire::{Flow, protocol, tcp_flags};

/// The state of a connection, as bits: for TCP the flags seen, for others which end has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ConnectionState(pub(super) u8);

impl ConnectionState {
    const SYN: u8 = 1;
    const SYN_ACK: u8 = 2;
    const ACK: u8 = 4;
    const FIN_FORWARD: u8 = 8;
    const FIN_REVERSE: u8 = 16;
    const RST: u8 = 32;

    // Others than TCP.
    /// The initiator waits for an answer; for questions alone.
    pub(super) const PENDING: u8 = 1;
    /// The initiator has sent after an answer.
    const CONTINUED: u8 = 2;
    /// The responder is a resolver.
    pub(super) const QUESTION: u8 = 4;
    /// The responder has answered that too.
    pub(super) const STREAM: u8 = 8;
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
        // Nor is a FIN looked at: data behind one from the same end says that it was forged, or is
        // sent again before it.
        let fin = if forward { Self::FIN_FORWARD } else { Self::FIN_REVERSE };
        if has(tcp_flags::FIN) {
            bits |= fin;
        } else if has(tcp_flags::PSH) {
            bits &= !fin;
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
    pub(super) fn is_settled(self, protocol: u8) -> bool {
        self.is_question(protocol) && self.is_answered() && self.0 & Self::PENDING == 0
    }

    /// TCP: neither is the handshake complete nor has an end closed.
    #[inline]
    pub(super) fn is_opening(self) -> bool {
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
        const BITS: u8 = ConnectionState::RST | ConnectionState::SYN_ACK;
        self.0 & BITS == BITS && !self.is_closed()
    }

    /// TCP: one end has closed an established connection, or somebody has forged that it has.
    #[inline]
    pub(super) fn is_half_closed(self) -> bool {
        const OPEN: u8 = ConnectionState::SYN | ConnectionState::SYN_ACK | ConnectionState::ACK;
        let bits = self.0 & !(Self::FIN_FORWARD | Self::FIN_REVERSE);
        bits == OPEN && !self.is_closed()
    }

    /// TCP: both ends have closed.
    #[inline]
    pub(super) fn is_closed(self) -> bool {
        const BOTH: u8 = ConnectionState::FIN_FORWARD | ConnectionState::FIN_REVERSE;
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
        if bits & ConnectionState::ANSWERED != 0 {
            table[1][n] |= ConnectionState::CONTINUED;
        }
        if bits & ConnectionState::QUESTION != 0 {
            table[1][n] |= ConnectionState::PENDING;
        }
        table[0][n] = bits & !ConnectionState::PENDING | ConnectionState::ANSWERED;
        if bits & ConnectionState::CONTINUED != 0 {
            table[0][n] |= ConnectionState::STREAM;
        }
        n += 1;
    }
    table
};
