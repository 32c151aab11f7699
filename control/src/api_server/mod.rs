//! The API server: every kind listed once, then watched for as long as it lasts.
//!
//! ```text
//!            ┌────────── 410: what we have is too old ──────────┐
//!            ▼                                                  │
//!   list by watch (sendInitialEvents) ──bookmark──► watch from a version ◄─┐
//!            │ not supported                             │  end, drop, 504 │
//!            ▼                                           └── wait, resume ─┘
//!   list by pages ───────────────────────────────────────►
//! ```
//!
//! The protocol is split in two: a state machine that is told what came and says what to ask
//! next, without I/O (`watch.rs`), and the driver here that asks. Objects are stripped as they
//! arrive; their JSON is never kept.
//!
//! While the API server is away nothing is sent, so what was known stays in force.

mod access;
mod gather;
mod report;
mod trouble;
mod watch;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::{AsyncBufRead, AsyncBufReadExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

pub use access::{Access, AccessError, Connection, connect};
pub use gather::Gathering;
pub use kube::Client;
pub use report::report;
use trouble::Trouble;
use watch::{Next, Watch};

use crate::{Control, Fault, FieldFault, Kind, Object, ObjectRef};

/// What the API server's watches tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// All objects of a kind, after a list, and what is wrong with them.
    Resync(Kind, Vec<Object>, Vec<Fault>),
    /// An object came or changed, and what is wrong with it.
    Apply(Object, Vec<FieldFault>),
    /// An object went.
    Delete(ObjectRef),
    /// Something that could not be told to be any object.
    Fault(Fault),
    /// A request is answered: at first, and after trouble.
    Connected(Kind),
    /// The kind is not installed; it is looked for again by and by.
    Absent(Kind),
    /// A request failed; it is tried again by itself.
    Trouble(Kind, String),
    /// A condition was written into an object's status.
    Reported(ObjectRef),
    /// It could not be, and is tried again.
    NotReported(ObjectRef, String),
    /// Every kind has been listed once: what was told so far is a whole cluster, and only
    /// from here on may it decide about packets.
    Synced,
}

impl Control {
    /// Works in what a watch told; whether it was [`Event::Synced`].
    pub fn handle(&mut self, event: Event) -> bool {
        match event {
            Event::Resync(kind, objects, _) => self.resync_kind(kind, objects),
            Event::Apply(object, _) => self.apply(object),
            Event::Delete(reference) => self.delete(&reference),
            Event::Synced => return true,
            Event::Fault(_)
            | Event::Connected(_)
            | Event::Absent(_)
            | Event::Trouble(..)
            | Event::Reported(_)
            | Event::NotReported(..) => {}
        }
        false
    }
}

/// Waits between tries.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The first wait; each further one is twice as long, give or take a quarter.
    pub first: Duration,
    /// The longest wait.
    pub most: Duration,
    /// Between looks whether a kind that is not installed has come.
    pub absent: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(250),
            most: Duration::from_secs(30),
            absent: Duration::from_secs(20),
        }
    }
}

/// Watches all kinds, until the receiver is dropped or the returned set is.
///
/// Runs on the current tokio runtime.
pub fn watch(client: &Client, pace: Pace, events: &mpsc::Sender<Event>) -> JoinSet<()> {
    let unsynced = Arc::new(AtomicUsize::new(Kind::ALL.len()));
    let mut tasks = JoinSet::new();
    for kind in Kind::ALL {
        let driver = Driver {
            client: client.clone(),
            pace,
            events: events.clone(),
            unsynced: Arc::clone(&unsynced),
            watch: Watch::new(kind),
            synced: false,
            connected: false,
        };
        tasks.spawn(driver.run());
    }
    tasks
}

/// A line longer than this is no object: the API server refuses objects of a tenth of it.
const LONGEST_LINE: usize = 32 << 20;

/// Asks what a [`Watch`] wants to know.
struct Driver {
    client: Client,
    pace: Pace,
    events: mpsc::Sender<Event>,
    unsynced: Arc<AtomicUsize>,
    watch: Watch,
    synced: bool,
    /// The last request was answered, and that was told.
    connected: bool,
}

