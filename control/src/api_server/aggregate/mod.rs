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
//! - `view`: what the others read, without I/O,
//! - `state`: settings, and what is displayed,
//! - `watches`: the watches of pods,
//! - `candidate`: the election, and the writer's requests,
//! - `follow`: the requests of the others,
//! - `merge`: the aggregate and the pods of the own node.
//!
//! A switch whose aggregate is late, or does not add up, watches all pods by itself until it is well again; while it
//! does, it is a candidate for the writer.

mod candidate;
mod follow;
mod merge;
mod objects;
mod publisher;
mod state;
mod text;
mod view;
mod watches;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use kube::Client;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::driver::Driver;
use super::failures::Outage;
use super::{Election, Event, Pace};
use crate::{Kind, Object, PodKey};
use candidate::{Candidate, Fed, Free, STANDBY, Seat};
use follow::News;
use merge::Merge;
use objects::{Log, Page, SLOTS};
pub use state::{Aggregate, AggregateRole, Aggregation, Timing};
use text::{Entry, Place};
use view::View;
use watches::{Full, Own, Pods, changed, next};

/// The longest time over which switches spread their own watches.
const LONGEST_SPREAD: Duration = Duration::from_secs(600);

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
    loading: Option<JoinHandle<Result<Vec<Page>, String>>>,
    /// The last objects of the log.
    log: BTreeMap<u64, Log>,
    /// Resource version of the list of the log.
    version: String,
    /// When the newest object came, or the watch was answered again; and how many came since the log was listed.
    heard: Instant,
    heard_count: u64,
    /// Why the watch of the log fails, and since when.
    trouble: Option<(String, Instant)>,
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
            log: BTreeMap::new(),
            version: String::new(),
            heard: now,
            heard_count: 0,
            trouble: None,
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

    /// News of the log.
    async fn news(&mut self, news: News) -> Result<(), Closed> {
        match news {
            News::Trouble(why) => {
                if self.is_reading && self.trouble.is_none() {
                    self.send(Event::Trouble(Kind::Pod, why.clone())).await?;
                }
                let since = self.trouble.take().map_or_else(Instant::now, |(_, since)| since);
                self.trouble = Some((why, since));
            }
            News::Answered => self.answered().await?,
            News::Listed(log, version) => {
                self.answered().await?;
                self.version = version;
                self.log.clear();
                self.heard_count = 0;
                let mut log: Vec<_> = log.into_iter().map(|it| (it.sequence, it)).collect();
                log.sort_by_key(|(sequence, _)| *sequence);
                for (_, log) in log {
                    self.written(log, false).await?;
                }
            }
            News::Written(log) => self.written(*log, true).await?,
        }
        Ok(())
    }

    /// The watch of the log is answered.
    async fn answered(&mut self) -> Result<(), Closed> {
        self.heard = Instant::now();
        let is_current = self.is_reading && self.own.as_ref().is_some_and(|own| own.is_current);
        if self.trouble.take().is_some() && is_current {
            self.send(Event::Current(Kind::Pod)).await?;
        }
        Ok(())
    }

    /// An object of the log; `is_new` if it was written just now.
    async fn written(&mut self, mut log: Log, is_new: bool) -> Result<(), Closed> {
        let Log { writer, standby, observed_version, observed_time, .. } = &mut log;
        [writer, standby, observed_version, observed_time].into_iter().for_each(make_plain);
        if is_new {
            self.heard = Instant::now();
            self.heard_count += 1;
        }
        let mut damage = None;
        if let Some(view) = &mut self.view {
            // What a list has beside the last ones was applied long ago.
            let is_old = !is_new && log.sequence.saturating_add(SLOTS) <= view.sequence();
            match if is_old { Ok(Vec::new()) } else { view.apply(&log) } {
                Ok(changes) => {
                    let own = self.own.as_mut().expect("it is watched beside the aggregate");
                    let changes = changes.into_iter();
                    let events: Vec<_> = changes.filter_map(|it| own.merge.elsewhere(it)).collect();
                    for event in events {
                        self.send(event).await?;
                    }
                }
                Err(why) => damage = Some(why),
            }
        }
        if is_new {
            // What was made anew may begin again below.
            self.log.split_off(&log.sequence.saturating_add(1));
        }
        self.log.insert(log.sequence, log);
        while self.log.len() as u64 > SLOTS {
            self.log.pop_first();
        }
        if let Some(why) = damage {
            self.damaged(why);
        }
        Ok(())
    }

    /// The aggregate does not add up: it is read again at once, and the own watch begins if that is in vain.
    fn damaged(&mut self, why: String) {
        tracing::warn!("PodgateAddresses: {why}");
        let spread = self.spread();
        if self.view.take().is_some() {
            self.leaving.get_or_insert((Instant::now() + spread, why));
            return;
        }
        self.told.reason = Some(why);
        self.not_before = Instant::now() + half_more_or_less(self.timing.again);
        if !self.is_reading {
            self.begin_full(Seat::None);
        }
    }

    /// A random part of the time over which the switches begin their own watches.
    fn spread(&self) -> Duration {
        let pods = self.log.last_key_value().map_or(0, |(_, log)| log.pods);
        let most = self.timing.spread.saturating_mul(u32::try_from(pods).unwrap_or(u32::MAX));
        most.min(LONGEST_SPREAD).mul_f64(fraction())
    }

    /// Why the aggregate is late; `None` if it is not.
    fn lateness(&self) -> Option<String> {
        let late = self.timing.late;
        if let Some((why, since)) = &self.trouble {
            let is_current = self.own.as_ref().is_none_or(|own| own.is_current);
            return (is_current && since.elapsed() > late).then(|| why.clone());
        }
        let Some((_, log)) = self.log.last_key_value() else {
            return Some("no PodgateAddresses are there".to_owned());
        };
        let age = Duration::from_millis(log.age);
        match () {
            () if age > late => {
                Some(format!("the pods of node {} are {} s old", log.writer, age.as_secs()))
            }
            () if self.heard.elapsed() > late => {
                let seconds = self.heard.elapsed().as_secs();
                Some(format!("node {} wrote nothing for {seconds} s", log.writer))
            }
            () => None,
        }
    }

    /// What follows from the state and the time.
    async fn decide(&mut self) -> Result<(), Closed> {
        let now = Instant::now();
        let late = self.lateness();
        let seat = self.full.as_ref().map_or(Seat::None, |full| *full.seat.borrow());
        let head = self.log.last_key_value().map(|(_, log)| log);
        let free = Free {
            writer: late.is_some(),
            standby: late.is_some() || head.is_some_and(|log| log.standby.is_empty()),
        };
        if let Some(full) = &self.full {
            full.free.send_if_modified(|known| std::mem::replace(known, free) != free);
        }
        let may_read = late.is_none() && self.heard_count > 0 && self.trouble.is_none();
        if self.is_reading {
            self.keep_reading(late, free.standby).await;
        }
        if self.view.is_some() {
            // It is followed.
        } else if may_read && seat == Seat::None && now >= self.not_before {
            self.load();
        } else if !self.is_reading && self.full.is_none() && now >= self.patience {
            self.begin_full(Seat::None);
        }
        if self.leaving.as_ref().is_some_and(|(at, _)| now >= *at) {
            self.begin_full(Seat::None);
        }
        self.tell().await
    }

    /// While the aggregate is in force: leaves it when it is late, and asks for the seat of a standby that is free.
    async fn keep_reading(&mut self, late: Option<String>, is_free: bool) {
        let now = Instant::now();
        match (late, &self.leaving) {
            (Some(why), None) => {
                tracing::warn!("PodgateAddresses: {why}");
                self.leaving = Some((now + self.spread(), why));
            }
            (None, Some(_))
                if self.view.is_some()
                    && self.full.as_ref().is_none_or(|it| *it.seat.borrow() == Seat::None) =>
            {
                self.leaving = None;
                self.full = None;
            }
            _ => {}
        }
        if !is_free || self.full.is_some() {
            self.vacancy = None;
            return;
        }
        // After an outage the one that was it comes back within this time.
        let at = self.vacancy.unwrap_or_else(|| now + self.timing.lease + self.spread() / 10);
        self.vacancy = Some(at);
        if now >= at {
            self.vacancy = None;
            if self.standby.is_elected().await == Ok(true) {
                self.begin_full(Seat::Standby);
            }
        }
    }

    /// Begins to read the aggregate, beside what is in force: the pods of the own node, then the pages.
    fn load(&mut self) {
        let node = self.node.clone();
        if self.own.is_none() {
            let pods = self.pods(Some(&node));
            let merge = Merge::new(&node);
            self.own = Some(Own { pods, merge, is_listed: false, is_current: false });
        }
        let is_listed = self.own.as_ref().is_some_and(|own| own.is_listed);
        if is_listed && self.loading.is_none() {
            let (client, version) = (self.client.clone(), self.version.clone());
            let load = async move { follow::pages(&client, &version).await };
            self.loading = Some(tokio::spawn(load));
        }
    }

    /// The pages are there: the aggregate comes into force.
    async fn loaded(&mut self, pages: Result<Vec<Page>, String>) -> Result<(), Closed> {
        self.loading = None;
        if self.full.as_ref().is_some_and(|full| *full.seat.borrow() != Seat::None) {
            return Ok(());
        }
        let log: Vec<Log> = self.log.values().cloned().collect();
        let (view, pods) = match pages.and_then(|pages| View::new(&pages, &log)) {
            Ok(read) => read,
            Err(why) => {
                self.damaged(why);
                return Ok(());
            }
        };
        let Some(own) = &mut self.own else { return Ok(()) };
        let all = own.merge.all(pods);
        let is_current = own.is_current;
        (self.view, self.is_reading) = (Some(view), true);
        self.told.reason = None;
        (self.full, self.leaving) = (None, None);
        self.list(all).await?;
        if is_current {
            self.send(Event::Current(Kind::Pod)).await?;
        }
        Ok(())
    }

    /// Begins to watch all pods, as a candidate for the writer that has this seat.
    fn begin_full(&mut self, seat: Seat) {
        if self.full.is_some() {
            return;
        }
        let pods = self.pods(None);
        let (fed, receiver) = mpsc::unbounded_channel();
        let (free, is_free) = watch::channel(Free::default());
        let (take, seat) = watch::channel(seat);
        let position = Arc::clone(&pods.position);
        let candidate = Candidate::new(
            self.client.clone(),
            &self.node,
            self.timing,
            receiver,
            position,
            is_free,
            take,
        );
        let task = tokio::spawn(candidate.run());
        self.full = Some(Full { pods, fed, free, seat, task, is_listed: false });
    }

    /// An event of the own watch of all pods.
    async fn of_all(&mut self, event: Event) -> Result<(), Closed> {
        let Some(full) = &mut self.full else { return Ok(()) };
        let fed = match &event {
            Event::Resync(_, objects, _) => {
                let pods = objects.iter().filter_map(|object| match object {
                    Object::Pod(pod) => Some((Place::of(pod.key.clone()), Entry::of(pod)?)),
                    _ => None,
                });
                Some(Fed::Reset(pods.collect()))
            }
            Event::Apply(Object::Pod(pod), _) => {
                Some(Fed::Set(Place::of(pod.key.clone()), Entry::of(pod)))
            }
            Event::Delete(reference) => {
                let namespace = reference.namespace.clone().unwrap_or_else(|| "default".into());
                let key = PodKey { namespace, name: reference.name.clone() };
                Some(Fed::Set(Place::of(key), None))
            }
            Event::Current(_) => Some(Fed::Current(true)),
            Event::Answered(_) | Event::Trouble(..) | Event::Absent(_) => Some(Fed::Current(false)),
            _ => None,
        };
        if let Some(fed) = fed {
            // It ends with this.
            let _ = full.fed.send(fed);
        }
        match event {
            Event::Resync(..) => {
                full.is_listed = true;
                if let Some((_, why)) = self.leaving.take() {
                    self.told.reason = Some(why);
                    self.not_before = Instant::now() + half_more_or_less(self.timing.again);
                }
                (self.view, self.own, self.loading) = (None, None, None);
                self.is_reading = false;
                self.list(event).await
            }
            // Until then the aggregate is in force, or nothing is.
            event if full.is_listed || !self.is_reading => self.send(event).await,
            _ => Ok(()),
        }
    }

    /// An event of the watch of the own node's pods.
    async fn of_own(&mut self, event: Event) -> Result<(), Closed> {
        let Some(own) = &mut self.own else { return Ok(()) };
        match &event {
            Event::Resync(..) => own.is_listed = true,
            Event::Current(_) => own.is_current = true,
            Event::Answered(_) | Event::Trouble(..) | Event::Absent(_) => own.is_current = false,
            _ => {}
        }
        let is_current = matches!(event, Event::Current(_));
        let events = own.merge.here(event);
        if !self.is_reading || is_current && self.trouble.is_some() {
            return Ok(());
        }
        for event in events {
            self.send(event).await?;
        }
        Ok(())
    }

    /// Watches all pods, or those of a node.
    fn pods(&self, node: Option<&str>) -> Pods {
        let (sender, events) = mpsc::channel(1);
        let position = Arc::<Mutex<String>>::default();
        // Whether every kind is listed is counted here.
        let unlisted = Arc::new(AtomicUsize::new(usize::MAX));
        let (client, outage) = (self.client.clone(), Arc::clone(&self.outage));
        let driver = Driver::new(Kind::Pod, client, self.pace, sender, outage, unlisted);
        let driver = driver.of_node(node).noting(&position);
        Pods { events, position, task: tokio::spawn(driver.run()) }
    }

    /// Passes a list of all pods on.
    async fn list(&mut self, event: Event) -> Result<(), Closed> {
        self.send(event).await?;
        let first = !std::mem::replace(&mut self.is_listed, true);
        if first && self.unlisted.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.send(Event::Synced).await?;
        }
        Ok(())
    }

    /// Reports the state if it is another one.
    async fn tell(&mut self) -> Result<(), Closed> {
        let seat = self.full.as_ref().filter(|it| it.is_listed).map(|it| *it.seat.borrow());
        let role = match seat {
            _ if self.is_reading => AggregateRole::Reading,
            Some(Seat::Writer) => AggregateRole::Writing,
            Some(Seat::Standby) => AggregateRole::Standby,
            Some(Seat::None) => AggregateRole::Watching,
            None => AggregateRole::Starting,
        };
        let mut now = Aggregate { role, ..self.told.clone() };
        now.reason = match (&self.leaving, role) {
            (Some((_, why)), _) => Some(why.clone()),
            (None, AggregateRole::Watching | AggregateRole::Starting) => {
                self.told.reason.clone().or_else(|| self.lateness())
            }
            (None, _) => None,
        };
        // What does not add up is not in force.
        if let Some((sequence, log)) = self.log.last_key_value()
            && (self.view.is_some() || !self.is_reading)
            && *sequence != self.told.sequence
        {
            now.writer.clone_from(&log.writer);
            now.standby.clone_from(&log.standby);
            now.sequence = *sequence;
            now.version.clone_from(&log.observed_version);
            now.written.clone_from(&log.observed_time);
            now.age = Duration::from_millis(log.age);
            now.received = Some(SystemTime::now());
        }
        if now != self.told {
            self.told = now.clone();
            self.send(Event::Aggregate(now)).await?;
        }
        Ok(())
    }

    async fn send(&self, event: Event) -> Result<(), Closed> {
        self.events.send(event).await.map_err(|_| Closed)
    }
}

/// What was loaded; waits for ever if nothing is.
async fn loaded(
    loading: &mut Option<JoinHandle<Result<Vec<Page>, String>>>,
) -> Option<Result<Vec<Page>, String>> {
    match loading {
        Some(task) => Some(task.await.unwrap_or_else(|error| Err(error.to_string()))),
        None => std::future::pending().await,
    }
}

/// A random number from 0 to 1.
fn fraction() -> f64 {
    (ahash::RandomState::new().hash_one(0_u8) % 1024) as f64 / 1024.0
}

/// Keeps what names, versions and times are made of: the text is repeated in logs and in the status.
fn make_plain(text: &mut String) {
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "-._:+".contains(it);
    *text = text.chars().filter(|it| is_plain(*it)).take(253).collect();
}

fn half_more_or_less(wait: Duration) -> Duration {
    wait.mul_f64(0.5 + fraction())
}
