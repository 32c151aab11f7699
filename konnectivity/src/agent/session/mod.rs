//! One connection to one server.

mod reader;
mod target;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use tokio::task::AbortHandle;

use super::Shared;
use super::dial::dial;
use crate::audit::Record;
use crate::grpc::{Message, message};
use crate::packet::Packet;
use crate::rules::Rules;
use http2::Link;
pub(crate) use reader::{Reader, reason};
use target::Target;

/// A stream to a server and the connections that go over it.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) shared: Arc<Shared>,
    pub(crate) link: Arc<Link>,
    stream: u32,
    greeting: OnceLock<Greeting>,
    targets: Mutex<HashMap<i64, Arc<Target>>>,
    dials: Mutex<HashMap<i64, AbortHandle>>,
    next: AtomicI64,
    /// The server has announced its end, or it has come.
    leaving: AtomicBool,
    /// Reading of the link is paused for a slow target.
    blocked: AtomicBool,
}

/// A server's greeting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    pub(crate) server: String,
    pub(crate) count: usize,
    /// Its window for each connection, in bytes.
    pub(crate) window: Option<usize>,
}

impl Session {
    pub(crate) fn new(shared: &Arc<Shared>, link: Arc<Link>, stream: u32) -> Arc<Self> {
        Arc::new(Self {
            shared: Arc::clone(shared),
            link,
            stream,
            greeting: OnceLock::new(),
            targets: Mutex::default(),
            dials: Mutex::default(),
            next: AtomicI64::new(1),
            leaving: AtomicBool::new(false),
            blocked: AtomicBool::new(false),
        })
    }

    pub(crate) fn server(&self) -> &str {
        self.greeting.get().map_or("", |greeting| greeting.server.as_str())
    }

    pub(crate) fn window(&self) -> Option<usize> {
        self.greeting.get().and_then(|greeting| greeting.window)
    }

