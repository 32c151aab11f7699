//! Packet classification: which rule of an ordered list decides a packet.
//!
//! Made for long, changing rule lists and millions of packets a second: policy switches,
//! firewalls, flow monitors. The crate knows nothing of sockets, clocks or clusters.
//!
//! A *rule set* is an ordered list of [`Rule`]s; the first rule that matches a [`Key`]
//! decides. Rules name their ends by *peer set* or not at all. The [`AddressMap`]
//! gives every address an [`Identity`]: a small number that stands for "in exactly these peer
//! sets", so that a rule over a set of ten thousand addresses costs as much as one over a
//! single address.
//!
//! [`linear`] is the definition of what a rule set means; [`Table`] is the compiled form that
//! gives the same answers faster. Tables and maps are immutable: a changed rule set is compiled
//! anew, an [`AddressMapEditor`] makes map versions that share what did not change, and readers
//! keep the version they have.
//!
//! ```
//! use std::sync::Arc;
//! use acl::{Action, Address, AddressMapEditor, Block, End, Key, PeerSetId, PortRange, Rule, Table};
//!
//! // Two backends in set 1; only they may reach port 6379.
//! let mut addresses = AddressMapEditor::default();
//! for backend in ["10.1.0.7/32", "10.1.0.8/32"] {
//!     addresses.add(PeerSetId(1), &Block { net: backend.parse()?, except: vec![] });
//! }
//! let map = Arc::new(addresses.version());
//! let backends = Rule::new(Action::Permit, "backends may").source(End::Set(PeerSetId(1)));
//! let backends = backends.protocol(6).destination_ports(PortRange::one(6379));
//! let table = Table::compile([backends, Rule::new(Action::Deny, "no other")].into(), &map);
//! println!("{}", table.report());
//!
//! // A dataplane looks up each new connection, best as a vector of keys.
//! let backend = Address::from_v4_bits(0x0a01_0007);
//! let backend = Key { source: backend, protocol: 6, destination_port: 6379, ..Key::default() };
//! let mut keys = [backend, Key { destination_port: 22, ..backend }];
//! let mut found = [Table::NONE; 2];
//! map.identify_sources(&mut keys);
//! table.lookup_vector(&keys, &mut found);
//! assert_eq!(table.rules()[found[0] as usize].action, Action::Permit);
//! assert_eq!(table.lookup(&keys[1]), Some(1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What operations cost
//!
//! *n* rules, *p* prefixes, *s* peer sets around an address; a page is 4 to 8 KiB.
//!
//! | operation | time |
//! |---|---|
//! | [`AddressMap::lookup`] | IPv4: a load for each byte, or three and a cache line. IPv6: a cache line for each prefix length in use, the longest first |
//! | [`AddressMapEditor::add`], [`remove`](AddressMapEditor::remove) | log *p* |
//! | [`AddressMapEditor::version`] | log *p* + *s* for each network inside the blocks that changed, one for a host; 3 to 4 KiB for each network of which membership changed, whatever *p*; *p* after an eighth of all have, and when the memory doubles |
//! | [`AddressMapBuilder::build`] | *p* log *p* + *p s* |
//! | [`Table::lookup`] | constant: a transport class, a list for each end, and for each tuple, 24 at most, one probe of two loads; where these are too many, the rules of each peer set that a key is in. [`Report::loads`] is the bound for a table |
//! | [`Table::compile`] | *n* log *n*, and for rules over both ends what they cover in pairs of equivalence classes, at most linear in *n* |
//! | memory | linear in *n*, and in the peer sets of all identities where rules are tried set by set |
//!
//! `cargo bench -p acl` measures the time to compile.
//!
//! Addresses become identities by a trie (IPv4) and exact matches by length (IPv6); rules over one end are decided
//! by rows of transport classes, rules over both by a two-dimensional tuple space. `docs/classifier.md` follows one
//! lookup through these structures.

#[cfg(test)]
extern crate self as acl;

mod address;
mod address_map;
mod addresses;
mod identity;
mod key;
pub mod linear;
mod lpm;
mod nested;
mod origin;
mod paged;
mod prefix;
mod prefix_map;
mod rule;
mod simd;
mod table;

use std::sync::atomic::{AtomicU64, Ordering};

pub use address::Address;
pub use address_map::{AddressMap, AddressMapBuilder, AddressMapEditor, Block, PeerSetId};
pub use identity::Identity;
pub use key::Key;
pub use origin::{Direction, Origin, PolicyRef};
pub use prefix_map::PrefixMap;
pub use rule::{Action, End, PortRange, Rule, TcpFlags};
pub use table::{Report, Table};

/// A secret number, against IPv6 addresses chosen to collide in hash tables.
fn seed() -> u64 {
    match FIXED_SEED.load(Ordering::Relaxed) {
        0 => ahash::RandomState::new().hash_one(0_u8),
        fixed => fixed,
    }
}

static FIXED_SEED: AtomicU64 = AtomicU64::new(0);

/// Makes every address table from now on hash alike, so that instructions of a lookup can be
/// counted. For measurements only: addresses could be chosen to collide.
#[doc(hidden)]
pub fn fix_seed(seed: std::num::NonZeroU64) {
    FIXED_SEED.store(seed.get(), Ordering::Relaxed);
}
