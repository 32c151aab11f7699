//! The engine of flow offload: makes, reads and removes entries, and writes the heartbeat.
//!
//! ```text
//!   handshakes ─▶ entries ─▶ the kernel's map             (by workers)
//!   sessions ── scan ─▶ entries ─▶ the kernel's map       (ten times a second, in batches)
//!   the kernel's map ── counters, last use ─▶ sessions    (each second)
//!   reports ─▶ the graph, sessions                        (by workers, before what they take)
//! ```
//!
//! A worker waits for two locks, which others hold for a few instructions: `interfaces` and `late`. It takes
//! `connections` and `published` only if they are free. What a worker does itself under `connections` is what blocks
//! its packets: one system call for the entries of all handshakes of a vector, and in a full map two more for each
//! connection that gives up its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ahash::AHashMap;
use dataplane::PortId;
use dataplane::session::SessionId;
use dataplane::wire::Flow;

use crate::Counters;
use crate::barrier::Barrier;
use crate::connections::{Connections, PART};
use crate::context::Context;
use crate::installed::Reading;
use crate::layout::{Ended, FlowEntry, FlowKey};
use crate::locks::Lock;
use crate::published::Published;

/// Time in which a pass over the sessions takes `STEPS` steps, of `PLACES` places each. Between them others have
/// the processor.
const TICK: Duration = Duration::from_millis(100);
const STEPS: u32 = 8;
const PLACES: u32 = 1 << 13;
/// Interval at which entries are read.
const READ: Duration = Duration::from_secs(1);
/// Entries noted under one lock.
const NOTED: usize = 256;
/// Interval of checks that programs are where they belong.
const GUARD: Duration = Duration::from_secs(1);
/// Delay that a heartbeat may have without a grace.
const LATE: Duration = Duration::from_millis(500);
/// Time in which workers read what is reported.
const SETTLED: Duration = Duration::from_millis(250);
/// Connections that are entered in one go; handshakes wait meanwhile.
const ACCEPTED: usize = 256;

/// Locks are in the order in which a thread takes them.
pub(crate) struct Engine {
    pub(crate) context: Context,
    /// Held while all entries are read.
    reading: Lock<0, ()>,
    pub(crate) connections: Lock<1, Connections>,
    pub(crate) published: Lock<2, Published>,
    /// Number of the interface of each port.
    pub(crate) interfaces: Lock<3, Arc<AHashMap<PortId, u32>>>,
    /// The same of pods alone, whose program must be the first there.
    pub(crate) pods: Lock<4, AHashMap<PortId, u32>>,
    /// Interfaces of pods where it was not.
    pub(crate) suspects: Lock<5, Vec<u32>>,
    /// Initiators of connections that were accepted while `connections` was locked.
    pub(crate) late: Lock<6, Vec<Flow>>,
    /// Counters as they were last, and what was counted each second before.
    pub(crate) measured: Lock<7, (Counters, Counters)>,
    /// Connections that ended in the kernel, and their sessions.
    pub(crate) ended: Lock<8, Vec<(Ended, Option<SessionId>)>>,
    /// Held while the heartbeat is written: a later one has what an earlier one had not seen.
    beating: Lock<9, ()>,
    pub(crate) barrier: Barrier,
    /// Readers that want to see every packet of some connections: templates open none meanwhile.
    pub(crate) followers: AtomicU32,
    /// No entry counts any more: something could not be written, or the punt link is gone.
    broken: AtomicBool,
    stop: AtomicBool,
}

impl Engine {
    pub(crate) fn new(context: Context) -> Self {
        Self {
            context,
            reading: Lock::default(),
            connections: Lock::default(),
            published: Lock::default(),
            interfaces: Lock::default(),
            pods: Lock::default(),
            suspects: Lock::default(),
            late: Lock::default(),
            measured: Lock::default(),
            ended: Lock::default(),
            beating: Lock::default(),
            barrier: Barrier::default(),
            followers: AtomicU32::new(0),
            broken: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        }
    }

