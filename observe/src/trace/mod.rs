//! Packets traced through the graph, for `podgate trace` and `podgate replay --trace`.
//!
//! - `filter`: the terms that choose packets, as people write them,
//! - `store`: the trace of the running switch,
//! - `line`: one packet's way, as scripts and people read it,
//! - `words`: what a node decided, in words and in fields.

mod filter;
mod line;
mod store;
mod words;

pub use filter::{parse, port_name};
pub use line::{Line, NodeDecision};
pub use line::{decisions, write_decisions};
pub use store::Store;
pub use words::headers_in_words;

/// Packets that one trace follows at most.
pub const MOST: u32 = 10_000;
