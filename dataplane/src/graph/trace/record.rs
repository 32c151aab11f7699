//! The trace of one packet, as values.

use std::sync::Arc;

use acl::{Address, Origin};

use crate::graph::Node;
use crate::session::{ConnectionState, Tuples};
use crate::wire::{Flow, Headers};
use crate::{Now, Outcome, PortKind};

/// The path of one packet through the graph.
#[derive(Clone, Debug)]
pub struct PacketTrace {
    /// Time at which its vector was handled.
    pub at: Now,
    /// Number of the worker.
    pub worker: u16,
    /// Packets in its vector.
    pub vector: u16,
    /// Generation of the snapshot it was decided by.
    pub generation: u64,
    /// The ingress port; `None` if there is no such port.
    pub in_port: Option<Arc<str>>,
    /// Number of its frame.
    pub frame: u32,
    /// Length of the received packet, in bytes.
    pub length: u32,
    /// The nodes it passed, in order.
    pub steps: Vec<Step>,
    /// Its end.
    pub end: End,
}

/// The end of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It has its outcome.
    Done {
        /// Which.
        outcome: Outcome,
        /// The egress port of the packet, or of the switch's reply to it.
        out_port: Option<Arc<str>>,
        /// Whether the switch replied to its sender.
        answered: bool,
    },
    /// The packet is held, and starts another trace from there.
    Waits,
}

/// A node's step.
#[derive(Clone, Debug)]
pub struct Step {
    /// The node.
    pub node: Node,
    /// Its finding.
    pub finding: Finding,
    /// The node that it sent the packet to; `None` ends the trace.
    pub next: Option<Node>,
    /// The outcome, where the node decided about it.
    pub outcome: Option<Outcome>,
}

/// A node's finding.
#[derive(Clone, Debug)]
pub enum Finding {
    /// Nothing beside the outcome.
    Nothing,
    /// DNS of a pod that follows domain names; whether it is held.
    Dns {
        /// Whether it waits.
        held: bool,
    },
    /// The headers; `None` if they are not what they should be.
    Headers(Option<Headers>),
    /// The kind of port that the packet came in by.
    Port(Option<PortKind>),
    /// A tunnel.
    Tunnel {
        /// The node at its other end.
        peer: Option<Arc<str>>,
        /// Headers of the packet inside.
        inside: Option<Headers>,
    },
    /// A connection.
    Session {
        /// The one that the packet belongs to, if any.
        seen: Option<SessionInfo>,
        /// The re-evaluation of one that an older snapshot allowed.
        evaluation: Option<Evaluation>,
    },
    /// A later fragment.
    Reassembly {
        /// The flow of its first fragment, if that is known.
        first: Option<Flow>,
        /// Its connection.
        session: Option<SessionInfo>,
    },
    /// A service.
    Service {
        /// The flow as the client sees it.
        asked: Flow,
        /// The flow as the backend sees it; `None` if there is no backend.
        given: Option<Flow>,
    },
    /// A verdict on a connection.
    Policy {
        /// Where the packet goes next, if there is a route.
        exit: Option<Exit>,
        /// The evaluation, if there was one.
        evaluation: Option<Evaluation>,
    },
    /// A connection that was opened.
    Open {
        /// As it is in the table now; `None` if there was no room for it.
        made: Option<SessionInfo>,
    },
    /// The packet as it leaves.
    Rewrite {
        /// Its new addresses and ports, if it is translated.
        to: Option<Flow>,
        /// Its time to live from here on.
        ttl: u8,
        /// Where it leaves.
        exit: Option<Exit>,
    },
    /// Whether an ICMP error was sent.
    IcmpError {
        /// `false` if the rate limit was reached, or no error is allowed.
        sent: bool,
    },
    /// The tunnel it was put into.
    Encapsulate {
        /// Where it leads.
        exit: Option<Exit>,
        /// Address of the tunnel's other end.
        to: Option<Address>,
    },
}

/// A session as a packet found it.
#[derive(Clone, Copy, Debug)]
pub struct SessionInfo {
    /// Whether the packet is the initiator's.
    pub forward: bool,
    /// State of the TCP connection before this packet.
    pub state: ConnectionState,
    /// Whether the snapshot in force allowed it already; if not, it is re-evaluated.
    pub current: bool,
    /// Both tuples of it.
    pub tuples: Tuples,
}

/// A packet's next hop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// The port.
    pub port: Option<Arc<str>>,
    /// The node behind it, if any.
    pub peer: Option<Arc<str>>,
}

/// The evaluation of a connection.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// As policies see it.
    pub flow: Flow,
    /// The result of the initiator's ACL, if that is a pod of this node.
    pub from_pod: Option<AclResult>,
    /// The result of the responder's ACL, if that is a pod of this node.
    pub to_pod: Option<AclResult>,
    /// The verdict.
    pub outcome: Outcome,
    /// Origins of the rules that decided.
    pub by: Vec<Origin>,
}

/// The result of one ACL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclResult {
    /// The pod.
    pub pod: Arc<str>,
    /// The kind of its ACL binding.
    pub binding: BindingKind,
    /// Whether it lets the connection pass.
    pub permits: bool,
    /// The matching rule: number and origin.
    pub rule: Option<(u32, Origin)>,
}

/// Kinds of ACL bindings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindingKind {
    /// Denies everything: the pod's policies are not known yet.
    Closed,
    /// Permits everything: no policy selects the pod for this direction.
    Open,
    /// A compiled table.
    Table,
}

impl BindingKind {
    /// The name used in every output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::Table => "table",
        }
    }
}
