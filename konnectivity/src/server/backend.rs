//! The connections of one agent's stream.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::agent_stream::AgentStream;
use super::connection::{Connection, Failure, Kind};
use super::options::Options;
use crate::grpc::Message;
use crate::identifiers::Identifiers;
use crate::packet::Packet;

/// A stream that an agent opened, and the connections that go over it. Numbers of connections
/// are the agent's, and unique on this stream only.
#[derive(Debug)]
pub(crate) struct Backend {
    pub(crate) stream: Arc<AgentStream>,
    pub(crate) identifiers: Identifiers,
    table: Mutex<Table>,
    draining: AtomicBool,
    silent: AtomicBool,
}

#[derive(Debug, Default)]
struct Table {
    pending: HashMap<i64, Arc<Connection>>,
    established: HashMap<i64, Arc<Connection>>,
    gone: bool,
}

impl Backend {
    /// [`Backend::preference`] of an agent that does not answer.
    pub(crate) const SILENT: u8 = 2;

    pub(crate) fn new(stream: AgentStream, identifiers: Identifiers) -> Arc<Self> {
        Arc::new(Self {
            stream: Arc::new(stream),
            identifiers,
            table: Mutex::default(),
            draining: AtomicBool::new(false),
            silent: AtomicBool::new(false),
        })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Preference of the agent, the lowest first: 0 takes dials, 1 drains, 2 does not answer.
    pub(crate) fn preference(&self) -> u8 {
        match (self.silent.load(Ordering::Relaxed), self.draining.load(Ordering::Relaxed)) {
            (true, _) => Self::SILENT,
            (false, true) => 1,
            (false, false) => 0,
        }
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.stream.link.is_closed() || self.table().gone
    }

    /// Registers a dial under a unique number; fails if there are too many, or if the agent is
    /// gone.
    pub(crate) fn begin(
        &self,
        most: usize,
        wanted: i64,
        make: impl FnOnce(i64) -> Arc<Connection>,
    ) -> Result<Arc<Connection>, Failure> {
        let mut table = self.table();
        if table.gone {
            return Err(Failure::no_agent());
        }
        if table.pending.len() >= most {
            return Err(Failure::too_many());
        }
        let mut dial = wanted;
        while table.pending.contains_key(&dial) {
            dial = dial.wrapping_add(1);
        }
        let connection = make(dial);
        table.pending.insert(dial, Arc::clone(&connection));
        Ok(connection)
    }

    /// Removes a dial; `None` if it was removed before.
    fn forget_dial(&self, dial: i64) -> Option<Arc<Connection>> {
        self.table().pending.remove(&dial)
    }

    /// Cancels a dial that the agent has not answered; false if it was removed before.
    pub(crate) fn cancel_dial(&self, dial: i64) -> bool {
        let known = self.forget_dial(dial).is_some();
        if known {
            self.stream.send(&Packet::DialClosed { random: dial });
        }
        known
    }

    fn forget(&self, connection: i64) -> Option<Arc<Connection>> {
        self.table().established.remove(&connection)
    }

    /// Handles a message; returns a connection whose reader does not keep up.
    pub(crate) fn receive(&self, received: Message) -> Option<Arc<Connection>> {
        self.stream.metrics.from_agent.count(&received.packet);
        match received.packet {
            Packet::Data { connection, bytes, .. } => {
                let known = self.table().established.get(&connection).cloned();
                match known {
                    Some(known) => return known.deliver(received.raw, bytes).then_some(known),
                    // 0 is not a valid number.
                    None if connection == 0 => {}
                    None => {
                        self.stream.send(&Packet::CloseRequest { connection, half: false });
                    }
                }
            }
            Packet::DialResponse { error, connection, random } => {
                self.answered(random, connection, error);
            }
            Packet::CloseResponse { error, connection } => {
                if let Some(known) = self.forget(connection) {
                    known.closed_by_agent(&error);
                }
            }
            Packet::DialClosed { random } => {
                if let Some(known) = self.forget_dial(random) {
                    known.dial_closed();
                }
            }
            Packet::Credit { connection, bytes } if self.stream.window.is_some() => {
                let known = self.table().established.get(&connection).cloned();
                if let Some(known) = known {
                    known.credit(bytes);
                }
            }
            Packet::Drain => {
                if !self.draining.swap(true, Ordering::Relaxed) {
                    tracing::info!("{} is draining", self.stream);
                }
            }
            // Only servers send these.
            Packet::DialRequest { .. } | Packet::CloseRequest { .. } | Packet::Credit { .. } => {}
        }
        None
    }

    fn answered(&self, dial: i64, number: i64, error: String) {
        let mut table = self.table();
        let Some(known) = table.pending.remove(&dial) else {
            drop(table);
            self.stream.metrics.dial_failures.with_label_values(&["unrecognized_response"]).inc();
            if number != 0 {
                self.stream.send(&Packet::CloseRequest { connection: number, half: false });
            }
            return;
        };
        if !error.is_empty() {
            drop(table);
            return known.fail(&Failure::of_agent(error));
        }
        if number == 0 || table.established.contains_key(&number) {
            drop(table);
            let text = format!("agent {}: connection number {number} is in use", self.stream.agent);
            return known.fail(&Failure::of_agent(text));
        }
        table.established.insert(number, Arc::clone(&known));
        drop(table);
        if !known.establish(number) {
            // Cancelled in between.
            self.stream.metrics.dial_failures.with_label_values(&["send_rsp"]).inc();
            self.forget(number);
            self.stream.send(&Packet::CloseRequest { connection: number, half: false });
        }
    }

    /// Ends the agent's stream and all connections over it.
    pub(crate) fn end(&self, why: &str) {
        let mut table = self.table();
        table.gone = true;
        let pending: Vec<_> = table.pending.drain().map(|(_, it)| it).collect();
        let established: Vec<_> = table.established.drain().map(|(_, it)| it).collect();
        drop(table);
        let text = format!("agent {} disconnected: {why}", self.stream.agent);
        for connection in pending {
            connection.fail(&Failure { kind: Kind::AgentGone, text: text.clone() });
        }
        for connection in established {
            connection.closed_by_agent(&text);
        }
    }

    /// Regular work: pings, dials and closes without an answer.
    pub(crate) fn tick(&self, options: &Options) {
        let limits = &options.limits;
        let silent = self.stream.link.silent_for();
        if silent > limits.probe_timeout * 2 {
            tracing::warn!("{}: no answer to a ping for {silent:?}", self.stream);
            self.stream.metrics.agents_lost.inc();
            return self.stream.link.abort();
        }
        let is_silent = silent > limits.probe_timeout;
        if self.silent.swap(is_silent, Ordering::Relaxed) != is_silent {
            let what = if is_silent { "does not answer; not chosen" } else { "answers again" };
            tracing::warn!("{} {what}", self.stream);
        }
        let table = self.table();
        let oldest = table.pending.values().map(|it| it.age()).max();
        let late: Vec<_> = table
            .pending
            .values()
            .filter(|it| !limits.dial_timeout.is_zero() && it.age() > limits.dial_timeout)
            .cloned()
            .collect();
        let stuck: Vec<_> =
            table.established.values().filter(|it| it.close_is_late()).cloned().collect();
        drop(table);
        let idle = self.stream.link.idle_for();
        let waited = oldest.is_some_and(|age| age > Duration::from_secs(1));
        if idle > limits.probe.min(options.keepalive) || waited && idle > limits.probe / 4 {
            self.stream.link.ping();
        }
        for connection in late {
            if self.cancel_dial(connection.dial) {
                let text = format!(
                    "dial timeout: agent {} gave no answer within {:?}",
                    self.stream.agent, limits.dial_timeout
                );
                connection.fail(&Failure { kind: Kind::NoAnswer, text });
            }
        }
        for connection in stuck {
            self.forget(connection.number());
            connection.give_up_closing();
        }
        if self.stream.blocked.load(Ordering::Relaxed) {
            self.stream.link.wake();
        }
    }
}
