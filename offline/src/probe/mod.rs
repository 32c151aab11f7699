//! Asks the compiled tables whether a connection may be opened.
//!
//! ```text
//! manifests ─▶ complete ─▶ control ─▶ view ─▶ cluster: one switch for each cluster node
//! cases ─▶ case ─▶ plan ─▶ opening packet ─▶ switch ─▶ uplink ─▶ switch ─▶ answer
//! ```
//!
//! Nothing here interprets a policy. For every connection in question the packet that would
//! open it is put into the sender's port of a real switch and followed, from cluster node to
//! cluster node, to where it ends; the answer is what the switches said about it.
//!
//! - [`cases`] and [`case`]: what is asked, as written by users,
//! - [`complete`]: gives addresses to pods and cluster nodes that have none,
//! - [`world`]: who is who in the manifests,
//! - [`plan`]: the connections that a case asks about,
//! - [`opening`]: the packets that open them,
//! - [`switch`] and [`cluster`]: where they are sent through,
//! - [`answer`]: what comes of it,
//! - [`report`] and [`grid`]: how it is told.

pub mod answer;
pub mod case;
pub mod cases;
pub mod cluster;
pub mod complete;
pub mod grid;
pub mod opening;
pub mod plan;
pub mod report;
pub mod switch;
pub mod world;

mod prober;

pub use answer::{Answer, Verdict};
pub use case::{Case, Endpoint, Fault, Port};
pub use opening::Protocol;
pub use plan::Question;
pub use prober::Prober;
