//! The API server: every kind listed once, then watched for as long as it lasts.
//!
//! ```text
//!            ┌────────── 410: the version held has expired ─────┐
//!            ▼                                                  │
//!   list by watch (sendInitialEvents) ──bookmark──► watch from a version ◄─┐
//!            │ not supported                             │  end, drop, 504 │
//!            ▼                                           └── wait, resume ─┘
//!   list by pages ───────────────────────────────────────►
//! ```
//!
//! - `watch`: the protocol of one kind as a state machine without I/O,
//! - `driver`: the requests of one kind, one after the other,
//! - `failures`: waits between requests; what wakes all kinds after an outage,
//! - `deletions`: deletions that may be those of a whole kind,
//! - `discovery`: the versions in which a kind is served,
//! - `cluster`: the identity of the cluster,
//! - `initial_sync`: what is reported before every kind is listed,
//! - `report`: conditions in the status of cluster policies,
//! - `node_addresses`, `node_policies`: what a node publishes,
//! - `readiness`: the condition and the taint of a node that is ready,
//! - `warning`: Events about policies,
//! - `lease`: the election of the one writer of conditions and Events,
//! - `aggregate`: pods by way of few compact objects that one switch writes,
//! - `review`: TokenReview and SubjectAccessReview,
//! - `switches`: the switches of all nodes, through the API server's proxy,
//! - `stream`: a watch without I/O, for fuzzing.
//!
//! Objects are stripped as they arrive; their JSON is not stored. While the API server does not
//! answer nothing is reported, so the known objects stay in force.

mod access;
mod aggregate;
mod answer;
mod cluster;
mod deletions;
mod discovery;
mod driver;
mod failures;
mod found;
mod initial_sync;
mod json;
mod lease;
mod list;
mod node_addresses;
mod node_policies;
mod protobuf;
mod readiness;
mod report;
mod review;
mod stream;
mod switches;
mod trouble;
mod warning;
mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

pub use api_client::{Failure, RequestError};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

pub use access::{Access, AccessError, Connection, connect};
use aggregate::Aggregator;
pub use aggregate::{Aggregate, AggregateRole, Aggregation, Timing};
pub use cluster::cluster_uid;
use driver::Driver;
use failures::Outage;
pub use initial_sync::InitialSync;
pub use kube::Client;
pub use lease::Election;
pub use list::list;
pub use node_addresses::publish_addresses;
pub use node_policies::{NodePolicies, StagedSum, list_policies, publish_policies};
pub use readiness::{TAINT, report_ready};
pub use report::report;
pub use review::{Review, Reviewer};
pub use stream::{parse_watch, parse_watch_protobuf};
pub use switches::{
    Deployment, Lines, SwitchPod, Switches, generation, node_of, nodes_with, pods_with,
};
pub use warning::{Severity, Warning, Warnings};

use crate::{Control, Fault, FieldFault, Kind, Object, ObjectRef, PodChange};

/// An event of the API server's watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The UID of the API server's cluster; `None` if it does not say.
    Cluster(Option<String>),
    /// All objects of a kind, after a list, and what is wrong with them.
    Resync(Kind, Vec<Object>, Vec<Fault>),
    /// An object came or changed, and what is wrong with it.
    Apply(Object, Vec<FieldFault>),
    /// An object went.
    Delete(ObjectRef),
    /// An event without a recognisable object.
    Fault(Fault),
    /// So many events of a kind said nothing new, and were passed over.
    PassedOver(Kind, u64),
    /// A request is answered; how long its head took.
    Responded(Kind, Duration),
    /// A request is answered for the first time, after a failure, or after a version expired.
    /// Events may be missing until [`Event::Current`].
    Answered(Kind),
    /// A list, an event or a bookmark shows that nothing of the kind is missing.
    Current(Kind),
    /// The kind is not installed; discovery is repeated at intervals.
    Absent(Kind),
    /// A request failed; it is retried.
    Trouble(Kind, String),
    /// A condition was written into an object's status, or an Event about it.
    Reported(ObjectRef),
    /// Writing it failed; it is retried.
    NotReported(ObjectRef, String),
    /// The policies that all nodes publish, by node.
    Published(BTreeMap<String, NodePolicies>),
    /// The aggregate that pods come from, or do not.
    Aggregate(Aggregate),
    /// Every initial list is complete; from here on the objects may decide about packets.
    Synced,
}

