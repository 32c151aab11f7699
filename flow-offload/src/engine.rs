//! Hands connections to the kernel, and takes them back.
//!
//! ```text
//!   control side ── prepare(snapshot) ─▶ generations      (before workers decide by it)
//!   handshakes ─▶ entries ─▶ the kernel's map             (by workers)
//!   sessions ── scan ─▶ entries ─▶ the kernel's map       (ten times a second, in batches)
//!   the kernel's map ── counters, last use ─▶ sessions    (each second)
//! ```
//!
//! An entry has the generations of the snapshot that allowed its session, whenever it gets into the
//! map: if a later snapshot concerns the connection, the entry does not count from the start.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ahash::AHashMap;
use dataplane::port::Tag;
use dataplane::port::af_xdp::UplinkFilter;
use dataplane::session::SessionId;
use dataplane::wire::{Flow, Mac};
use dataplane::{PortId, Snapshot, Switch};

use crate::barrier::{Barrier, wait_for_programs};
use crate::connections::Connections;
use crate::follow::{Connection, Followed};
use crate::installed::{PortUsage, Reading};
use crate::layout::{FlowEntry, FlowKey, GUARD_PORTS, GUARDS, PORTS, PuntedPort};
use crate::published::Published;
use crate::{Counters, Error, Kernel, lock};

/// How flow offload is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Entries that fit, two for each connection.
    pub entries: u32,
    /// Queues of the punt link.
    pub queues: u32,
    /// How long entries count after the switch's last heartbeat.
    pub grace: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { entries: 1 << 18, queues: 1, grace: Duration::from_secs(30) }
    }
}

/// What flow offload does right now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Connections with entries.
    pub connections: u64,
    /// Connections that found no room.
    pub refused: u64,
    /// What the programs did.
    pub counters: Counters,
    /// What they did each second, lately.
    pub per_second: Counters,
}

/// Time between two scans.
const TICK: Duration = Duration::from_millis(100);
/// How often the entries are read, and how old what was read may be for whoever asks.
const READ: Duration = Duration::from_secs(1);
const FRESH: Duration = Duration::from_millis(100);
/// Entries noted under one lock.
const NOTED: usize = 256;
/// Interval of checks that programs are where they belong.
const GUARD: Duration = Duration::from_secs(1);
/// How late a heartbeat may be without a grace.
const LATE: Duration = Duration::from_millis(500);

/// Connections that are entered in one go; handshakes wait meanwhile.
const ACCEPTED: usize = 256;

