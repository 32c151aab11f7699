//! The stream of verdicts about connections, with their reasons.
//!
//! ```text
//! worker 0 ─ Inspector ─▶ queue ─┐
//! worker 1 ─ Inspector ─▶ queue ─┴▶ EventBroker (Directory, history) ─▶ observers
//! ```
//!
//! A worker never waits: when its queue is full the event is lost, and counted. Packets of connections that were
//! allowed before make no events; otherwise each packet would make one.

mod broker;
mod decisions;
mod denials;
mod directory;
mod event;
mod filter;
mod history;
mod inspector;
mod naming;
mod pattern;
mod protocol;
mod rate;
mod reason;
mod selector;
mod staged;
mod wanted;
mod workload;

pub use broker::{Counts, EventBroker, Observer};
pub use decisions::{Decided, DecidingRule, OfPolicy};
pub use directory::{AddressNames, Directory, Peers};
#[cfg(test)]
pub(crate) use event::tests::denied;
pub use event::{End, Event, PodLabels, Process};
pub use filter::{Filter, Pod, network};
pub use inspector::Inspector;
pub use local_api::Verdict;
pub use naming::{Refused, RefusedWhat};
pub use pattern::Pattern;
pub use protocol::{Protocol, TcpFlags};
pub use reason::Reason;
pub use selector::Selector;
pub use staged::{Seen as StagedSeen, StagedCount, StagedRow, StagedVerdict};
pub use wanted::{Past, Wanted};
pub use workload::{Workload, workload};