impl Driver {
    async fn run(mut self) {
        let mut tries = 0;
        loop {
            let before = self.watch.progress();
            let trouble = self.ask().await.err();
            if self.events.is_closed() {
                return;
            }
            tries = if self.watch.progress() == before { tries + 1 } else { 0 };
            let wait = match self.watch.next_after(trouble.as_ref()) {
                Next::AtOnce if tries < 2 => Duration::ZERO,
                Next::AtOnce | Next::BackOff => self.back_off(tries),
                Next::After(wait) => wait,
                Next::WhenInstalled => {
                    self.connected = false;
                    let kind = self.watch.kind();
                    if self.watch.is_gone()
                        && !(self.tell(Event::Absent(kind)).await
                            && self.tell(Event::Resync(kind, Vec::new(), Vec::new())).await)
                    {
                        return;
                    }
                    jittered(self.pace.absent)
                }
            };
            if let Some(trouble) = trouble.filter(Trouble::is_news) {
                self.connected = false;
                let event = Event::Trouble(self.watch.kind(), trouble.to_string());
                if !self.tell(event).await {
                    return;
                }
            }
            tokio::time::sleep(wait).await;
        }
    }

    fn back_off(&self, tries: u32) -> Duration {
        let doubled = self.pace.first.saturating_mul(1 << tries.min(16));
        jittered(doubled.min(self.pace.most))
    }

    /// One request, to its end.
    async fn ask(&mut self) -> Result<(), Trouble> {
        let request = http::Request::get(self.watch.path())
            .body(Vec::new())
            .map_err(|error| Trouble::Other(error.to_string()))?;
        let answer = self.client.request_stream(request);
        let body = match tokio::time::timeout(watch::SILENCE, answer).await {
            Ok(Ok(body)) => {
                if !std::mem::replace(&mut self.connected, true) {
                    self.tell(Event::Connected(self.watch.kind())).await;
                }
                body
            }
            Ok(Err(kube::Error::Api(status))) => {
                let seconds = status.details.as_ref().map_or(0, |it| it.retry_after_seconds);
                return Err(Trouble::status(status.code, &status.message, seconds));
            }
            Ok(Err(error)) => return Err(Trouble::Other(error.to_string())),
            Err(_) => return Err(Trouble::Silent),
        };
        let mut body = std::pin::pin!(body);
        let mut line = Vec::new();
        loop {
            line.clear();
            match tokio::time::timeout(watch::SILENCE, read_line(&mut body, &mut line)).await {
                Err(_) => return Err(Trouble::Silent),
                Ok(Err(error)) => return Err(Trouble::Other(error.to_string())),
                Ok(Ok(())) if line.is_empty() => break,
                Ok(Ok(())) => {
                    for event in self.watch.line(&line)? {
                        if !self.tell(event).await {
                            return Ok(());
                        }
                    }
                }
            }
        }
        for event in self.watch.end()? {
            if !self.tell(event).await {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Sends an event; false if nobody listens any more.
    async fn tell(&mut self, event: Event) -> bool {
        let first =
            matches!(event, Event::Resync(..)) && !std::mem::replace(&mut self.synced, true);
        if self.events.send(event).await.is_err() {
            return false;
        }
        // Whoever is last has everything before it in the channel.
        if first && self.unsynced.fetch_sub(1, Ordering::AcqRel) == 1 {
            return self.events.send(Event::Synced).await.is_ok();
        }
        true
    }
}

/// Up to and with the next newline; nothing at the end.
async fn read_line(body: &mut (impl AsyncBufRead + Unpin), line: &mut Vec<u8>) -> io::Result<()> {
    loop {
        let chunk = body.fill_buf().await?;
        let (taken, done) = match chunk.iter().position(|byte| *byte == b'\n') {
            Some(at) => (at + 1, true),
            None => (chunk.len(), chunk.is_empty()),
        };
        line.extend_from_slice(&chunk[..taken]);
        body.consume_unpin(taken);
        if done {
            return Ok(());
        }
        if line.len() > LONGEST_LINE {
            return Err(io::Error::other("a line of the answer has no end"));
        }
    }
}

/// A quarter more or less, so that many clients do not come back together.
fn jittered(wait: Duration) -> Duration {
    let random = ahash::RandomState::new().hash_one(wait) % 512;
    wait.saturating_mul(768 + random as u32) / 1024
}
