//! The graph: stages that each handle a whole vector.
//!
//! ```text
//! parse ─┬─▶ anti-spoofing ─┬─▶ session ─┬─▶ service ─▶ policy ─▶ open ─▶ rewrite ─┬─▶ dns ─▶ (out)
//!        │      │           │            ├────────────────▲                ▲   └─▶ encapsulate ─▶ (out)
//!        │      │           └─▶ reassembly ───────────────────────────────┘          ▲
//!        │      └─▶ decapsulate ─▶ (session, reassembly)        icmp-error ──────────┴─▶ (out)
//!        └─▶ neighbour ─▶ (out)
//! ```
//!
//! `dns` sees the DNS of pods that follow domain names alone. A fragment without its first and an answer go on to
//! `hold`, outside of the graph ([`waiting`]); once released they enter the node again that sent them there.
//!
//! `anti-spoofing`, `decapsulate`, `service` and `rewrite` send packets that go no further to
//! `icmp-error` if their senders are to learn why, `session` and `policy` those that a policy denies where
//! the pod has denials replied to.
//!
//! `session` sends packets of sessions that are to be re-evaluated to itself: it handles them once more
//! when their sessions have been re-evaluated as one batch.
//!
//! A node takes packets one after the other from its list and says for each where it goes: to
//! another node or to its end, an [`Outcome`]. Nodes only send packets forward, so one pass in
//! the order of [`Node::ALL`] is enough.

mod anti_spoofing;
mod context;
mod decapsulate;
mod dispatch;
mod dns;
mod encapsulate;
mod fragment;
mod icmp_error;
mod neighbour;
mod open;
mod owner;
mod parse;
mod policy;
mod reassembly;
mod reevaluate;
mod reject;
mod rewrite;
mod service;
mod session;
mod staged;
mod steps;
pub mod trace;
mod verify;
mod waiting;

pub use crate::node::{NODES, Node, draw};
use context::Translation;
pub(crate) use context::{Context, Next};
pub use dispatch::Graph;
pub use verify::Contradiction;
