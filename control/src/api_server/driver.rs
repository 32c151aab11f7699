//! Sends the requests of one kind's [`Watch`] and forwards its events.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use kube::Client;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::answer::{self, read_part};
use super::deletions::Deletions;
use super::discovery::{self, Served};
use super::failures::{Failures, Outage};
use super::trouble::Trouble;
use super::watch::{Next, Watch};
use super::{Event, Pace, jittered};
use crate::Kind;

/// Timeout of a watch without events; bookmarks come about once a minute.
const SILENCE: Duration = Duration::from_secs(150);
/// The longest timeout until the head of an answer, after failures; see [`Pace::answer`].
const LONGEST_ANSWER: Duration = Duration::from_secs(30);

/// The requests of one kind.
pub(super) struct Driver {
    client: Client,
    pace: Pace,
    events: mpsc::Sender<Event>,
    outage: Arc<Outage>,
    recovered: watch::Receiver<u64>,
    /// Whether the last request failed, or none was made.
    is_failing: bool,
    /// Kinds that are not listed yet.
    unlisted: Arc<AtomicUsize>,
    is_listed: bool,
    watch: Watch,
    failures: Failures,
    standing: Standing,
    absent_since: Option<Instant>,
    /// For kinds that may be absent.
    deletions: Option<Deletions>,
    /// The resource version that its events have reached.
    position: Option<Arc<Mutex<String>>>,
}

/// The state of the kind's watch reported last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Nothing, or trouble.
    Unanswered,
    /// [`Event::Answered`].
    Answered,
    /// [`Event::Current`].
    Current,
    /// [`Event::Absent`].
    Absent,
    /// The same, and its objects were deleted.
    Gone,
}

/// A kind that is no longer watched is not one that is served.
impl Drop for Driver {
    fn drop(&mut self) {
        if !self.is_failing {
            self.outage.begins();
        }
    }
}

/// The receiver of events was dropped.
struct Closed;

impl Driver {
    pub(super) fn new(
        kind: Kind,
        client: Client,
        pace: Pace,
        events: mpsc::Sender<Event>,
        outage: Arc<Outage>,
        unlisted: Arc<AtomicUsize>,
    ) -> Self {
        Self {
            client,
            pace,
            events,
            recovered: outage.subscribe(),
            is_failing: true,
            outage,
            unlisted,
            is_listed: false,
            watch: Watch::new(kind),
            failures: Failures::default(),
            standing: Standing::Unanswered,
            absent_since: None,
            deletions: kind.may_be_absent().then(Deletions::default),
            position: None,
        }
    }

    /// Watches the pods of one node alone, if one is given.
    pub(super) fn of_node(mut self, node: Option<&str>) -> Self {
        self.watch.limit_to(node);
        self
    }

    /// Notes the resource version that its events have reached.
    pub(super) fn noting(mut self, position: &Arc<Mutex<String>>) -> Self {
        self.position = Some(Arc::clone(position));
        self
    }

    pub(super) async fn run(mut self) {
        while self.round().await.is_ok() {}
    }

    /// One request, and the wait after it.
    async fn round(&mut self) -> Result<(), Closed> {
        self.recovered.borrow_and_update();
        let before = self.watch.progress();
        let trouble = self.request().await?.err();
        let next = self.watch.next_after(trouble.as_ref());
        match &trouble {
            Some(Trouble::Expired) => {
                self.failures.expired += 1;
                // Changes since then are unknown.
                self.become_answered().await?;
            }
            Some(_) => self.failed(),
            None if self.watch.progress() == before => self.failures.add(Instant::now()),
            None => {}
        }
        // A kind that every API server has is not absent: it is not answered.
        let is_news =
            |it: &&Trouble| it.is_news() || **it == Trouble::Absent && next != Next::WhenInstalled;
        if let Some(trouble) = trouble.as_ref().filter(is_news) {
            self.standing = Standing::Unanswered;
            self.send(Event::Trouble(self.watch.kind(), trouble.to_string())).await?;
        }
        let wait = match next {
            Next::AtOnce if trouble == Some(Trouble::Expired) => {
                self.failures.wait_expired(&self.pace)
            }
            Next::AtOnce if self.failures.count() < 2 => Duration::ZERO,
            Next::AtOnce | Next::BackOff => self.failures.wait(&self.pace),
            Next::After(wait) => wait,
            Next::WhenInstalled => self.absent().await?,
        };
        // What is not installed, and whoever asks for patience, is not waited for with others.
        let is_alone = matches!(next, Next::WhenInstalled | Next::After(_)) || wait.is_zero();
        self.rest(wait, trouble.is_some() && !is_alone).await
    }

