//! The stream of verdicts: what the switch decided about which connection, and why.
//!
//! ```text
//! worker 0 ─ Inspector ─▶ queue ─┐
//! worker 1 ─ Inspector ─▶ queue ─┴▶ EventBroker (names, history) ─▶ observers
//! ```
//!
//! A worker never waits: when its queue is full the event is lost, and counted. Packets of
//! connections that were allowed before are no events; otherwise there would be one a packet.

mod broker;
mod denials;
mod event;
mod filter;
mod history;
mod inspector;
mod rate;
mod wanted;

pub use broker::{Counts, EventBroker, Names, Observer};
pub use broker::{flag_names, protocol_name};
pub use denials::policy_of;
#[cfg(test)]
pub(crate) use event::tests::denied;
pub use event::{Direction, End, Event, PodLabels};
pub use filter::{Filter, Pod};
pub use inspector::Inspector;
pub use local_api::Verdict;
pub use wanted::{Past, Wanted};
