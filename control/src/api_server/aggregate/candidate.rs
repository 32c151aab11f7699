//! A switch that watches all pods: it may become the writer, or the standby that takes over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api_client::{Failure, RequestError, call_object};
use kube::Client;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::super::Election;
use super::objects::{Written, folder};
use super::publisher::{About, Publisher};
use super::text::{Entry, Place};
use super::{Timing, follow};

/// Requests without an answer fail after this time.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Leases of the writer and of the standby.
pub(super) const WRITER: &str = "podgate-addresses";
pub(super) const STANDBY: &str = "podgate-addresses-standby";

/// An event of the watch of pods.
#[derive(Debug)]
pub(super) enum Fed {
    /// All pods.
    Reset(BTreeMap<Place, Entry>),
    /// A pod came, changed or went.
    Set(Place, Option<Entry>),
    /// Whether the watch is current.
    Current(bool),
}

/// Its part in writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Seat {
    /// None.
    #[default]
    None,
    /// It writes.
    Writer,
    /// It takes over when the writer ends.
    Standby,
}

/// The seats that seem to be free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Free {
    pub(super) writer: bool,
    pub(super) standby: bool,
}

pub(super) struct Candidate {
    client: Client,
    node: String,
    timing: Timing,
    fed: mpsc::UnboundedReceiver<Fed>,
    /// The resource version of the pods.
    position: Arc<Mutex<String>>,
    free: watch::Receiver<Free>,
    seat: watch::Sender<Seat>,
    writer: Election,
    standby: Election,
    publisher: Publisher,
    is_listed: bool,
    /// The seat that it had last, unless another switch has taken it.
    last: Seat,
    failure: Option<RequestError>,
    /// Since when the watch of pods is not current.
    outdated: Option<Instant>,
    /// The objects of the API server are known.
    is_adopted: bool,
    /// When they were compared last.
    checked: Instant,
    standby_name: String,
    asked: Option<Instant>,
    /// When the last object of the log was written, and the last one with changes.
    logged: Option<Instant>,
    changed: Option<Instant>,
}

impl Candidate {
    pub(super) fn new(
        client: Client,
        node: &str,
        timing: Timing,
        fed: mpsc::UnboundedReceiver<Fed>,
        position: Arc<Mutex<String>>,
        free: watch::Receiver<Free>,
        seat: watch::Sender<Seat>,
    ) -> Self {
        let election = |name| Election::of(client.clone(), name, node, timing.lease);
        let (writer, standby) = (election(WRITER), election(STANDBY));
        let last = *seat.borrow();
        Self {
            client,
            node: node.to_owned(),
            timing,
            fed,
            position,
            free,
            seat,
            writer,
            standby,
            publisher: Publisher::default(),
            is_listed: false,
            last,
            failure: None,
            outdated: None,
            is_adopted: false,
            checked: Instant::now(),
            standby_name: String::new(),
            asked: None,
            logged: None,
            changed: None,
        }
    }

    pub(super) async fn run(mut self) {
        let mut next = Instant::now();
        loop {
            tokio::select! {
                fed = self.fed.recv() => match fed {
                    Some(fed) => self.take(fed),
                    None => return,
                },
                () = sleep_until(next) => {}
            }
            // What comes meanwhile is not waited for.
            for _ in 0..self.fed.len() {
                if let Ok(fed) = self.fed.try_recv() {
                    self.take(fed);
                }
            }
            let seat = self.campaign().await;
            self.seat.send_if_modified(|known| std::mem::replace(known, seat) != seat);
            next = Instant::now() + self.timing.flush / 4;
            if seat != Seat::Writer {
                self.is_adopted = false;
                continue;
            }
            match self.publish().await {
                Ok(due) => {
                    self.failure = None;
                    next = next.min(due);
                }
                Err(error) => {
                    if self.failure.as_ref() != Some(&error) {
                        tracing::warn!("PodgateAddresses: {error}");
                    }
                    (self.failure, self.is_adopted) = (Some(error), false);
                    sleep(self.timing.flush).await;
                }
            }
        }
    }

    fn take(&mut self, fed: Fed) {
        match fed {
            Fed::Reset(pods) => {
                self.is_listed = true;
                self.publisher.reset(pods);
            }
            Fed::Set(place, entry) => self.publisher.set(place, entry),
            Fed::Current(true) => self.outdated = None,
            Fed::Current(false) => drop(self.outdated.get_or_insert_with(Instant::now)),
        }
    }

