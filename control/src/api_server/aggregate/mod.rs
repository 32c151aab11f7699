//! Pods by way of PodgateAddresses: one switch watches all pods and writes them into few compact objects, the others
//! watch these, and the pods of their own node directly.
//!
//! ```text
//!              ┌─ all pods ──▶ writer ── pages, log ──▶ API server
//! API server ──┤   (and one standby)                        │ log (watched), pages (listed once)
//!              └─ pods of the own node ──▶ merge ◀── view ◀─┘
//!                                            └──▶ events, as of one watch of all pods
//! ```
//!
//! - `text`: pods as text,
//! - `objects`: the kind,
//! - `publisher`: what the writer writes, without I/O,
//! - `damage`: why what they read does not add up,
//! - `view`: what the others read, without I/O,
//! - `heard`: the log as received, and whether it is late, without I/O,
//! - `state`: settings, and what is displayed,
//! - `watches`: the watches of pods,
//! - `candidate`: the election, and the writer's requests,
//! - `follow`: the requests of the others,
//! - `merge`: the aggregate and the pods of the own node,
//! - `news`: what follows from the log,
//! - `sources`: the sources of pods, begun and ended,
//! - `fallback`: which of them is in force,
//! - `report`: what is displayed of that.
//!
//! A switch whose aggregate is late, or does not add up, watches all pods by itself until it is well again; while it
//! does, it is a candidate for the writer.

mod candidate;
mod damage;
mod fallback;
mod follow;
mod heard;
mod merge;
mod news;
mod objects;
mod publisher;
mod report;
mod sources;
mod state;
mod text;
mod view;
mod watches;

#[cfg(test)]
mod delay;
#[cfg(test)]
mod sizes;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use api_client::RequestError;
use kube::Client;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::failures::Outage;
use super::{Election, Event, Pace};
use candidate::STANDBY;
use follow::News;
use heard::Heard;
use objects::Page;
pub use state::{Aggregate, AggregateRole, Aggregation, Timing};
use view::View;
use watches::{Full, Own, changed, loaded, next};

/// The source of pods.
pub(super) struct Aggregator {
    client: Client,
    pace: Pace,
    node: String,
    timing: Timing,
    events: mpsc::Sender<Event>,
    outage: Arc<Outage>,
    unlisted: Arc<AtomicUsize>,
    is_listed: bool,
    full: Option<Full>,
    own: Option<Own>,
    /// The pods in force are those of the aggregate and of the own node.
    is_reading: bool,
    /// The state of the aggregate; `None` when it does not add up.
    view: Option<View>,
    loading: Option<JoinHandle<Result<Vec<Page>, RequestError>>>,
    /// The log.
    heard: Heard,
    /// When the own watch of all pods begins, and why.
    leaving: Option<(Instant, String)>,
    /// Time at which this switch asks for the free seat of the standby.
    vacancy: Option<Instant>,
    standby: Election,
    /// The aggregate is not read before.
    not_before: Instant,
    /// The own watch of all pods begins then if the aggregate cannot be read at a start.
    patience: Instant,
    told: Aggregate,
}

/// The receiver of events was dropped.
struct Closed;

impl Aggregator {
    pub(super) fn new(
        client: &Client,
        pace: Pace,
        events: &mpsc::Sender<Event>,
        outage: Arc<Outage>,
        unlisted: Arc<AtomicUsize>,
        Aggregation { node, timing }: Aggregation,
    ) -> Self {
        let now = Instant::now();
        Self {
            client: client.clone(),
            pace,
            standby: Election::of(client.clone(), STANDBY, &node, timing.lease),
            node,
            timing,
            events: events.clone(),
            outage,
            unlisted,
            is_listed: false,
            full: None,
            own: None,
            is_reading: false,
            view: None,
            loading: None,
            heard: Heard::new(now),
            leaving: None,
            vacancy: None,
            not_before: now,
            patience: now + 3 * timing.heartbeat,
            told: Aggregate::default(),
        }
    }

    pub(super) async fn run(mut self) {
        let (sender, mut news) = mpsc::channel(1);
        let follow = follow::follow(self.client.clone(), self.pace, sender);
        let following = tokio::spawn(follow);
        while self.round(&mut news).await.is_ok() {}
        following.abort();
    }

    async fn round(&mut self, news: &mut mpsc::Receiver<News>) -> Result<(), Closed> {
        let due = Instant::now() + self.timing.flush;
        let mut seat = self.full.as_ref().map(|full| full.seat.clone());
        tokio::select! {
            Some(news) = news.recv() => self.news(news).await?,
            Some(event) = next(self.full.as_mut().map(|it| &mut it.pods)) => self.of_all(event).await?,
            Some(event) = next(self.own.as_mut().map(|it| &mut it.pods)) => self.of_own(event).await?,
            Some(loaded) = loaded(&mut self.loading) => self.loaded(loaded).await?,
            () = changed(&mut seat) => {
                if let Some(full) = &mut self.full {
                    full.seat.borrow_and_update();
                }
            }
            () = sleep_until(due) => {}
            () = self.events.closed() => return Err(Closed),
        }
        self.decide().await
    }

    async fn send(&self, event: Event) -> Result<(), Closed> {
        self.events.send(event).await.map_err(|_| Closed)
    }
}
