//! Hands connections to the kernel, and takes note of what it does with them.
//!
//! ```text
//!   control side ── prepare(snapshot) ─▶ generations      (before workers decide by it)
//!   sessions ── scan ─▶ entries ─▶ the kernel's map       (ten times a second, in batches)
//!   the kernel's map ── last use ─▶ sessions              (each second)
//! ```
//!
//! An entry has the generations of the snapshot that allowed its session, whenever it gets into the
//! map: if a later snapshot concerns the connection, the entry does not count from the start.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ahash::AHashMap;
use dataplane::port::Tag;
use dataplane::session::{Found, SessionId, Tuples};
use dataplane::wire::{Mac, protocol};
use dataplane::{PortId, Snapshot, Switch};

use crate::barrier::Barrier;
use crate::entries::entries;
use crate::layout::{FlowEntry, FlowKey, GUARD_PORTS, GUARDS, PORTS, PuntedPort};
use crate::published::Published;
use crate::{Counters, Error, Kernel};

/// How flow offload is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Entries that fit, two for each connection.
    pub entries: u32,
    /// How long entries count after the switch's last heartbeat.
    pub grace: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { entries: 1 << 18, grace: Duration::from_secs(30) }
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
}

/// Time between two scans.
const TICK: Duration = Duration::from_millis(100);
/// Places of the session table looked at in one.
const SCAN: u32 = 1 << 16;
/// How often last uses are read.
const READ: Duration = Duration::from_secs(1);
/// How late a heartbeat may be without a grace.
const LATE: Duration = Duration::from_millis(500);

/// Flow offload, running. Dropping it stops the threads; the programs and what is in their maps
/// stay, for as long as the grace lasts.
pub struct Offload {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    kernel: Kernel,
    switch: Arc<Switch>,
    options: Options,
    published: Mutex<Published>,
    /// Number of the interface of each port.
    interfaces: Mutex<AHashMap<PortId, u32>>,
    /// Entries by their guards.
    guarded: Vec<AtomicU32>,
    barrier: Barrier,
    connections: AtomicU64,
    refused: AtomicU64,
    /// Something could not be written: no entry counts any more.
    broken: AtomicBool,
    paused: AtomicBool,
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
            guarded: (0..guards).map(|_| AtomicU32::new(0)).collect(),
            barrier: Barrier::default(),
            connections: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            broken: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let failed = |cause| Error::new("start a thread of flow offload", cause);
        let barrier = Arc::clone(&shared);
        let barrier = thread("flow-barrier").spawn(move || barrier.barrier.run(&barrier.switch));
        let mut this = Self { shared, threads: vec![barrier.map_err(failed)?] };
        let scanner = Scanner::new(Arc::clone(&this.shared));
        let scanner = thread("flow-offload").spawn(move || scanner.run());
        this.threads.push(scanner.map_err(failed)?);
        Ok(this)
    }

    /// Has a pod's frames take the punt link under `tag`.
    ///
    /// # Errors
    /// If its program cannot be attached.
    pub fn add_port(&self, id: PortId, ifindex: u32, tag: Tag, mac: Mac) -> Result<(), Error> {
        self.forget(id);
        let port = PuntedPort { ifindex, tag: tag.bytes(), mac };
        self.shared.kernel.add_port(id, &port)?;
        lock(&self.shared.interfaces).insert(id, ifindex);
        Ok(())
    }

    /// Takes a port away: whatever its pod sends is dropped from now on, and nothing reaches it.
    pub fn remove_port(&self, id: PortId) {
        self.forget(id);
        self.shared.kernel.remove_port(id);
        lock(&self.shared.interfaces).remove(&id);
    }

    /// Whether a port's program is where it belongs.
    pub fn is_guarded(&self, ifindex: u32) -> bool {
        self.shared.kernel.is_guarded(ifindex)
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

    /// Has all packets take the switch, so that they can be followed, or no more.
    pub fn pause(&self, paused: bool) {
        self.shared.paused.store(paused, Ordering::SeqCst);
        self.shared.beat();
    }

    /// What it does.
    pub fn state(&self) -> State {
        State {
            connections: self.shared.connections.load(Ordering::Relaxed),
            refused: self.shared.refused.load(Ordering::Relaxed),
            counters: self.shared.kernel.counters(),
        }
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
        // The last word: without a grace nothing is forwarded for a dead switch.
        let grace = self.shared.options.grace;
        self.shared.beat_for(grace);
    }
}

impl Shared {
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
        self.beat_for(self.options.grace.max(LATE));
    }

    fn beat_for(&self, grace: Duration) {
        let is_off = self.broken.load(Ordering::SeqCst) || self.paused.load(Ordering::SeqCst);
        let until = if is_off { Duration::ZERO } else { self.switch.now().0 + grace };
        if let Err(error) = self.kernel.beat(until) {
            tracing::error!("{error}");
        }
    }
}

/// A connection with entries.
struct Installed {
    keys: [FlowKey; 2],
    guards: [u32; GUARDS],
    generations: [u32; GUARDS],
    /// Monotonic time of the last packet of each direction, as read last.
    used_ns: [u64; 2],
    /// The pass that saw the session last.
    pass: u64,
}

struct Scanner {
    shared: Arc<Shared>,
    installed: AHashMap<SessionId, Installed>,
    /// Datagrams without an answer: when they were first seen.
    unanswered: AHashMap<SessionId, (u32, u64)>,
    used: AHashMap<FlowKey, u64>,
    next: u32,
    pass: u64,
    read_at: Instant,
}