    /// Acquires or renews the seat that is to be had.
    async fn campaign(&mut self) -> Seat {
        let (seat, free) = (*self.seat.borrow(), *self.free.borrow());
        let now = Instant::now();
        let is_due = self.asked.is_none_or(|at| now - at >= self.timing.lease / 3);
        if !is_due {
            return seat;
        }
        self.asked = Some(now);
        let may_write = self.is_listed && (self.last != Seat::None || free.writer);
        if may_write && self.holds(Seat::Writer).await {
            let holder = self.standby.holder().await;
            self.standby_name = holder.ok().flatten().unwrap_or_default();
            return Seat::Writer;
        }
        let stands_by = self.last == Seat::Standby || free.standby;
        match stands_by && self.holds(Seat::Standby).await {
            true => Seat::Standby,
            false => Seat::None,
        }
    }

    /// Returns whether this switch holds the Lease of the seat. If the API server does not answer, a recently renewed
    /// Lease still counts, and is asked for again later.
    async fn holds(&mut self, seat: Seat) -> bool {
        let election = if seat == Seat::Writer { &mut self.writer } else { &mut self.standby };
        let renewed = election.renew().await;
        let elected = election.is_elected().await;
        match &elected {
            Ok(true) => self.last = seat,
            Ok(false) if self.last == seat => self.last = Seat::None,
            _ => {}
        }
        if let Some(error) = renewed.err().or(elected.as_ref().err().cloned()) {
            tracing::debug!("{error}");
        }
        elected == Ok(true)
    }

    /// Writes what is due; returns when more is.
    ///
    /// Changes are written as soon as the last ones are `flush` old, the first at once. A page is written while none is due,
    /// one at a time, so that a change waits for one page at most.
    async fn publish(&mut self) -> Result<Instant, RequestError> {
        if !self.is_adopted {
            self.publisher.adopt(follow::objects(&self.client).await?);
            (self.is_adopted, self.checked) = (true, Instant::now());
        }
        let due = self.log_due();
        if Instant::now() < due {
            self.check().await?;
            return Ok(if self.write_pages().await? { Instant::now() } else { due });
        }
        loop {
            let (about, has_changes) = (self.about(), self.publisher.has_pending());
            match self.publisher.next_log(&about) {
                Some(log) => {
                    self.write(&log).await?;
                    self.logged = Some(Instant::now());
                    if has_changes {
                        self.changed = self.logged;
                    }
                }
                None => drop(self.write_pages().await?),
            }
            if !self.publisher.has_pending() || !self.writer.is_elected().await? {
                return Ok(Instant::now());
            }
        }
    }

    /// Compares the objects with those that were written, once in a while: what another client changed or deleted would
    /// else be noticed when it is written again, which may be minutes later.
    async fn check(&mut self) -> Result<(), RequestError> {
        if self.checked.elapsed() < self.timing.again {
            return Ok(());
        }
        self.checked = Instant::now();
        let objects = follow::versions(&self.client).await?;
        match self.publisher.has_written(&objects) {
            true => Ok(()),
            false => Err(RequestError::new("its objects", Failure::Changed)),
        }
    }

    /// When the next object of the log is due.
    fn log_due(&self) -> Instant {
        let Timing { flush, heartbeat, .. } = self.timing;
        let last = match self.publisher.has_pending() {
            true => self.changed.map(|at| at + flush),
            false => self.logged.map(|at| at + heartbeat),
        };
        last.unwrap_or_else(Instant::now)
    }

    fn about(&self) -> About {
        let now = jiff::Timestamp::now();
        About {
            writer: self.node.clone(),
            standby: self.standby_name.clone(),
            version: self.position.lock().clone(),
            time: format!("{now:.3}"),
            age: self.outdated.map_or(0, |since| since.elapsed().as_millis() as u64),
        }
    }

    /// Writes a page that is late, or its parts; returns whether there was one.
    async fn write_pages(&mut self) -> Result<bool, RequestError> {
        let Some(plan) = self.publisher.next_pages() else { return Ok(false) };
        for page in &plan.write {
            self.write(page).await?;
            // A lease has to be renewed when there are many.
            self.writer.renew().await?;
        }
        for name in &plan.delete {
            let path = format!("{}/{name}", folder());
            call_object(&self.client, "DELETE", &path, None, TIMEOUT).await?;
            self.publisher.stored(name, None);
            self.writer.renew().await?;
        }
        self.publisher.paged(&plan);
        Ok(true)
    }

    /// Writes an object over the version that is known.
    async fn write(&mut self, written: &Written) -> Result<(), RequestError> {
        let known = self.publisher.version_of(&written.name);
        let object = written.object(known);
        let (method, path) = match known {
            Some(_) => ("PUT", format!("{}/{}", folder(), written.name)),
            None => ("POST", folder()),
        };
        let answer = call_object(&self.client, method, &path, Some(&object), TIMEOUT).await;
        let stored = answer?.unwrap_or_else(|| json!({}));
        let Some(version) = stored["metadata"]["resourceVersion"].as_str() else {
            return Err(RequestError::new(&written.name, Failure::Changed));
        };
        self.publisher.stored(&written.name, Some(version.to_owned()));
        Ok(())
    }
}
