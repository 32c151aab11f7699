//! The switch: workers on their cores, and the handle of the control side.

mod ports;
mod run;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use acl::Address;

use crate::capture::LiveCapture;
use crate::dns::{DnsTap, Ticket};
use crate::exchange::Exchange;
use crate::graph::trace::Tracing;
use crate::housekeeper::{Housekeeper, Task};
use crate::mailbox::{Command, Mailbox};
use crate::port::{Port, PortGone, Queues, RingFrames, Tag};
use crate::session::{Sessions, Timeouts};
use crate::worker::{Inspect, Parts, Worker};
use crate::{Counters, Frame, FreeList, Memory, Now, PortId, Snapshot};
pub use ports::PortPart;
use ports::Ports;
pub use run::RxMode;
use run::{Clock, run};

/// Configuration of a switch.
#[derive(Clone, Debug)]
pub struct Config {
    /// Workers; at least one.
    pub workers: usize,
    /// Cores that the workers are pinned to, in order; workers beyond the list float.
    pub cores: Vec<usize>,
    /// Receive mode of the workers.
    pub rx_mode: RxMode,
    /// Sessions that fit.
    pub sessions: u32,
    /// Ports there may be.
    pub ports: u16,
    /// Lifetimes of sessions without a packet.
    pub timeouts: Timeouts,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            workers: 1,
            cores: Vec::new(),
            rx_mode: RxMode::default(),
            sessions: 1 << 18,
            ports: 1024,
            timeouts: Timeouts::default(),
        }
    }
}

/// Interval of checks whether flow offload has caught up.
const BESIDE: Duration = Duration::from_millis(1);

/// Upper bound on the time a worker takes to remove a port.
const LONGEST_REMOVAL: Duration = Duration::from_secs(2);

/// A running switch. Dropping it stops the workers and closes its ports.
pub struct Switch {
    workers: Vec<Handle>,
    exchange: Arc<Exchange>,
    sessions: Arc<Sessions>,
    stop: Arc<AtomicBool>,
    clock: Clock,
    ports: Mutex<Ports>,
    /// Generation of the last snapshot published.
    published: AtomicU64,
    /// Generation that flow offload has caught up with.
    beside: AtomicU64,
    /// Distinguishes this process's tags from an earlier one's.
    process: u32,
    /// The last snapshot, whose pods are known.
    noted: Mutex<Arc<Snapshot>>,
    /// Reaches the free frames that no worker keeps for itself.
    free: FreeList,
    /// Frames there are.
    frames: usize,
    // Ends after the workers.
    housekeeper: Housekeeper,
}

struct Handle {
    mailbox: Arc<Mailbox>,
    counters: Arc<Counters>,
    thread: Option<JoinHandle<()>>,
}

impl Switch {
    /// Starts the workers over these frames. `inspect` gives each worker its own inspector.
    pub fn start(
        config: &Config,
        memory: &Arc<Memory>,
        frames: Vec<Frame>,
        inspect: impl FnMut(usize) -> Option<Box<dyn Inspect>>,
    ) -> std::io::Result<Self> {
        let sessions = Sessions::new(config.sessions, config.ports, config.timeouts);
        Self::start_over(config, sessions, memory, frames, inspect)
    }

