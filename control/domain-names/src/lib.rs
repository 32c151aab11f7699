//! Addresses of domain names, as the DNS answers of pods give them.
//!
//! ```text
//!  DNS packets of a pod ─▶ Follower ─▶ answers that match a question ─▶ NameTable ─▶ changes
//!                          (stream, message)                            (TTL, bounds)
//! ```
//!
//! | what | where |
//! |---|---|
//! | names of policies, `*.` prefixes | [`DomainPattern`] |
//! | questions and answers of one message | [`message`] |
//! | DNS over TCP: messages out of segments | [`Stream`] |
//! | answers that match a question | [`Follower`] |
//! | lifetime and number of addresses | [`NameTable`] |
//! | fair turns between pods | [`Turns`] |
//!
//! Nothing here knows a socket or a clock: bytes and a time come in.

mod follower;
mod limits;
pub mod message;
mod pattern;
mod saved;
mod stream;
mod table;
mod turns;

pub use follower::{Answer, Follower, Seen, Segment};
pub use limits::Limits;
pub use pattern::{BadPattern, DomainPattern};
pub use saved::SavedAddress;
pub use stream::{Broken, Stream};
pub use table::{Answered, Change, Counters, NameTable, Row};
pub use turns::{Turn, Turns};