    /// The number of servers, by this server's count.
    pub(crate) fn server_count(&self) -> Option<usize> {
        self.greeting.get().map(|greeting| greeting.count)
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// Records that the server ends; returns whether that was recorded before.
    pub(crate) fn leave(&self) -> bool {
        self.leaving.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked.load(Ordering::Relaxed)
    }

    pub(crate) fn send(&self, packet: &Packet) {
        self.shared.metrics.to_server.count(packet);
        self.link.send(self.stream, message(packet));
    }

    pub(crate) fn send_data(&self, message: Bytes) {
        self.shared.metrics.to_server.count_data();
        self.link.send(self.stream, message);
    }

    fn targets(&self) -> MutexGuard<'_, HashMap<i64, Arc<Target>>> {
        self.targets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dials(&self) -> MutexGuard<'_, HashMap<i64, AbortHandle>> {
        self.dials.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether it has neither targets nor dials.
    pub(crate) fn is_idle(&self) -> bool {
        self.targets().is_empty() && self.dials().is_empty()
    }

    /// Forgets a target; false if it was forgotten before.
    pub(crate) fn forget(&self, number: i64) -> bool {
        let forgotten = self.targets().remove(&number).is_some();
        if forgotten {
            self.shared.metrics.open_endpoints.add(-1);
        }
        forgotten
    }

    /// Handles a message; returns a target that does not keep up.
    fn receive(self: &Arc<Self>, received: Message) -> Option<Arc<Target>> {
        self.shared.metrics.from_server.count(&received.packet);
        match received.packet {
            Packet::Data { connection, bytes, .. } => {
                let target = self.targets().get(&connection).cloned();
                match target {
                    Some(target) => {
                        return target.deliver(bytes, received.raw.len()).then_some(target);
                    }
                    None => {
                        let error = "unrecognized connectID".to_owned();
                        self.send(&Packet::CloseResponse { error, connection });
                    }
                }
            }
            Packet::DialRequest { protocol, address, random } => {
                self.dial(protocol, address, random);
            }
            Packet::CloseRequest { connection, half } => {
                let target = self.targets().get(&connection).cloned();
                match target {
                    // Answered when all data before it has been written.
                    Some(target) if half => target.raw.half_close(),
                    Some(target) => target.raw.finish(),
                    None => {
                        let error = "Unknown connectID".to_owned();
                        self.send(&Packet::CloseResponse { error, connection });
                    }
                }
            }
            Packet::DialClosed { random } => {
                if let Some(dial) = self.dials().remove(&random) {
                    dial.abort();
                    self.shared.metrics.pending.add(-1);
                }
            }
            Packet::Credit { connection, bytes } if self.window().is_some() => {
                let target = self.targets().get(&connection).cloned();
                if let Some(target) = target {
                    target.credit(bytes);
                }
            }
            // Only agents send these.
            Packet::DialResponse { .. }
            | Packet::CloseResponse { .. }
            | Packet::Drain
            | Packet::Credit { .. } => {}
        }
        None
    }

    fn dial(self: &Arc<Self>, protocol: String, address: String, random: i64) {
        let mut dials = self.dials();
        if dials.len() >= self.shared.options.limits.pending_dials || dials.contains_key(&random) {
            drop(dials);
            let error = format!("dial tcp {address}: too many dials wait already");
            self.shared.metrics.dial_failures.with_label_values(&["too_many_pending"]).inc();
            return self.send(&Packet::DialResponse { error, connection: 0, random });
        }
        self.shared.metrics.pending.add(1);
        let session = Arc::clone(self);
        let task = tokio::spawn(async move { session.open(&protocol, &address, random).await });
        // The task waits for this lock after its dial.
        dials.insert(random, task.abort_handle());
    }

    async fn open(self: Arc<Self>, protocol: &str, address: &str, random: i64) {
        let begin = Instant::now();
        let options = &self.shared.options;
        let rules = options.rules.as_deref();
        let generation = rules.map(Rules::generation);
        let result = dial(protocol, address, rules, options.limits.dial_timeout).await;
        if self.dials().remove(&random).is_none() {
            // Cancelled in between.
            return;
        }
        let metrics = &self.shared.metrics;
        metrics.pending.add(-1);
        let stream = match result {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!("{}", error.text);
                metrics.dial_failures.with_label_values(&[error.reason]).inc();
                let outcome = format!("dial failed: {}", error.text);
                options.audit.write(&Record {
                    role: "agent",
                    who: self.server(),
                    target: address,
                    agent: &options.agent_id,
                    duration: begin.elapsed(),
                    outcome: &outcome,
                    ..Record::default()
                });
                let packet = Packet::DialResponse { error: error.text, connection: 0, random };
                return self.send(&packet);
            }
        };
        metrics.dial_duration.observe(begin.elapsed().as_secs_f64());
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let target = Target::new(&self, number, address, stream.peer_addr().ok());
        self.targets().insert(number, Arc::clone(&target));
        metrics.open_endpoints.add(1);
        // This precedes all data of the target.
        self.send(&Packet::DialResponse { error: String::new(), connection: number, random });
        if self.link.is_closed() {
            // The link ended during the dial; close the target.
            self.forget(number);
            return;
        }
        // Rules that came into force during the dial.
        if let Some(rules) = rules.filter(|it| Some(it.generation()) != generation) {
            target.recheck(rules);
        }
        // A task of its own: this one is larger than what a connection needs.
        tokio::spawn(async move { target.serve(stream).await });
    }

    /// Ends the session: delivers what the server sent, then closes the targets.
    pub(crate) fn end(&self) {
        let dials: Vec<_> = self.dials().drain().collect();
        for (_, dial) in dials {
            dial.abort();
            self.shared.metrics.pending.add(-1);
        }
        let targets: Vec<_> = self.targets().values().cloned().collect();
        for target in targets {
            target.raw.finish();
        }
    }

    /// Closes connections that the rules no longer allow.
    pub(crate) fn recheck(&self, rules: &Rules) {
        let targets: Vec<_> = self.targets().values().cloned().collect();
        targets.iter().for_each(|target| target.recheck(rules));
    }

    /// Regular work: pings.
    pub(crate) fn tick(&self) {
        let options = &self.shared.options;
        let limits = &options.limits;
        let silent = self.link.silent_for();
        if silent > limits.probe_timeout {
            tracing::warn!("server {}: no answer to a ping for {silent:?}", self.server());
            self.shared.metrics.server_failures.with_label_values(&["to_server"]).inc();
            return self.link.abort();
        }
        // The original ends connections that are pinged more often than twice a minute.
        let most = match self.window() {
            Some(_) => limits.probe,
            None => std::time::Duration::from_secs(35),
        };
        let interval = options.keepalive.max(std::time::Duration::from_secs(1)).min(most);
        if self.link.idle_for() > interval {
            self.link.ping();
        }
        if self.is_blocked() {
            self.link.wake();
        }
    }
}