/// Flow offload, running. Dropping it stops the threads; the programs and what is in their maps
/// stay, for as long as the grace lasts.
pub struct Offload {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

pub(crate) struct Shared {
    pub(crate) kernel: Kernel,
    pub(crate) switch: Arc<Switch>,
    pub(crate) options: Options,
    pub(crate) published: Mutex<Published>,
    /// Number of the interface of each port.
    pub(crate) interfaces: Mutex<Arc<AHashMap<PortId, u32>>>,
    /// The same of pods alone, whose program must be the first there.
    pods: Mutex<AHashMap<PortId, u32>>,
    /// Interfaces of pods where it was not.
    suspects: Mutex<Vec<u32>>,
    pub(crate) connections: Mutex<Connections>,
    /// Initiators of connections that were accepted while `connections` was locked.
    pub(crate) late: Mutex<Vec<Flow>>,
    /// Held while all entries are read.
    reading: Mutex<()>,
    /// Entries by their guards.
    guarded: Vec<AtomicU32>,
    barrier: Barrier,
    /// Connections that found no room.
    pub(crate) refused: AtomicU64,
    /// Counters as they were last, and what was counted each second before.
    measured: Mutex<(Counters, Counters)>,
    /// No entry counts any more: something could not be written, or the punt link is gone.
    broken: AtomicBool,
    stop: AtomicBool,
}

impl Offload {
    /// Starts over loaded programs whose punt link is set.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(kernel: Kernel, switch: Arc<Switch>, options: Options) -> Result<Self, Error> {
        let guards = GUARD_PORTS + u32::from(PORTS);
        let shared = Arc::new(Shared {
            kernel,
            switch,
            options,
            published: Mutex::default(),
            interfaces: Mutex::default(),
            pods: Mutex::default(),
            suspects: Mutex::default(),
            connections: Mutex::default(),
            late: Mutex::default(),
            reading: Mutex::default(),
            guarded: (0..guards).map(|_| AtomicU32::new(0)).collect(),
            barrier: Barrier::default(),
            refused: AtomicU64::new(0),
            measured: Mutex::default(),
            broken: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let failed = |cause| Error::new("start a thread of flow offload", cause);
        let barrier = Arc::clone(&shared);
        let barrier = thread("flow-barrier").spawn(move || barrier.barrier.run(&barrier.switch));
        let mut this = Self { shared, threads: vec![barrier.map_err(failed)?] };
        let scanner = Arc::clone(&this.shared);
        let scanner = thread("flow-offload").spawn(move || scanner.run());
        this.threads.push(scanner.map_err(failed)?);
        this.shared.kernel.handshakes().serve(&this.shared);
        Ok(this)
    }

    /// Has a pod's frames take the punt link under `tag`.
    ///
    /// # Errors
    /// If its program cannot be attached.
    pub fn add_port(&self, id: PortId, ifindex: u32, tag: Tag, mac: Mac) -> Result<(), Error> {
        self.forget(id);
        lock(&self.shared.connections).forget_port(id);
        let queue = u32::from(id.0) % self.shared.options.queues.max(1);
        let port = PuntedPort { ifindex, tag: tag.bytes(), mac, queue };
        self.shared.kernel.add_port(id, &port)?;
        Arc::make_mut(&mut lock(&self.shared.interfaces)).insert(id, ifindex);
        lock(&self.shared.pods).insert(id, ifindex);
        Ok(())
    }

    /// Serves the uplink `ifindex`, whose packets reach the switch by a link of its own; `link` is
    /// the kernel's end. Nothing is taken before the filter is set.
    ///
    /// # Errors
    /// If a program cannot be attached.
    pub fn set_uplink(&self, ifindex: u32, link: u32) -> Result<(), Error> {
        self.shared.kernel.set_uplink(ifindex, link)
    }

    /// Sets which packets the switch takes from the uplink, and has them taken.
    ///
    /// # Errors
    /// If the kernel refuses. Another call continues from the state reached.
    pub fn set_uplink_filter(&self, filter: &UplinkFilter) -> Result<(), Error> {
        self.shared.kernel.set_uplink_filter(filter)?;
        self.shared.kernel.steer_uplink()
    }

    /// Whether the uplink's program is where it belongs.
    pub fn is_uplink_guarded(&self) -> bool {
        self.shared.kernel.is_uplink_guarded()
    }

    /// Lets packets leave by the interface of a port that is no pod's, and enter by the uplink's.
    pub fn add_wire(&self, id: PortId, ifindex: u32) {
        self.forget(id);
        lock(&self.shared.connections).forget_port(id);
        Arc::make_mut(&mut lock(&self.shared.interfaces)).insert(id, ifindex);
    }

    /// Lets what the cluster node's kernel sends by `kernel_end`, its end of the host port, enter as
    /// well.
    ///
    /// # Errors
    /// If its program cannot be attached: the switch forwards all of it, until that succeeds.
    pub fn set_host(&self, kernel_end: u32) -> Result<(), Error> {
        self.shared.kernel.set_host(kernel_end)
    }

    /// Takes a port away: whatever its pod sends is dropped from now on, and nothing reaches it.
    pub fn remove_port(&self, id: PortId) {
        self.forget(id);
        self.shared.kernel.remove_port(id);
        Arc::make_mut(&mut lock(&self.shared.interfaces)).remove(&id);
        lock(&self.shared.pods).remove(&id);
    }

    /// Interfaces of pods whose program is not where it belongs; found within a second.
    pub fn unguarded(&self) -> Vec<u32> {
        let mut suspects = std::mem::take(&mut *lock(&self.shared.suspects));
        // What was so a moment ago may be mended.
        suspects.retain(|suspect| {
            lock(&self.shared.pods).values().any(|ifindex| ifindex == suspect)
                && !self.shared.kernel.is_guarded(*suspect)
        });
        suspects
    }

    fn forget(&self, id: PortId) {
        let mut published = lock(&self.shared.published);
        let (next, changed) = published.without(id);
        self.shared.write(&next, &changed);
        *published = next;
    }

    /// Has entries that `snapshot` concerns count no more. Called before it is published.
    pub fn prepare(&self, snapshot: &Arc<Snapshot>) {
        let shared = &self.shared;
        let mut published = lock(&shared.published);
        let (next, changed) = published.next(snapshot);
        shared.write(&next, &changed);
        let before = published.snapshot.generation;
        *published = next;
        drop(published);
        let is_used = |guard: &u32| shared.guarded[*guard as usize].load(Ordering::SeqCst) > 0;
        if changed.iter().any(is_used) {
            shared.barrier.request(&shared.switch, before, snapshot.generation);
        }
    }

    /// Has no entry count any more, for good.
    pub fn close(&self) {
        self.shared.broken.store(true, Ordering::SeqCst);
        self.shared.beat();
    }

    /// Has every packet of the connections that `wanted` chooses take the switch, from now on and
    /// until the guard is dropped. Other connections stay where they are.
    pub fn follow(
        &self,
        wanted: impl Fn(&Connection<'_>) -> bool + Send + Sync + 'static,
    ) -> Followed {
        let shared = &self.shared;
        let published = lock(&shared.published).clone();
        let (number, were_offloaded) =
            lock(&shared.connections).follow(shared, &published, Box::new(wanted));
        if were_offloaded {
            // A program may have found the entry just before.
            wait_for_programs();
        }
        Followed::new(shared, number)
    }

    /// What it does.
    pub fn state(&self) -> State {
        State {
            connections: lock(&self.shared.connections).len() as u64,
            refused: self.shared.refused.load(Ordering::Relaxed),
            counters: self.shared.kernel.counters(),
            per_second: lock(&self.shared.measured).1.clone(),
        }
    }

    /// What the kernel has forwarded for each port since it was added; as of a moment ago.
    pub fn of_ports(&self) -> AHashMap<PortId, PortUsage> {
        self.shared.read_if_older(FRESH);
        lock(&self.shared.connections).of_ports().clone()
    }

    /// Frames of a port that were dropped because it had used up its share of the punt link.
    pub fn over_share(&self, id: PortId) -> u64 {
        self.shared.kernel.over_share(id)
    }

    /// Packets and bytes of the connections that the kernel forwards, of both directions; as of a
    /// moment ago.
    pub fn of_sessions(&self) -> AHashMap<SessionId, (u64, u64)> {
        self.shared.read_if_older(FRESH);
        lock(&self.shared.connections).of_sessions().collect()
    }
}

impl Drop for Offload {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.barrier.stop();
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
        // The last word: without a grace nothing is forwarded for a dead switch. The FINs forwarded so
        // far are noted; no more are, until the next switch knows the connections.
        let shared = &self.shared;
        shared.beat_for(shared.options.grace, Duration::ZERO);
        wait_for_programs();
        shared.read_if_older(Duration::ZERO);
    }
}

impl Shared {
    /// Scans sessions and keeps the heart beating, until the end.
    fn run(&self) {
        let mut guarded = Instant::now();
        while !self.stop.load(Ordering::SeqCst) {
            self.beat();
            self.kernel.renew_shares();
            self.read_if_older(READ);
            self.scan();
            if guarded.elapsed() >= GUARD {
                self.measure(guarded.elapsed());
                guarded = Instant::now();
                let mut pods: Vec<u32> = lock(&self.pods).values().copied().collect();
                pods.retain(|ifindex| !self.kernel.is_guarded(*ifindex));
                *lock(&self.suspects) = pods;
                // Until it is there, packets take the switch.
                drop(self.kernel.restore_host());
            }
            std::thread::sleep(TICK);
        }
    }

