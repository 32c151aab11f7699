//! The graph: stages that each handle a whole vector.
//!
//! ```text
//! parse ─┬─▶ security ─┬─▶ session ─┬─▶ service ─▶ policy ─▶ open ─▶ rewrite ─┬─▶ (out)
//!        │      │      │            ├────────────────▲                ▲   └─▶ encapsulate ─▶ (out)
//!        │      │      └─▶ fragment ┴─────────────────────────────────┘          ▲
//!        │      └─▶ decapsulate ─▶ (session, fragment)                answer ────┴─▶ (out)
//!        └─▶ neighbour ─▶ (out)
//! ```
//!
//! A fragment without its first goes on to `wait`, which holds it outside of the graph; from there
//! it enters `fragment` again.
//!
//! Every node but `neighbour` and `encapsulate` may send packets to `answer`, which tells their
//! senders why they go no further.
//!
//! A node takes packets one after the other from its list and says for each where it goes: to
//! another node or to its end, an [`Outcome`]. Nodes only send packets forward, so one pass in
//! the order of [`Node::ALL`] is enough.

mod answer;
mod context;
mod decapsulate;
mod dispatch;
mod encapsulate;
mod neighbour;
mod node;
mod open;
mod parse;
mod policy;
mod reassembly;
mod rewrite;
mod security;
mod service;
mod session;
pub mod trace;

use context::Translation;
pub(crate) use context::{Context, Next};
pub use dispatch::Graph;
pub use node::{NODES, Node, draw};
