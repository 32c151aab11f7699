//! Packet classification for policy tables.
//!
//! A *rule set* is an ordered list of [`Rule`]s; the first rule that matches a
//! [`Key`] decides. Rules name their ends by prefix, by *peer set* or not at
//! all. The [`AddressMap`] gives every address an [`Identity`]: a small number
//! that stands for "in exactly these peer sets", so that a rule over a set of
//! ten thousand addresses costs as much as one over a single address.
//!
//! [`linear`] is the definition of what a rule set means; [`Table`] is the
//! compiled form that gives the same answers faster.

mod address;
mod address_map;
mod class_bench;
mod key;
pub mod linear;
mod lpm;
mod nested;
mod paged;
mod prefix;
mod rule;
mod table;
mod text;
mod tuple_space;
mod words;

pub use address::Address;
pub use address_map::{
    AddressMap, AddressMapBuilder, AddressMapEditor, Block, Identity, PeerSetId,
};
pub use class_bench::parse_class_bench;
pub use key::Key;
pub use rule::{Action, End, PortRange, Rule, TcpFlags};
pub use table::{Report, Table};
pub use text::parse_rules;
pub use words::ParseError;

/// A number that nobody outside can guess, against keys crafted to collide.
fn seed() -> u64 {
    ahash::RandomState::new().hash_one(0_u8)
}