    /// Notes that a request failed.
    fn failed(&mut self) {
        self.failures.add(Instant::now());
        if !std::mem::replace(&mut self.is_failing, true) {
            self.outage.begins();
        }
    }

    /// Notes that requests are served again, if they were not.
    fn recovers(&mut self) {
        if std::mem::take(&mut self.is_failing) {
            self.outage.is_over(self.failures.count() > 0, &self.pace);
        }
    }

    /// Waits; handles pending deletions in the meantime. With `with_others`, the wait ends early as
    /// [`Outage::wait`] says.
    async fn rest(&mut self, wait: Duration, with_others: bool) -> Result<(), Closed> {
        let until = Instant::now() + wait;
        loop {
            let rest = until.saturating_duration_since(Instant::now());
            let due = self.deletions_due();
            let others = self.outage.wait(&self.failures, rest, &self.pace, &mut self.recovered);
            tokio::select! {
                () = sleep_until(due.unwrap_or(until)), if due.is_some_and(|due| due < until) => {}
                has_recovered = others, if with_others => {
                    if has_recovered {
                        self.failures.clear();
                    }
                    return Ok(());
                }
                () = sleep(rest), if !with_others => return Ok(()),
                () = self.events.closed() => return Err(Closed),
            }
            self.look_after_deletions().await?;
        }
    }

    /// Handles a kind that is not installed, or not in the version watched; returns the wait before
    /// the next query.
    async fn absent(&mut self) -> Result<Duration, Closed> {
        let (now, kind) = (Instant::now(), self.watch.kind());
        match discovery::served(&self.client, kind).await {
            Served::In(version) => {
                self.watch.read_in(version);
                return Ok(self.failures.wait(&self.pace));
            }
            Served::Unknown => return Ok(self.failures.wait(&self.pace)),
            Served::Nowhere => {}
        }
        let since = *self.absent_since.get_or_insert(now);
        if !matches!(self.standing, Standing::Absent | Standing::Gone) {
            self.standing = Standing::Absent;
            self.send(Event::Absent(kind)).await?;
            self.listed().await?;
        }
        let counts_until = since + self.pace.hold;
        if now >= counts_until && self.standing != Standing::Gone {
            self.standing = Standing::Gone;
            self.deletions.iter_mut().for_each(Deletions::clear);
            self.send(Event::Resync(kind, Vec::new(), Vec::new())).await?;
        }
        let wait = jittered(self.pace.absent);
        Ok(match self.standing {
            Standing::Gone => wait,
            _ => wait.min(counts_until.saturating_duration_since(now)),
        })
    }

