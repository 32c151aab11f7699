//! Verdicts and traces of the switch, in words and in JSON.
//!
//! - [`verdicts`]: the stream of verdicts about new connections (`podgate observe`),
//! - [`export`]: the same in a file that rotates,
//! - [`journal`]: the connections of a node, hour by hour, on disk (`podgate policy replay-journal`),
//! - [`trace`]: packets followed through the graph (`podgate trace`, `podgate replay --trace`),
//! - [`time`]: timestamps as people and scripts read them.

pub mod export;
pub mod journal;
mod shares;
pub mod time;
pub mod trace;
pub mod verdicts;
