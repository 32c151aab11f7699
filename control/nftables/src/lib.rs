//! The second renderer of the policy pipeline: control's view as nftables rules, for pods whose
//! network another CNI plugin made.
//!
//! ```text
//!   View ─┐                                             ┌─ whole (first time, repair)
//!   Site ─┴─▶ Renderer::render ─▶ Ruleset ─▶ Enforcer ──┤
//!                                                       └─ difference ─▶ nft transactions
//! ```
//!
//! | part | file |
//! |---|---|
//! | sets, maps and chains as values; transactions between two of them | `ruleset.rs` |
//! | a rule list as a chain, for each direction of a connection | `rules.rs` |
//! | ports of one rule: listed in it, or a set | `ports.rs` |
//! | replies to denied packets | `reject.rs` |
//! | base chains: hooks, dispatch, address checks | `base/` |
//! | the view, rendered for the node's interfaces | `render.rs` |
//! | finding pods' interfaces | `locate.rs` |
//! | the node itself | `host.rs` |
//! | the kernel's tables | `enforcer.rs` |
//!
//! # How a packet is evaluated
//!
//! Every packet is evaluated, not only a connection's first one. Conntrack contributes only the direction: in the
//! original direction the packet's own addresses and destination port are looked up, in the reply direction the
//! reversed ones. Hence a denial stops live connections at their next packet, without deleting entries. Entries of a
//! removed pod are deleted. At the filter hooks destinations are translated and sources are not yet, so services are
//! seen as their endpoints.

mod base;
mod enforcer;
mod host;
mod locate;
mod ports;
mod reject;
mod render;
mod rules;
mod ruleset;

pub use control::Failsafe;
pub use enforcer::Enforcer;
pub use host::{HOST_TABLES, host_ruleset};
pub use locate::Locator;
pub use reject::{ABORT, RESET};
pub use render::{Attachment, Renderer, Site};
pub use rules::{LOG_BYTES, LOG_GROUP};
pub use ruleset::{Ruleset, TABLES, Transactions};