    /// One request, to its end.
    async fn request(&mut self) -> Result<Result<(), Trouble>, Closed> {
        let began = Instant::now();
        let first = self.pace.answer;
        let patience = first.saturating_mul(1 << self.failures.count().min(16));
        let patience = patience.min(LONGEST_ANSWER.max(first));
        let (path, accept) = (self.watch.path(), self.watch.accept());
        let mut requests = FuturesUnordered::from_iter([answer::get(&self.client, &path, accept)]);
        let (hangs, late) = (sleep(first), sleep(patience));
        let (mut hangs, mut late) = (std::pin::pin!(hangs), std::pin::pin!(late));
        let mut is_hanging = false;
        // What hangs may go on hanging when the API server does not: further requests are made beside it.
        let answer = loop {
            tokio::select! {
                Some(answer) = requests.next() => break answer,
                () = &mut late => break Err(Trouble::Silent),
                () = &mut hangs, if !is_hanging => {
                    is_hanging = true;
                    continue;
                }
                () = self.outage.turn(&self.pace), if is_hanging && self.is_failing => {}
                Ok(()) = self.recovered.changed(), if is_hanging && self.is_failing => {}
            }
            requests.push(answer::get(&self.client, &path, accept));
        };
        drop(requests);
        let took = began.elapsed();
        let (encoding, body) = match answer {
            Ok(answer) => answer,
            Err(trouble) => return Ok(Err(trouble)),
        };
        let framing = self.watch.answered(encoding);
        self.send(Event::Responded(self.watch.kind(), took)).await?;
        self.absent_since = None;
        // Whether another version can be read shows with its list.
        if self.standing != Standing::Current && !self.watch.is_foreign() {
            self.become_answered().await?;
        }
        let answered = Instant::now();
        let mut body = std::pin::pin!(body);
        let mut part = Vec::new();
        loop {
            let due = self.deletions_due();
            let never = Instant::now() + SILENCE;
            let holds = answered + self.pace.first;
            // Reading may be cancelled within a part and continues there.
            let read = tokio::select! {
                read = timeout(SILENCE, read_part(&mut body, &mut part, framing)) => read,
                () = sleep_until(due.unwrap_or(never)), if due.is_some() => {
                    self.look_after_deletions().await?;
                    continue;
                }
                // A watch goes on without a word where nothing changes.
                () = sleep_until(holds), if self.is_failing && self.watch.is_listed() => {
                    self.recovers();
                    continue;
                }
                () = self.events.closed() => return Err(Closed),
            };
            match read {
                Err(_) => return Ok(Err(Trouble::Silent)),
                Ok(Err(error)) => return Ok(Err(Trouble::Other(error.to_string()))),
                Ok(Ok(())) if part.is_empty() => break,
                Ok(Ok(())) => {}
            }
            let events = self.watch.part(&part[framing.head()..]);
            part.clear();
            match events {
                Ok(events) => self.pass_on(events).await?,
                Err(trouble) => return Ok(Err(trouble)),
            }
        }
        match self.watch.end() {
            Ok(events) => self.pass_on(events).await?,
            Err(trouble) => return Ok(Err(trouble)),
        }
        Ok(Ok(()))
    }

    /// Forwards a part's event, and reports the watch current if the part proves it.
    async fn pass_on(&mut self, events: Vec<Event>) -> Result<(), Closed> {
        let now = Instant::now();
        for event in events {
            let is_list = matches!(event, Event::Resync(..));
            let event = match &mut self.deletions {
                Some(deletions) => deletions.filter(event, now),
                None => Some(event),
            };
            if let Some(event) = event {
                self.send(event).await?;
            }
            if is_list {
                self.listed().await?;
            }
        }
        if self.watch.take_fruit() {
            if let (Some(position), Some(version)) = (&self.position, self.watch.held()) {
                version.clone_into(&mut position.lock());
            }
            if self.watch.is_watching_on() {
                self.failures.expired = 0;
            }
            self.recovers();
            if self.standing != Standing::Current && self.watch.is_listed() {
                self.standing = Standing::Current;
                self.send(Event::Current(self.watch.kind())).await?;
            }
        }
        Ok(())
    }

    async fn become_answered(&mut self) -> Result<(), Closed> {
        if self.standing == Standing::Answered {
            return Ok(());
        }
        self.standing = Standing::Answered;
        self.send(Event::Answered(self.watch.kind())).await
    }

    /// The kind is listed, or known to be absent.
    async fn listed(&mut self) -> Result<(), Closed> {
        let first = !std::mem::replace(&mut self.is_listed, true);
        // The channel keeps the order, so all objects precede this.
        if first && self.unlisted.fetch_sub(1, Ordering::AcqRel) == 1 {
            return self.send(Event::Synced).await;
        }
        Ok(())
    }

    async fn send(&self, event: Event) -> Result<(), Closed> {
        self.events.send(event).await.map_err(|_| Closed)
    }

    fn deletions_due(&self) -> Option<Instant> {
        self.deletions.as_ref().and_then(Deletions::due)
    }

    /// Forwards confirmed deletions.
    async fn look_after_deletions(&mut self) -> Result<(), Closed> {
        let now = Instant::now();
        let is_installed = match self.deletions.as_ref().is_some_and(|it| it.asks(now)) {
            true => {
                let (version, kind) = (self.watch.version(), self.watch.kind());
                discovery::is_installed(&self.client, version, kind).await
            }
            false => None,
        };
        let deletions = self.deletions.iter_mut();
        let gone: Vec<_> =
            deletions.flat_map(|it| it.look(is_installed, self.pace.hold, now)).collect();
        for reference in gone {
            self.send(Event::Delete(reference)).await?;
        }
        Ok(())
    }
}
