//! Frames, ports, the graph, sessions and workers of the switch.

#[cfg(feature = "af-xdp")]
pub mod bpf;
pub mod capture;
pub mod clock;
pub mod counters;
mod cpu;
pub mod dns;
mod doorbell;
mod exchange;
pub mod frame;
pub mod graph;
mod housekeeper;
#[cfg(feature = "af-xdp")]
pub mod kernel;
pub mod mailbox;
mod node;
mod outcome;
pub mod packet;
mod policy;
pub mod port;
pub mod services;
pub mod session;
mod snapshot;
pub mod switch;
mod sync;
pub mod wire;
pub mod worker;

pub use clock::Now;
pub use counters::Counters;
pub use frame::{Frame, FreeList, Memory};
pub use graph::{Contradiction, Graph};
pub use outcome::{OUTCOMES, Outcome, Verdict};
pub use packet::{Packet, VECTOR};
pub use policy::{
    Deciders, Decision, RuleAt, StagedDecision, evaluate, staged_difference_of_session,
};
pub use snapshot::{
    AclBinding, Adjacency, DeniedReply, Egress, Parts, Peer, PortId, PortKind, PortState, Routes,
    Snapshot, StagedAcls, Underlay,
};
pub use switch::Switch;
pub use wire::SWITCH_MAC;
pub use worker::Worker;
