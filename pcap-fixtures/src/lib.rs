//! Captures in, verdicts out: what the switch must do, packet by packet.
//!
//! ```text
//! scenarios/NAME.rs ─ make-captures → NAME/in.pcapng, NAME/expected.jsonl, NAME/fixture.json
//! NAME/manifests/   ─ written by hand
//! ```
//!
//! A [`Scenario`] has each packet and its expected verdict side by side. The
//! files made from it are kept in the repository, so that a fixture can be
//! replayed and looked at (`tshark -r`) without building anything; a test holds
//! them to be the same bytes as made anew. [`Fixture`] is the way back, for
//! tests that replay: it finds the folders and compares verdicts line by line.

mod expectation;
mod files;
mod fixture;
mod scenario;
mod scenarios;

pub use expectation::{Expected, Summary};
pub use files::{File, all_files};
pub use fixture::{Fixture, compare, root};
pub use scenario::{Scenario, Sent};
pub use scenarios::all as all_scenarios;