impl Scanner {
    fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            installed: AHashMap::new(),
            unanswered: AHashMap::new(),
            used: AHashMap::new(),
            next: 0,
            pass: 0,
            read_at: Instant::now(),
        }
    }

    fn run(mut self) {
        while !self.shared.stop.load(Ordering::SeqCst) {
            self.shared.beat();
            if self.read_at.elapsed() >= READ {
                self.read_at = Instant::now();
                self.read();
            }
            self.scan();
            self.shared.connections.store(self.installed.len() as u64, Ordering::Relaxed);
            std::thread::sleep(TICK);
        }
    }

    /// Reads when entries were last used.
    fn read(&mut self) {
        let Self { shared, used, .. } = self;
        used.clear();
        let each = |key: &FlowKey, entry: &FlowEntry| {
            used.insert(*key, entry.used_ns);
        };
        if let Err(error) = shared.kernel.for_each_flow(each) {
            tracing::warn!("{error}");
        }
    }

    fn scan(&mut self) {
        let shared = Arc::clone(&self.shared);
        let published = lock(&shared.published).clone();
        let interfaces = lock(&shared.interfaces).clone();
        let sessions = Arc::clone(shared.switch.sessions());
        let places = self.next..self.next.saturating_add(SCAN);
        let mut wanted = Vec::new();
        for (found, tuples) in sessions.iter_part(places.clone()) {
            let is_alive = self.note(&found, &tuples);
            if !is_alive {
                self.remove(&found.id);
                continue;
            }
            let is_current = |it: &Installed| {
                let now = it.guards.map(|guard| published.generation(guard));
                it.generations == now
            };
            if self.installed.get(&found.id).is_some_and(is_current)
                || !found.is_of(published.snapshot.generation)
            {
                continue;
            }
            let made = entries(
                &published.snapshot,
                &tuples,
                |port| interfaces.get(&port).copied(),
                |guard| published.generation(guard),
            );
            wanted.extend(made.map(|both| (found.id, both)));
        }
        self.install(&wanted);
        self.next = places.end;
        if self.next >= sessions.places_used() {
            self.end_pass();
        }
    }

    /// Takes note of a session; whether it is worth entries.
    fn note(&mut self, found: &Found, tuples: &Tuples) -> bool {
        let now_s = self.shared.switch.now().seconds();
        if let Some(installed) = self.installed.get_mut(&found.id) {
            installed.pass = self.pass;
            for (n, key) in installed.keys.iter().enumerate() {
                let used = self.used.get(key).copied().unwrap_or(0);
                if used > installed.used_ns[n] {
                    installed.used_ns[n] = used;
                    let mut found = *found;
                    found.forward = n == 0;
                    self.shared.switch.sessions().touch(&found, 0, now_s);
                }
            }
        }
        match tuples.initiator.protocol {
            protocol::TCP => found.state().is_established(),
            protocol::UDP if found.state().is_answered() => true,
            protocol::UDP if self.installed.contains_key(&found.id) => true,
            // Without an answer: a stream, if it still goes on after a while.
            protocol::UDP => {
                let seen = found.last_seen();
                let noted = self.unanswered.entry(found.id).or_insert((seen, self.pass));
                noted.1 = self.pass;
                seen > noted.0
            }
            _ => false,
        }
    }

    fn install(&mut self, wanted: &[(SessionId, [(FlowKey, FlowEntry); 2])]) {
        let shared = Arc::clone(&self.shared);
        let mut keys = Vec::with_capacity(2 * wanted.len());
        let mut values = Vec::with_capacity(2 * wanted.len());
        for (id, both) in wanted {
            // What was counted goes on.
            let known = self.installed.get(id);
            for (key, entry) in both {
                let old = known.and_then(|_| shared.kernel.flow(key)).unwrap_or_default();
                let FlowEntry { packets, bytes, used_ns, .. } = old;
                keys.push(*key);
                values.push(FlowEntry { packets, bytes, used_ns, ..*entry });
            }
            // Before they are entered: whoever changes a generation after this waits for programs
            // that use them, and whoever has changed it before has made them void.
            if known.is_none() {
                self.count(&both[0].1.guards, 1);
            }
        }
        let done = shared.kernel.put_flows(&keys, &values);
        for (n, (id, both)) in wanted.iter().enumerate() {
            let [(forward, entry), (reverse, _)] = both;
            let keys = [*forward, *reverse];
            if 2 * n + 2 > done {
                // One may have got in.
                keys.iter().for_each(|key| drop(shared.kernel.remove_flow(key)));
                self.count(&entry.guards, -1);
                self.installed.remove(id);
                shared.refused.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            self.unanswered.remove(id);
            let used_ns = self.installed.get(id).map_or([0; 2], |known| known.used_ns);
            let (guards, generations) = (entry.guards, entry.generations);
            let pass = self.pass;
            self.installed.insert(*id, Installed { keys, guards, generations, used_ns, pass });
        }
    }

    fn remove(&mut self, id: &SessionId) {
        let Some(installed) = self.installed.remove(id) else { return };
        for key in &installed.keys {
            if let Err(error) = self.shared.kernel.remove_flow(key) {
                tracing::warn!("{error}");
            }
        }
        self.count(&installed.guards, -1);
    }

    fn count(&self, guards: &[u32; GUARDS], by: i32) {
        for guard in guards {
            // Wraps around as a subtraction does.
            self.shared.guarded[*guard as usize].fetch_add(by as u32, Ordering::SeqCst);
        }
    }

    /// Removes the entries of sessions that the whole table has no more.
    fn end_pass(&mut self) {
        let pass = self.pass;
        let ended = self.installed.iter().filter(|(_, it)| it.pass != pass).map(|(id, _)| *id);
        let ended: Vec<SessionId> = ended.collect();
        ended.iter().for_each(|id| self.remove(id));
        self.unanswered.retain(|_, (_, seen)| *seen == pass);
        (self.next, self.pass) = (0, pass + 1);
    }
}

/// Nothing that can fail half-way runs under these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
