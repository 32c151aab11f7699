//! Sessions: permitted connections, in both directions.
//!
//! One table ([`table`]) serves all workers. A session is one cache line ([`record`]) found through
//! an index of buckets ([`index`]) under a hash that is the same for both directions ([`hash`]). A
//! lookup takes no lock; creating a session takes a lock that only packets of the same few flows
//! contend for.
//!
//! A connection to a service has different tuples at its two ends; its session is found by either,
//! and holds both ([`translation`]).
//!
//! A session holds no verdict but the number of the policy generation that allowed it, so that
//! a change of policy sweeps nothing: each session is re-evaluated at its next packet.
//!
//! The table may stand in a file ([`store`]), so that connections outlive the process.
//!
//! The table has a fixed size. Every session has an [`Owner`], and each owner a quota
//! ([`table::quota`]): a pod's flood leaves every other pod its guarantee, and a flood from another
//! node or from outside leaves room for the other senders there. Within its quota an owner's
//! oldest sessions make room for its new ones ([`table::evict`]).
//!
//! Beside each record stands the session's [`Usage`]: when it was created and, on demand, its packets
//! and bytes.
//!
//! When an address changes its pod, the sessions that touch it end ([`table::departed`]).

mod fast_path;
mod found;
mod hash;
mod index;
mod owner;
mod record;
mod region;
mod state;
mod store;
mod table;
mod timeouts;
mod translation;
mod usage;

pub use fast_path::{PacketInfo, Translated};
pub use found::{Found, SessionId};
pub use owner::Owner;
pub use state::ConnectionState;
pub use store::SESSION_BYTES;
pub use table::{Candidate, Evicted, Opened, Opening, Refusal, Sessions, TupleOrigin};
pub use timeouts::Timeouts;
pub use translation::Tuples;
pub use usage::Usage;