impl Control {
    /// Applies an event; returns the pod that changed, if the event was about a single one.
    pub fn handle(&mut self, event: Event) -> Option<PodChange> {
        match event {
            Event::Resync(kind, objects, _) => self.resync_kind(kind, objects),
            Event::Apply(object, _) => return self.applied(object),
            Event::Delete(reference) => return self.deleted(&reference),
            _ => {}
        }
        None
    }
}

/// Waits for answers, and between requests.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The first timeout until the head of an answer, that of a watch too, which comes at once: a server that hangs
    /// is noticed soon. Twice as long after each failure, for a server that is busy.
    pub answer: Duration,
    /// The first wait; each further one is twice as long, give or take a quarter.
    pub first: Duration,
    /// The longest wait.
    pub most: Duration,
    /// The longest wait of the one kind that retries often while the API server does not answer.
    pub outage: Duration,
    /// Interval of discovery for a kind that is not installed.
    pub absent: Duration,
    /// Time that the objects of a kind stay in force after it is uninstalled.
    pub hold: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            answer: Duration::from_millis(1500),
            first: Duration::from_millis(250),
            most: Duration::from_secs(30),
            outage: Duration::from_secs(1),
            absent: Duration::from_secs(20),
            hold: Duration::from_secs(60),
        }
    }
}

/// Watches all kinds, until the receiver is dropped or the returned set is.
///
/// Runs on the current tokio runtime.
pub fn watch(client: &Client, pace: Pace, events: &mpsc::Sender<Event>) -> JoinSet<()> {
    watch_kinds(&Kind::ALL, client, pace, events)
}

/// Watches all kinds; pods by way of what one of the switches writes about them, as far as that is well.
pub fn watch_aggregated(
    client: &Client,
    pace: Pace,
    aggregation: Aggregation,
    events: &mpsc::Sender<Event>,
) -> JoinSet<()> {
    let unlisted = Arc::new(AtomicUsize::new(Kind::ALL.len()));
    let outage = Arc::new(Outage::new());
    let others: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Pod).collect();
    let mut tasks = drivers(&others, client, pace, events, &outage, &unlisted);
    let pods = Aggregator::new(client, pace, events, outage, unlisted, aggregation);
    tasks.spawn(pods.run());
    tasks
}

/// Watches these kinds. [`Event::Synced`] comes once each of them is listed.
pub fn watch_kinds(
    kinds: &[Kind],
    client: &Client,
    pace: Pace,
    events: &mpsc::Sender<Event>,
) -> JoinSet<()> {
    let unlisted = Arc::new(AtomicUsize::new(kinds.len()));
    drivers(kinds, client, pace, events, &Arc::new(Outage::new()), &unlisted)
}

fn drivers(
    kinds: &[Kind],
    client: &Client,
    pace: Pace,
    events: &mpsc::Sender<Event>,
    outage: &Arc<Outage>,
    unlisted: &Arc<AtomicUsize>,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for kind in kinds {
        let driver = Driver::new(
            *kind,
            client.clone(),
            pace,
            events.clone(),
            Arc::clone(outage),
            Arc::clone(unlisted),
        );
        tasks.spawn(driver.run());
    }
    tasks
}

/// A quarter more or less, so that many clients do not come back together.
fn jittered(wait: Duration) -> Duration {
    let random = ahash::RandomState::new().hash_one(wait) % 512;
    wait.saturating_mul(768 + random as u32) / 1024
}
