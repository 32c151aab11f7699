//! The settings of an aggregate, and its state for display.

use std::time::{Duration, SystemTime};

/// State of the aggregation.
#[derive(Clone, Debug)]
pub struct Aggregation {
    /// The own node.
    pub node: String,
    /// Intervals and bounds.
    pub timing: Timing,
}

/// Intervals and bounds of an aggregate.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Changes are collected for this time before they are written.
    pub flush: Duration,
    /// Interval of signs of life.
    pub heartbeat: Duration,
    /// An aggregate whose newest object is older is late.
    pub late: Duration,
    /// Duration of the Leases.
    pub lease: Duration,
    /// Time over which the switches of a cluster spread their own watches when the aggregate is late, for each pod.
    pub spread: Duration,
    /// Wait before an aggregate that was late or did not add up is read again, give or take a half.
    pub again: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            flush: Duration::from_millis(500),
            heartbeat: Duration::from_secs(2),
            late: Duration::from_secs(12),
            lease: Duration::from_secs(5),
            spread: Duration::from_millis(2),
            again: Duration::from_secs(30),
        }
    }
}

/// Where the pods of other nodes come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AggregateRole {
    /// That is not decided.
    #[default]
    Starting,
    /// The aggregate.
    Reading,
    /// The own watch of all pods.
    Watching,
    /// The same, and this switch writes the aggregate.
    Writing,
    /// The same, and this switch takes over when the writer ends.
    Standby,
}

impl AggregateRole {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Reading => "reading",
            Self::Watching => "watching",
            Self::Writing => "writing",
            Self::Standby => "standby",
        }
    }
}

/// The aggregate, as this switch knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Aggregate {
    /// Where the pods come from.
    pub role: AggregateRole,
    /// Why not from the aggregate, or why not for much longer.
    pub reason: Option<String>,
    /// The node that writes; empty if nothing was read.
    pub writer: String,
    /// The node that takes over; empty if there is none.
    pub standby: String,
    /// The sequence number of the newest object.
    pub sequence: u64,
    /// The resource version of the pods that the writer had.
    pub version: String,
    /// When it was written, by the writer's clock, RFC 3339.
    pub written: String,
    /// Age of the writer's view at that time.
    pub age: Duration,
    /// When it was received.
    pub received: Option<SystemTime>,
}