    /// The same over a session table that is there already ([`Sessions::in_file`]).
    pub fn start_over(
        config: &Config,
        sessions: Arc<Sessions>,
        memory: &Arc<Memory>,
        frames: Vec<Frame>,
        mut inspect: impl FnMut(usize) -> Option<Box<dyn Inspect>>,
    ) -> std::io::Result<Self> {
        let count = config.workers.clamp(1, usize::from(u8::MAX) - 1);
        let exchange = Exchange::new(count, config.ports);
        let count_of_frames = frames.len();
        let free = FreeList::new(memory, frames);
        let stop = Arc::new(AtomicBool::new(false));
        let clock = Clock::start();
        let mailboxes: Vec<Arc<Mailbox>> =
            (0..count).map(|number| Mailbox::with_doorbell(exchange.doorbell(number))).collect();
        let housekeeper = Housekeeper::start(memory, free.share(), &sessions, mailboxes.clone())?;
        let mut switch = Self {
            workers: Vec::new(),
            exchange: Arc::clone(&exchange),
            sessions: Arc::clone(&sessions),
            stop: Arc::clone(&stop),
            clock,
            ports: Mutex::new(Ports::new(config.ports)),
            published: AtomicU64::new(0),
            beside: AtomicU64::new(u64::MAX),
            process: process(),
            noted: Mutex::default(),
            free: free.share(),
            frames: count_of_frames,
            housekeeper,
        };
        for (number, mailbox) in mailboxes.into_iter().enumerate() {
            let doorbell = exchange.doorbell(number);
            let counters = Arc::new(Counters::default());
            let worker = Worker::new(Parts {
                number,
                memory: Arc::clone(memory),
                free: free.share(),
                sessions: Arc::clone(&sessions),
                counters: Arc::clone(&counters),
                mailbox: Arc::clone(&mailbox),
                exchange: Arc::clone(&exchange),
                housekeeper: switch.housekeeper.tasks(),
                inspect: inspect(number),
            });
            let (stop, mode, core) =
                (Arc::clone(&stop), config.rx_mode, config.cores.get(number).copied());
            let thread =
                std::thread::Builder::new().name(format!("worker-{number}")).spawn(move || {
                    if let Some(id) = core {
                        core_affinity::set_for_current(core_affinity::CoreId { id });
                    }
                    run(worker, &doorbell, &stop, mode, clock);
                })?;
            switch.workers.push(Handle { mailbox, counters, thread: Some(thread) });
        }
        Ok(switch)
    }

    /// Hands every worker this snapshot. It is in force for a worker from its next vector on.
    ///
    /// Sessions that touch the address of a pod whose port is not in it any more end.
    pub fn publish(&self, snapshot: &Arc<Snapshot>) {
        self.note_ports(snapshot);
        self.published.store(snapshot.generation, Ordering::Release);
        for worker in &self.workers {
            worker.mailbox.send(Command::Snapshot(Arc::clone(snapshot)));
            worker.mailbox.free_retired();
        }
        self.housekeeper.give(Task::EndDeparted);
    }

    /// Ends every session that touches one of these addresses, with the next snapshot: they have
    /// changed their pods.
    pub fn depart(&self, addresses: impl IntoIterator<Item = Address>) {
        self.sessions.depart(addresses, self.published.load(Ordering::Acquire) + 1);
    }

    /// Ends every session, with the next snapshot: the owners of its addresses are unknown.
    pub fn depart_all(&self) {
        self.sessions.depart_all(self.published.load(Ordering::Acquire) + 1);
    }