    /// Ends the threads.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.barrier.stop();
    }

    /// Invalidates all entries, for good.
    pub(crate) fn close(&self) {
        self.broken.store(true, Ordering::SeqCst);
        self.beat();
    }

    /// Scans sessions and keeps the heart beating, until the end.
    pub(crate) fn run(&self) {
        let mut guarded = Instant::now();
        while !self.stop.load(Ordering::SeqCst) {
            self.beat();
            self.context.kernel.renew_shares();
            // A worker that sleeps may have to read of it.
            if !self.context.kernel.has_no_reports() {
                self.context.switch.wake();
            }
            self.read_if_older(READ);
            if guarded.elapsed() >= GUARD {
                self.measure(guarded.elapsed());
                guarded = Instant::now();
                let mut pods: Vec<u32> = self.pods.lock().values().copied().collect();
                // The end does not wait for hundreds of them.
                let is_over = || self.stop.load(Ordering::SeqCst);
                pods.retain(|it| !is_over() && !self.context.kernel.is_guarded(*it));
                *self.suspects.lock() = pods;
                // Until it is there, packets take the switch.
                drop(self.context.kernel.restore_host());
            }
            self.scan_for(TICK);
        }
    }

    /// Reads all entries, unless that was done a moment ago.
    pub(crate) fn read_if_older(&self, age: Duration) {
        // Readings are noted in their order.
        let _one = self.reading.lock();
        if !self.connections.lock().begin_reading(age) {
            return;
        }
        // Other connections may have their keys by now.
        self.note_ended();
        let mut entries = Vec::new();
        let each = |key: &FlowKey, entry: &FlowEntry| entries.push((*key, Reading::of(entry)));
        if let Err(error) = self.context.kernel.for_each_flow(each) {
            tracing::warn!("{error}");
        }
        let published = self.published.lock().clone();
        for part in entries.chunks(NOTED) {
            self.connections.lock().note(&self.context, &published, part);
            self.accept_late();
        }
    }

    /// Takes note of connections that ended in the kernel.
    fn note_ended(&self) {
        let ended = std::mem::take(&mut *self.ended.lock());
        for part in ended.chunks(NOTED) {
            let mut connections = self.connections.lock();
            part.iter().for_each(|(ended, id)| connections.end(&self.context, ended, *id));
            drop(connections);
            self.accept_late();
        }
    }

    /// Waits until workers have read all that was reported, a moment at most.
    pub(crate) fn settle_reports(&self) {
        let deadline = Instant::now() + SETTLED;
        while !self.context.kernel.has_no_reports() && Instant::now() < deadline {
            self.context.switch.wake();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Enters the templates that are wanted.
    fn write_templates(&self) {
        let published = self.published.lock().clone();
        self.connections.lock().write_templates(&self.context, &published);
    }

    /// Looks at the next sessions, some at a time, and sleeps for the rest of the time.
    fn scan_for(&self, time: Duration) {
        let step = time / STEPS;
        for left in (1..=STEPS).rev() {
            self.note_ended();
            let goes_on = self.scan();
            self.write_templates();
            if !goes_on {
                return std::thread::sleep(step * left);
            }
            std::thread::sleep(step);
        }
    }

    /// Looks at some sessions; whether the pass goes on. The lock is released every now and then, for handshakes.
    fn scan(&self) -> bool {
        let published = self.published.lock().clone();
        let interfaces = self.interfaces.lock().clone();
        (0..PLACES / PART).all(|_| {
            let goes_on = self.connections.lock().scan(&self.context, &published, &interfaces);
            self.accept_late();
            goes_on
        })
    }

    /// Enters the connections whose worker found a lock taken.
    fn accept_late(&self) {
        let late = std::mem::take(&mut *self.late.lock());
        for part in late.chunks(ACCEPTED) {
            let (published, interfaces) =
                (self.published.lock().clone(), self.interfaces.lock().clone());
            self.connections.lock().accept(&self.context, &published, &interfaces, part);
        }
    }

    /// Notes what the programs did each second since the last call.
    fn measure(&self, since: Duration) {
        let now = self.context.kernel.counters();
        let mut measured = self.measured.lock();
        measured.1 = now.per_second(&measured.0, since.as_secs_f64());
        measured.0 = now;
    }

    /// Writes the generations of these guards where the programs read them.
    pub(crate) fn write(&self, published: &Published, guards: &[u32]) {
        let write =
            |guard: &u32| self.context.kernel.set_generation(*guard, published.generation(*guard));
        if let Err(error) = guards.iter().try_for_each(write) {
            tracing::error!("flow offload stops: {error}");
            self.close();
        }
    }

    pub(crate) fn beat(&self) {
        self.beat_for(self.context.options.grace.max(LATE), LATE);
    }

    pub(crate) fn beat_for(&self, grace: Duration, of_fins: Duration) {
        let _one = self.beating.lock();
        let is_off = self.broken.load(Ordering::SeqCst);
        let is_followed = self.followers.load(Ordering::SeqCst) > 0;
        let now = self.context.switch.now().0;
        let after = |time| if is_off { Duration::ZERO } else { now + time };
        let of_templates = if is_followed { Duration::ZERO } else { after(of_fins) };
        let until = [after(grace), after(of_fins), of_templates];
        if let Err(error) = self.context.kernel.beat_until(until) {
            tracing::error!("{error}");
        }
    }
}
