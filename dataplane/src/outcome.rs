//! Every packet ends in a named outcome; each has a counter.

use std::fmt;

/// The verdict on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It is sent out of a port.
    Forward,
    /// It is dropped.
    Drop,
    /// It is for the switch itself.
    Consume,
}

impl Verdict {
    /// The name used in every output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Drop => "drop",
            Self::Consume => "consume",
        }
    }
}

macro_rules! outcomes {
    ($($(#[doc = $doc:literal])* $variant:ident = $verdict:ident $name:literal,)*) => {
        /// Why a packet was forwarded, dropped or consumed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Outcome {
            $($(#[doc = $doc])* $variant,)*
        }

        impl Outcome {
            /// All outcomes, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name used in every output and as a metric label.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The switch's verdict.
            pub const fn verdict(self) -> Verdict {
                match self { $(Self::$variant => Verdict::$verdict,)* }
            }

            /// Its meaning, in one sentence.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),*).trim_ascii(),)* }
            }
        }
    };
}

outcomes! {
    /// A new connection that the policies allow, or that no policy selects.
    PolicyAllowed = Forward "policy-allowed",
    /// A new connection from the pod's own node, which is always let in.
    OwnNode = Forward "own-node",
    /// Part of a connection that was allowed before.
    Session = Forward "session",
    /// An ICMP error about a connection that was allowed before.
    Related = Forward "related",
    /// A later fragment of a packet whose first fragment was let through.
    Fragment = Forward "fragment",
    /// Traffic between the node and others, which pod policies do not select.
    NoPolicy = Forward "no-policy",
    /// An ARP request that the switch replied to.
    ArpReply = Consume "arp-reply",
    /// An ARP packet that needs no reply.
    ArpIgnored = Consume "arp-ignored",
    /// A neighbour solicitation that the switch replied to.
    NdReply = Consume "nd-reply",
    /// A neighbour discovery packet that needs no reply.
    NdIgnored = Consume "nd-ignored",
    /// A new connection that a policy denies.
    PolicyDenied = Drop "policy-denied",
    /// A connection from or to a pod whose tables are not in force yet.
    Closed = Drop "closed",
    /// The frame ends before the headers do, or was cut short.
    Truncated = Drop "truncated",
    /// The Ethernet header is not one a host may send.
    MalformedEthernet = Drop "malformed-ethernet",
    /// The IP header contradicts itself or the frame.
    MalformedIp = Drop "malformed-ip",
    /// The transport header contradicts itself or the packet.
    MalformedTransport = Drop "malformed-transport",
    /// The IPv4 header checksum is wrong.
    BadChecksum = Drop "bad-checksum",
    /// Neither IPv4, IPv6 nor ARP.
    UnknownEthertype = Drop "unknown-ethertype",
    /// An address that cannot be on this wire.
    Martian = Drop "martian",
    /// An IPv4 source route or an IPv6 routing header that may lead past the destination.
    SourceRoute = Drop "source-route",
    /// An IPv4 address of the reserved class E (240.0.0.0/4).
    ReservedAddress = Drop "reserved-address",
    /// A link-local destination, which no router forwards to.
    LinkLocal = Drop "link-local",
    /// The source MAC address is not the pod's.
    SpoofedMac = Drop "spoofed-mac",
    /// A frame of a pod with the tag of a VLAN: the pod is in none.
    PodVlan = Drop "pod-vlan",
    /// The source address does not belong behind the port it came from.
    SpoofedAddress = Drop "spoofed-address",
    /// It neither opens a connection nor belongs to one.
    NoSession = Drop "no-session",
    /// A later fragment whose first fragment was not let through, or did not come in time.
    FragmentUnknown = Drop "fragment-unknown",
    /// A later fragment beyond the number that may be held for their first.
    FragmentLimit = Drop "fragment-limit",
    /// Multicast or broadcast, which the switch does not forward.
    Multicast = Drop "multicast",
    /// No route to the destination.
    NoRoute = Drop "no-route",
    /// Came from the uplink and would leave through it again.
    NotLocal = Drop "not-local",
    /// The time to live has expired; the sender gets an ICMP error.
    TtlExpired = Drop "ttl-expired",
    /// Larger than the MTU of the path out; the sender gets an ICMP error.
    TooBig = Drop "too-big",
    /// A service without endpoints, or a port that the service does not have; the sender gets an
    /// ICMP error.
    NoEndpoint = Drop "no-endpoint",
    /// A connection to a load balancer address from a source that the service does not admit.
    SourceNotAdmitted = Drop "source-not-admitted",
    /// No source port is left for a translated connection.
    NoTranslationPort = Drop "no-translation-port",
    /// The next hop towards another node is not known (yet).
    NoNeighbour = Drop "no-neighbour",
    /// A tunnel packet that no other node of the overlay can have sent, or that would
    /// leave outside of a tunnel.
    TunnelRefused = Drop "tunnel-refused",
    /// A tunnel packet marked for congestion around one that cannot carry the mark.
    CongestionLost = Drop "congestion-lost",
    /// Every session of the table is taken.
    SessionTableFull = Drop "session-table-full",
    /// The pod that opens the connection has used up its share of the sessions.
    SessionQuota = Drop "session-quota",
    /// The output port's ring was full.
    TxFull = Drop "tx-full",
    /// The packet is in more pieces than the output port sends as one.
    TooManyFrames = Drop "too-many-frames",
    /// The output port is gone.
    PortGone = Drop "port-gone",
    /// The ring towards the worker that owns the output port was full.
    HandoffFull = Drop "handoff-full",
}

impl Outcome {
    /// Whether a packet with this outcome triggers an ICMP error to its sender.
    pub const fn triggers_icmp_error(self) -> bool {
        matches!(self, Self::TtlExpired | Self::TooBig | Self::NoEndpoint)
    }
}

/// Number of outcomes.
pub const OUTCOMES: usize = Outcome::ALL.len();

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_numbers_follow_the_list() {
        let mut names: Vec<_> = Outcome::ALL.iter().map(|outcome| outcome.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), OUTCOMES);
        for (n, outcome) in Outcome::ALL.iter().enumerate() {
            assert_eq!(*outcome as usize, n);
            assert!(outcome.meaning().ends_with('.'), "{outcome}");
        }
    }
}
