//! The threads that follow DNS for domain names of policies.
//!
//! ```text
//!  workers ─ copies of DNS ─▶ "dns" ── changes, answer ──▶ control loop ── generation ─┐
//!     ▲                         │                               ▲                      ▼
//!     └── release ──────────────┴──────────────────┐            │                 "dns-release"
//!     └── release, once the generation is in force ┼────────────┼──────────────────────┘
//!                                              Names ────── expired ── "names" ─▶ file
//! ```
//!
//! - `answers`: the thread that reads the copies, and the one that releases answers,
//! - `upkeep`: expiry, connections of expired addresses, the file.
//!
//! Changes are sent to the control loop under the table's lock, so they arrive in the order in which
//! they were made.

mod answers;
mod upkeep;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use control::PodKey;
use dataplane::Switch;
use dataplane::dns::{DnsPacket, Ticket};
use domain_names::Change;

use super::names::{Names, PendingAnswer};
use super::shared_status::SharedStatus;
use super::{Event, StartError};

/// The threads. Dropping it ends them.
pub(super) struct DnsThreads {
    names: Arc<Names>,
    threads: Vec<JoinHandle<()>>,
}

impl DnsThreads {
    /// Starts the threads; the answers that have a generation are read from `published`.
    pub(super) fn start(
        shared: &Arc<SharedStatus>,
        events: &Sender<Event>,
        copies: Receiver<DnsPacket>,
    ) -> Result<(Self, Sender<(u64, PendingAnswer)>), StartError> {
        let names = Arc::clone(&shared.names);
        let (published, receiver) = channel();
        let mut this = Self { names: Arc::clone(&names), threads: Vec::new() };
        let mut thread = |name: &str, run: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
            thread.map(|it| this.threads.push(it)).map_err(StartError::thread)
        };
        let reader = answers::Reader::new(Arc::clone(shared), events.clone());
        thread("dns", Box::new(move || reader.run(&copies)))?;
        let releaser = Arc::clone(shared);
        thread("dns-release", Box::new(move || answers::release(&releaser, &receiver)))?;
        let upkeep = upkeep::Upkeep::new(Arc::clone(shared), events.clone());
        thread("names", Box::new(move || upkeep.run()))?;
        shared.switch.follow_dns(&names.tap);
        Ok((this, published))
    }
}

impl Drop for DnsThreads {
    fn drop(&mut self) {
        self.names.stop.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

/// Sends changes to the control loop; the caller holds the table's lock.
fn send(events: &Sender<Event>, changes: Vec<Change<PodKey>>, answer: Option<PendingAnswer>) {
    if !changes.is_empty() || answer.is_some() {
        // The loop may have ended.
        let _ = events.send(Event::Names(changes, answer));
    }
}

/// The switch's handle, for what only needs to be released.
fn release(switch: &Switch, ticket: Option<Ticket>) {
    if let Some(ticket) = ticket {
        switch.release_answers(&[ticket]);
    }
}
