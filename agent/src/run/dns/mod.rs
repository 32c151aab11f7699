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

use control::PodKey;
use dataplane::Switch;
use dataplane::dns::{DnsPacket, Ticket};
use domain_names::Change;

use super::names::{Names, PendingAnswer};
use super::shared_status::SharedStatus;
use super::thread::Thread;
use super::{Event, StartError};

/// The threads. Dropping it ends them.
pub(super) struct DnsThreads {
    names: Arc<Names>,
    threads: Vec<Thread>,
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
        let reader = answers::Reader::new(Arc::clone(shared), events.clone());
        this.threads.push(Thread::start("dns", move || reader.run(&copies))?);
        let releaser = Arc::clone(shared);
        let release = move || answers::release(&releaser, &receiver);
        this.threads.push(Thread::start("dns-release", release)?);
        let upkeep = upkeep::Upkeep::new(Arc::clone(shared), events.clone());
        this.threads.push(Thread::start("names", move || upkeep.run())?);
        shared.switch.follow_dns(&names.tap);
        Ok((this, published))
    }
}

impl Drop for DnsThreads {
    fn drop(&mut self) {
        self.names.stop.store(true, Ordering::Release);
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
