//! Answers whether a connection may be opened.
//!
//! ```text
//! manifests ─▶ complete ─▶ control ─▶ view ─▶ cluster: one switch for each node
//! cases ─▶ case ─▶ plan ─▶ opening packet ─▶ switch ─▶ uplink ─▶ switch ─▶ answer
//! ```
//!
//! Nothing here interprets a policy or a service. For every connection in question the packet that
//! opens it enters the sender's port of a real switch and is followed, from node to
//! node, to where it ends; the answer is the switches' own.
//!
//! - [`cases`] and [`case`]: questions as users write them,
//! - [`names`]: domain names and their addresses,
//! - [`complete`] and `endpoints`: addresses and endpoints that manifests leave out,
//! - [`world`]: the objects by name and by address,
//! - [`plan`]: the connections that a question is about,
//! - [`opening`]: the packets that open them,
//! - [`switch`] and [`cluster`]: the switches that they are sent through,
//! - [`host`]: the host firewalls at either end,
//! - [`answer`]: the answer,
//! - [`report`] and [`grid`]: its output.

pub mod answer;
pub mod case;
pub mod cases;
pub mod cluster;
pub mod complete;
mod endpoints;
mod ends;
pub mod grid;
pub mod host;
pub mod names;
pub mod opening;
pub mod plan;
mod pool;
pub mod report;
pub mod switch;
pub mod world;

mod prober;

pub use answer::{Answer, Expected, Judgement, ProbeVerdict};
pub use case::{Case, Fault};
pub use cluster::Unended;
pub use ends::{Endpoint, Port};
pub use names::DomainAddresses;
pub use opening::Protocol;
pub use plan::Question;
pub use prober::Prober;
