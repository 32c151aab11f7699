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
mod key;
pub mod linear;
mod lpm;
mod prefix;
mod rule;
mod table;
mod tuple_space;

pub use address::Address;
pub use address_map::{AddressMap, AddressMapBuilder, Block, Identity, PeerSetId};
pub use key::Key;
pub use rule::{Action, End, PortRange, Rule, TcpFlags};
pub use table::{Report, Table};
