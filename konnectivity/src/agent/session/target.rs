//! One connection to a target.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use tokio::net::TcpStream;

use super::Session;
use crate::audit::Record;
use crate::grpc::data_message;
use crate::packet::Packet;
use crate::raw::{Ended, Owner, Raw, run};
use crate::rules::Rules;
use crate::window::Window;

/// Bytes a target may queue before others get their turn.
const QUANTUM: usize = 64 * 1024;

/// A connection to a target, with its queue.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) number: i64,
    pub(crate) raw: Raw,
    address: String,
    /// The address it is connected to.
    peer: Option<SocketAddr>,
    session: Arc<Session>,
    itself: Weak<Target>,
    /// Bytes of credit from the server.
    credit: AtomicI64,
    /// The server's window.
    window: Mutex<Window>,
    /// The link wakes this target when it has room.
    waiting: AtomicBool,
    /// Bytes read since other targets had their turn.
    turn: AtomicUsize,
    to_target: AtomicU64,
    from_target: AtomicU64,
    started: u64,
}

impl Target {
    pub(crate) fn new(
        session: &Arc<Session>,
        number: i64,
        address: &str,
        peer: Option<SocketAddr>,
    ) -> Arc<Self> {
        let credit = session.window().map_or(0, |it| i64::try_from(it).unwrap_or(i64::MAX));
        Arc::new_cyclic(|itself| Self {
            number,
            raw: Raw::default(),
            address: address.to_owned(),
            peer,
            session: Arc::clone(session),
            itself: itself.clone(),
            credit: AtomicI64::new(credit),
            window: Mutex::new(Window::new(session.shared.options.limits.connection_bytes)),
            waiting: AtomicBool::new(false),
            turn: AtomicUsize::new(0),
            to_target: AtomicU64::new(0),
            from_target: AtomicU64::new(0),
            started: http2::millis(),
        })
    }

    /// Transfers bytes until either side closes; then reports that to the server.
    pub(crate) async fn serve(&self, stream: TcpStream) {
        let ended = run(stream, &self.raw, self).await;
        let error = match ended {
            Ended::ByPeer | Ended::ByOwner => String::new(),
            Ended::Failed(error) => format!("connection to {}: {error}", self.address),
        };
        if self.session.forget(self.number) {
            let packet = Packet::CloseResponse { error: error.clone(), connection: self.number };
            self.session.send(&packet);
            self.audit(if error.is_empty() { "closed" } else { &error });
        }
    }

    fn audit(&self, outcome: &str) {
        let shared = &self.session.shared;
        let millis = http2::millis().saturating_sub(self.started);
        shared.options.audit.write(&Record {
            role: "agent",
            who: self.session.server(),
            target: &self.address,
            agent: &shared.options.agent_id,
            connection: self.number,
            to_target: self.to_target.load(Ordering::Relaxed),
            from_target: self.from_target.load(Ordering::Relaxed),
            duration: Duration::from_millis(millis),
            outcome,
        });
    }

    /// Queues bytes for the target, from a message of `length`; returns true if the queue exceeds
    /// its limit.
    pub(crate) fn deliver(&self, bytes: Bytes, length: usize) -> bool {
        self.to_target.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        // What is not queued needs no room.
        self.grant(length - bytes.len(), self.raw.queued());
        self.raw.push(bytes).is_some_and(|queued| queued > self.limit())
    }

    fn limit(&self) -> usize {
        let limit = self.session.shared.options.limits.connection_bytes;
        if self.session.window().is_some() { limit * 2 } else { limit }
    }

    pub(crate) fn has_caught_up(&self) -> bool {
        self.raw.queued() <= self.limit() / 2
    }

    /// Closes the connection if the target has taken nothing for too long; returns whether it did.
    pub(crate) fn cut_if_stalled(&self) -> bool {
        let stalled = self.raw.stalled_for();
        let limits = &self.session.shared.options.limits;
        if stalled < limits.slow_target {
            return false;
        }
        let why = format!(
            "connection {} to {}: it took nothing for {:.1} s while {} bytes waited",
            self.number,
            self.address,
            stalled.as_secs_f64(),
            limits.connection_bytes,
        );
        tracing::warn!("{why}");
        self.session.shared.metrics.slow_targets.inc();
        self.cut(&why);
        true
    }

    /// Closes the connection if the rules no longer allow it.
    pub(crate) fn recheck(&self, rules: &Rules) {
        if let Some(peer) = self.peer
            && let Err(why) = rules.evaluate(peer)
        {
            tracing::info!("connection {} to {}: {why}", self.number, self.address);
            self.cut(&why.to_string());
        }
    }

    fn cut(&self, why: &str) {
        if self.session.forget(self.number) {
            let error = why.to_owned();
            self.session.send(&Packet::CloseResponse { error, connection: self.number });
            self.audit(why);
        }
        self.raw.cut();
    }

    /// The server has room for more.
    pub(crate) fn credit(&self, bytes: i64) {
        let before = self.credit.fetch_add(bytes.clamp(0, 1 << 32), Ordering::AcqRel);
        if before <= 0 {
            self.raw.wake();
        }
    }

    /// Sends the server credit for `bytes` that the target has taken, while `queued` still wait.
    fn grant(&self, bytes: usize, queued: usize) {
        if self.session.window().is_none() {
            return;
        }
        let credit = {
            let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
            window.consume(bytes, queued, &self.session.shared.shares)
        };
        if let Some(credit) = credit {
            let bytes = i64::try_from(credit).unwrap_or(i64::MAX);
            self.session.send(&Packet::Credit { connection: self.number, bytes });
        }
    }
}

impl Owner for Target {
    fn has_room(&self) -> bool {
        if self.session.window().is_some() && self.credit.load(Ordering::Acquire) <= 0 {
            return false;
        }
        if self.waiting.load(Ordering::Acquire) {
            return false;
        }
        let Some(itself) = self.itself.upgrade() else { return false };
        // Set first: it may wake at once.
        self.waiting.store(true, Ordering::Release);
        let waker = Waker::from(itself);
        let room = match self.turn.load(Ordering::Relaxed) < QUANTUM {
            true => self.session.link.has_room(&waker),
            false => {
                self.turn.store(0, Ordering::Relaxed);
                self.session.link.has_room_after_others(&waker)
            }
        };
        if room {
            self.waiting.store(false, Ordering::Release);
        }
        room
    }

    fn read(&self, bytes: &[u8]) {
        self.from_target.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.turn.fetch_add(bytes.len(), Ordering::Relaxed);
        let message = data_message(self.number, bytes);
        self.credit.fetch_sub(message.len() as i64, Ordering::AcqRel);
        self.session.send_data(message);
    }

    fn written(&self, bytes: usize) {
        self.grant(bytes, self.raw.queued());
        if self.session.is_blocked() {
            self.session.link.wake();
        }
    }
}

impl Wake for Target {
    fn wake(self: Arc<Self>) {
        self.waiting.store(false, Ordering::Release);
        self.raw.wake();
    }
}