    /// Reads all entries, unless that was done a moment ago.
    fn read_if_older(&self, age: Duration) {
        // Readings are noted in their order.
        let _one = lock(&self.reading);
        if !lock(&self.connections).begin_reading(age) {
            return;
        }
        let mut entries = Vec::new();
        let each = |key: &FlowKey, entry: &FlowEntry| entries.push((*key, Reading::of(entry)));
        if let Err(error) = self.kernel.for_each_flow(each) {
            tracing::warn!("{error}");
        }
        for part in entries.chunks(NOTED) {
            lock(&self.connections).note(self, part);
            self.accept_late();
        }
    }

    /// Looks at the next sessions. The lock is released every now and then, for handshakes.
    fn scan(&self) {
        let published = lock(&self.published).clone();
        let interfaces = lock(&self.interfaces).clone();
        let mut goes_on = true;
        while goes_on {
            goes_on = lock(&self.connections).scan(self, &published, &interfaces);
            self.accept_late();
        }
    }

    /// Enters the connections whose worker found a lock taken.
    fn accept_late(&self) {
        let late = std::mem::take(&mut *lock(&self.late));
        for part in late.chunks(ACCEPTED) {
            let published = lock(&self.published).clone();
            lock(&self.connections).accept(self, &published, part);
        }
    }

    /// Notes what the programs did each second since the last call.
    fn measure(&self, since: Duration) {
        let now = self.kernel.counters();
        let mut measured = lock(&self.measured);
        measured.1 = now.per_second(&measured.0, since.as_secs_f64());
        measured.0 = now;
    }

    /// Counts entries by their guards.
    pub(crate) fn count(&self, guards: &[u32; GUARDS], by: i32) {
        for guard in guards {
            // Wraps around as a subtraction does.
            self.guarded[*guard as usize].fetch_add(by as u32, Ordering::SeqCst);
        }
    }

    /// Writes the generations of these guards where the programs read them.
    fn write(&self, published: &Published, guards: &[u32]) {
        let write = |guard: &u32| self.kernel.set_generation(*guard, published.generation(*guard));
        if let Err(error) = guards.iter().try_for_each(write) {
            tracing::error!("flow offload stops: {error}");
            self.broken.store(true, Ordering::SeqCst);
            self.beat();
        }
    }

    fn beat(&self) {
        self.beat_for(self.options.grace.max(LATE), LATE);
    }

    fn beat_for(&self, grace: Duration, of_fins: Duration) {
        let is_off = self.broken.load(Ordering::SeqCst);
        let after = |time| if is_off { Duration::ZERO } else { self.switch.now().0 + time };
        if let Err(error) = self.kernel.beat_with_fins(after(grace), after(of_fins)) {
            tracing::error!("{error}");
        }
    }
}
