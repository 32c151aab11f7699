//! The stream of verdicts: what the switch decided about which connection, and why.
//!
//! ```text
//! worker 0 ─ Inspector ─▶ queue ─┐
//! worker 1 ─ Inspector ─▶ queue ─┴▶ EventBroker (Directory, history) ─▶ observers
//! ```
//!
//! A worker never waits: when its queue is full the event is lost, and counted. Packets of
//! connections that were allowed before are no events; otherwise there would be one a packet.

mod broker;
mod decisions;
mod denials;
mod directory;
mod event;
mod filter;
mod history;
mod inspector;
mod pattern;
mod protocol;
mod rate;
mod reason;
mod selector;
mod staged;
mod wanted;
mod workload;

pub use broker::{Counts, EventBroker, Observer, Refused, RefusedWhat};
pub use decisions::{Decided, DecidingRule, OfPolicy};
pub use directory::{AddressNames, Directory, Peers};
#[cfg(test)]
pub(crate) use event::tests::denied;
pub use event::{End, Event, PodLabels, Process};
pub use filter::{Filter, Pod, network};
pub use inspector::Inspector;
pub use local_api::Verdict;
pub use pattern::Pattern;
pub use protocol::{Protocol, TcpFlags};
pub use reason::Reason;
pub use selector::Selector;
pub use staged::{Seen as StagedSeen, StagedCount, StagedRow, StagedVerdict};
pub use wanted::{Past, Wanted};
pub use workload::{Workload, workload};