    /// Divides sessions among the ports of a snapshot, and ends those of pods that are not in it any more.
    fn note_ports(&self, snapshot: &Arc<Snapshot>) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let last = std::mem::replace(&mut *noted, Arc::clone(snapshot));
        if last.shares_ports(snapshot) {
            return;
        }
        self.sessions.set_ports(snapshot.ports().count(), snapshot.uplink().is_some());
        let addresses = last.ports().flat_map(|(_, port)| &port.addresses).copied();
        let at = |snapshot: &Snapshot, address| snapshot.pod_of(address).map(|(id, _)| id);
        let departed = |address: &Address| {
            at(&last, *address).is_some_and(|id| at(snapshot, *address) != Some(id))
        };
        let departed: Vec<Address> = addresses.filter(departed).collect();
        if !departed.is_empty() {
            self.sessions.depart(departed, snapshot.generation);
        }
    }

    /// Starts or stops packet tracing on every worker.
    pub fn follow(&self, tracing: Option<&Arc<Tracing>>) {
        for worker in &self.workers {
            worker.mailbox.send(Command::Trace(tracing.cloned()));
        }
    }

    /// Sends copies of DNS packets from every worker to `tap`.
    pub fn follow_dns(&self, tap: &Arc<DnsTap>) {
        for worker in &self.workers {
            worker.mailbox.send(Command::FollowDns(Arc::clone(tap)));
        }
    }

    /// Releases held answers.
    pub fn release_answers(&self, tickets: &[Ticket]) {
        for (number, worker) in self.workers.iter().enumerate() {
            let own = tickets.iter().filter(|ticket| usize::from(ticket.worker) == number);
            let own: Vec<u64> = own.map(|ticket| ticket.number).collect();
            if !own.is_empty() {
                worker.mailbox.send(Command::ReleaseAnswers(own));
            }
        }
    }

    /// Starts a capture on every part of a port. It lasts until it [ends](LiveCapture::end) or the
    /// port is removed.
    pub fn capture(&self, id: PortId, capture: &Arc<LiveCapture>) {
        for part in self.parts(id) {
            let command = Command::Capture(id, Arc::clone(capture));
            self.workers[part.worker].mailbox.send(command);
        }
    }

    /// Wakes every worker that sleeps, to look at its ports.
    pub fn wake(&self) {
        for worker in &self.workers {
            worker.mailbox.send(Command::Call(Box::new(|| ())));
        }
    }

    /// The moment now, by the workers' clock.
    pub fn now(&self) -> Now {
        self.clock.at(Instant::now())
    }

    /// Waits until every worker uses this generation or a later one.
    pub fn wait_in_force(&self, generation: u64, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let is_in_force =
            self.workers.iter().all(|worker| worker.mailbox.wait_for(generation, deadline));
        while is_in_force && self.beside.load(Ordering::Acquire) < generation {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(BESIDE);
        }
        is_in_force
    }

    /// Sets the generation that flow offload, which forwards beside the workers, has caught up with: no
    /// later one counts as in force. `u64::MAX` if it has caught up with all.
    pub fn set_beside(&self, generation: u64) {
        self.beside.store(generation, Ordering::Release);
    }

    /// The oldest generation that a worker still uses.
    pub fn generation(&self) -> u64 {
        let workers = self.workers.iter().map(|worker| worker.mailbox.generation());
        workers.min().unwrap_or(0).min(self.beside.load(Ordering::Acquire))
    }

    /// Allocates a number for a new port: the lowest that no port has, in no worker's snapshot
    /// either. `None` if there is none left.
    pub fn free_port_id(&self) -> Option<PortId> {
        let find = || self.ports().free(self.generation());
        find().or_else(|| {
            let published = self.published.load(Ordering::Acquire);
            self.wait_in_force(published, LONGEST_REMOVAL).then(find)?
        })
    }

    /// Adds a port, on the worker with the fewest queues.
    pub fn add_port(&self, id: PortId, port: Box<dyn Port>) {
        self.add_queues(id, vec![port]);
    }

    /// Adds the queues of one interface as one port, spread over the workers with the fewest
    /// queues. A worker that gets several polls them as one.
    pub fn add_queues(&self, id: PortId, queues: Vec<Box<dyn Port>>) {
        if self.sessions.used_by(id) > 0 {
            // Opened by workers whose snapshot still had the last port of this number.
            self.sessions.end_of(id);
        }
        let mut ports = self.ports();
        let parts = ports.add(id, queues.len(), self.workers.len());
        let workers: Vec<usize> = parts.iter().map(|part| part.worker).collect();
        self.exchange.set_owners(id, &workers);
        let mut queues = queues.into_iter();
        for part in &parts {
            let mut own: Vec<_> = queues.by_ref().take(part.queues.len()).collect();
            let port = match own.len() {
                1 => own.remove(0),
                _ => Box::new(Queues::new(own)),
            };
            let command = Command::AddPort(id, port, Arc::clone(&part.counters));
            self.workers[part.worker].mailbox.send(command);
        }
    }

    /// Serves a port whose frames are on the queues of `trunk`, under the tag returned. It is
    /// removed as any port is, and before the trunk.
    pub fn add_member(&self, id: PortId, trunk: PortId) -> Tag {
        if self.sessions.used_by(id) > 0 {
            self.sessions.end_of(id);
        }
        let mut ports = self.ports();
        let parts = ports.add_member(id, trunk);
        let workers: Vec<usize> = parts.iter().map(|part| part.worker).collect();
        self.exchange.set_owners(id, &workers);
        let tag = Tag::new(self.process, self.exchange.epoch(id), id);
        for part in &parts {
            let command = Command::AddMember(tag, trunk, Arc::clone(&part.counters));
            self.workers[part.worker].mailbox.send(command);
        }
        tag
    }

    /// Removes a port from all its workers. The connections that it opened end.
    ///
    /// Its sockets are closed later, by another thread ([`Self::finish_closing`]).
    pub fn remove_port(&self, id: PortId) {
        let parts = self.ports().remove(id, self.published.load(Ordering::Acquire));
        self.exchange.set_owners(id, &[]);
        let (done, are_done) = std::sync::mpsc::channel();
        for part in &parts {
            let (mailbox, done) = (&self.workers[part.worker].mailbox, done.clone());
            mailbox.send(Command::RemovePort(id));
            mailbox.send(Command::Call(Box::new(move || {
                let _ = done.send(());
            })));
        }
        let deadline = Instant::now() + LONGEST_REMOVAL;
        for _ in parts {
            // A worker replies within a round; a dead one never does.
            let _ = are_done.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        }
        self.sessions.end_of(id);
    }

    /// Waits until the interfaces of all removed ports are free again.
    pub fn finish_closing(&self) {
        self.housekeeper.finish();
    }

    /// Takes the ports that workers removed because their interfaces vanished.
    pub fn take_gone(&self) -> Vec<(PortId, PortGone)> {
        self.workers.iter().flat_map(|worker| worker.mailbox.take_gone()).collect()
    }

    /// Frames there are, and free ones among them, as of the last second. The others are with the
    /// kernel ([`ring_frames`](Self::ring_frames)) or on their way
    /// through the workers.
    pub fn frames(&self) -> (usize, usize) {
        let kept: u64 = self.counters().map(|worker| worker.free.value()).sum();
        (self.frames, self.free.len() + kept as usize)
    }

    /// Frames that the ports have given to the kernel, as of the last second.
    pub fn ring_frames(&self) -> RingFrames {
        self.ports().ring_frames()
    }

    /// Each worker's counters.
    pub fn counters(&self) -> impl Iterator<Item = &Arc<Counters>> {
        self.workers.iter().map(|worker| &worker.counters)
    }

    /// Workers and queues of a port, with their counters; empty for an unknown port.
    pub fn parts(&self, id: PortId) -> Vec<PortPart> {
        self.ports().parts(id).to_vec()
    }

    /// The sessions of all workers.
    pub fn sessions(&self) -> &Arc<Sessions> {
        &self.sessions
    }

    /// Whether every worker's thread is alive.
    pub fn is_alive(&self) -> bool {
        self.workers
            .iter()
            .all(|worker| worker.thread.as_ref().is_some_and(|thread| !thread.is_finished()))
    }

    fn ports(&self) -> MutexGuard<'_, Ports> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A random number, most likely another one than an earlier process had.
fn process() -> u32 {
    ahash::RandomState::new().hash_one(0_u8) as u32
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        for worker in &mut self.workers {
            worker.mailbox.send(Command::Call(Box::new(|| ())));
            if let Some(thread) = worker.thread.take() {
                let _ = thread.join();
            }
        }
    }
}
