//! One connection to one server.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::Shared;
use super::dial::dial;
use super::target::Target;
use crate::audit::Record;
use crate::grpc::{Assembler, Message, failure, header, message};
use crate::packet::Packet;
use crate::rules::Rules;
use crate::server::WINDOW;
use http2::{Field, Handler, Link};

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

    /// Whether it has neither targets nor dials.
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

/// The side of a session that the link's driver owns.
pub(crate) struct Reader {
    pub(crate) session: Arc<Session>,
    assembler: Assembler,
    /// Receives the server's greeting.
    greeting: Option<oneshot::Sender<Result<Greeting, String>>>,
    behind: Option<Arc<Target>>,
    /// Why the stream ended.
    pub(crate) over: Option<String>,
}

impl Reader {
    pub(crate) fn new(
        session: Arc<Session>,
        greeting: oneshot::Sender<Result<Greeting, String>>,
    ) -> Self {
        Self {
            session,
            assembler: Assembler::default(),
            greeting: Some(greeting),
            behind: None,
            over: None,
        }
    }

    /// Reports the server's answer, or the error; the first report counts.
    pub(crate) fn greet(&mut self, result: Result<Greeting, String>) {
        if let Some(greeting) = self.greeting.take() {
            // The receiver may have given up.
            let _gone = greeting.send(result);
        }
    }

    fn end(&mut self, why: String) {
        self.greet(Err(why.clone()));
        self.over.get_or_insert(why);
        self.session.link.close(0, "");
    }
}

impl Handler for Reader {
    fn headers(&mut self, _link: &Arc<Link>, _stream: u32, fields: Vec<Field>, end: bool) {
        if end {
            let why = failure(&fields).unwrap_or_else(|| "the server ended the stream".to_owned());
            return self.end(why);
        }
        let status = header(&fields, ":status").unwrap_or_default();
        if status != "200" {
            return self.end(format!("the server answered with HTTP status {status}"));
        }
        let greeting = match header(&fields, "serverid") {
            None => Err("the server did not say who it is (serverid)".to_owned()),
            Some(server) => Ok(Greeting {
                server: server.to_owned(),
                count: header(&fields, "servercount").and_then(|it| it.parse().ok()).unwrap_or(1),
                window: header(&fields, WINDOW).and_then(|it| it.parse().ok()).filter(|it| *it > 0),
            }),
        };
        if let Ok(greeting) = &greeting {
            self.session.greeting.get_or_init(|| greeting.clone());
        }
        match greeting {
            Ok(greeting) => self.greet(Ok(greeting)),
            Err(why) => self.end(why),
        }
    }

    fn data(&mut self, link: &Arc<Link>, stream: u32, bytes: &[u8], end: bool) {
        link.release(stream, bytes.len());
        let (session, behind) = (&self.session, &mut self.behind);
        let result = self.assembler.push(bytes, |message| {
            if let Some(target) = session.receive(message)
                && !target.cut_if_stalled()
            {
                behind.get_or_insert(target);
            }
            true
        });
        if let Err(error) = result {
            session.shared.metrics.stream_errors.add("to_agent", error.status().name());
            return self.end(error.to_string());
        }
        if end {
            self.end("the server ended the stream".to_owned());
        }
    }

    fn reset(&mut self, _link: &Arc<Link>, _stream: u32, code: u32) {
        self.end(format!("the server reset the stream (RST_STREAM {code})"));
    }

    fn going_away(&mut self, _link: &Arc<Link>, code: u32, text: &str) {
        tracing::info!("server {} goes away ({code}): {text}", self.session.server());
    }

    fn paused(&mut self) -> bool {
        let Some(target) = &self.behind else { return false };
        let paused = !target.has_caught_up() && !target.cut_if_stalled();
        self.session.blocked.store(paused, Ordering::Relaxed);
        if !paused {
            self.behind = None;
        } else if target.has_caught_up() {
            // The end came before the wakers were set.
            self.session.link.wake();
        }
        paused
    }
}

/// Describes why a session ended.
pub(crate) fn reason(result: io::Result<()>, over: Option<String>) -> String {
    match (over, result) {
        (Some(over), _) => over,
        (None, Ok(())) => "the server closed the connection".to_owned(),
        (None, Err(error)) => crate::tls::refusal("the server", &error)
            .unwrap_or_else(|| crate::accept::reason(&error)),
    }
}
