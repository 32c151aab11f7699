//! One packet's trace, as values.

use std::sync::Arc;

use acl::Address;

use crate::graph::Node;
use crate::session::{State, Tuples};
use crate::wire::{Flow, Headers};
use crate::{Now, Outcome, PortKind};

/// The trace of one packet through the graph.
#[derive(Clone, Debug)]
pub struct PacketTrace {
    /// When its vector was handled.
    pub at: Now,
    /// Number of the worker.
    pub worker: u16,
    /// Packets in its vector.
    pub vector: u16,
    /// Generation of the snapshot it was decided by.
    pub generation: u64,
    /// The port it came in by; `None` if there is no such port.
    pub in_port: Option<Arc<str>>,
    /// Number of the frame it stands in.
    pub frame: u32,
    /// Bytes it came with.
    pub length: u32,
    /// The nodes it passed, in order.
    pub steps: Vec<Step>,
    /// What became of it.
    pub end: End,
}

/// The end of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It has its outcome.
    Done {
        /// Which.
        outcome: Outcome,
        /// The port that it, or the switch's answer to it, left by.
        out_port: Option<Arc<str>>,
        /// Whether the switch sent its sender something.
        answered: bool,
    },
    /// It waits in the switch, and begins another trace from there.
    Waits,
}

/// What one node did.
#[derive(Clone, Debug)]
pub struct Step {
    /// The node.
    pub node: Node,
    /// What it found.
    pub finding: Finding,
    /// Where it sent the packet; `None` ends the trace.
    pub next: Option<Node>,
    /// The outcome, where the node decided about it.
    pub outcome: Option<Outcome>,
}

/// What a node found.
#[derive(Clone, Debug)]
pub enum Finding {
    /// Nothing beside the outcome.
    Nothing,
    /// The headers; `None` if they are not what they should be.
    Headers(Option<Headers>),
    /// The kind of port that the packet came in by.
    Port(Option<PortKind>),
    /// A tunnel.
    Tunnel {
        /// The cluster node at its other end.
        peer: Option<Arc<str>>,
        /// Headers of the packet inside.
        inside: Option<Headers>,
    },
    /// A connection.
    Session {
        /// The one that the packet belongs to, if any.
        seen: Option<SessionInfo>,
        /// The new decision of one that an older snapshot allowed.
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
        /// What was evaluation, if it came to that.
        evaluation: Option<Evaluation>,
    },
    /// A connection that was opened.
    Open {
        /// As it stands in the table now; `None` if there was no room for it.
        made: Option<SessionInfo>,
    },
    /// What the packet looks like on its trace out.
    Rewrite {
        /// Its new ends, if it is translated.
        to: Option<Flow>,
        /// Its time to live from here on.
        ttl: u8,
        /// Where it leaves.
        exit: Option<Exit>,
    },
    /// Whether its sender was sent.
    IcmpError {
        /// Not if it was sent too much lately, or cannot be.
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

/// A connection as a packet found it.
#[derive(Clone, Copy, Debug)]
pub struct SessionInfo {
    /// Whether the packet is one of the end that opened the connection.
    pub forward: bool,
    /// What was seen of TCP before this packet.
    pub state: State,
    /// Whether the snapshot in force allowed it already; if not, it is re-evaluated.
    pub current: bool,
    /// Both tuples of it.
    pub tuples: Tuples,
}

/// Where a packet goes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// The port.
    pub port: Option<Arc<str>>,
    /// The cluster node behind it, where the trace leads to one.
    pub peer: Option<Arc<str>>,
}

/// A connection that was evaluation.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// As policies see it.
    pub flow: Flow,
    /// The binding of the pod that opens it, if that is one of this cluster node's.
    pub from_pod: Option<AclResult>,
    /// The binding of the pod that it is for, if that is one of this cluster node's.
    pub to_pod: Option<AclResult>,
    /// The verdict.
    pub outcome: Outcome,
    /// Origins of the rules that decided.
    pub by: Vec<Arc<str>>,
}

/// What one binding said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclResult {
    /// Whose binding.
    pub pod: Arc<str>,
    /// Which kind it is.
    pub binding: BindingKind,
    /// Whether it lets the connection pass.
    pub permits: bool,
    /// The rule of its table that says so: number and origin.
    pub rule: Option<(u32, Arc<str>)>,
}

/// Kinds of bindings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindingKind {
    /// Nothing passes: the pod's policies are not known yet.
    Closed,
    /// Everything passes: no policy is about this direction of the pod.
    Open,
    /// A table decides.
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
