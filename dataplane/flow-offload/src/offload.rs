//! Hands connections to the kernel, and takes them back.
//!
//! The control side calls `prepare` with each snapshot before workers decide by it. An entry has the
//! generations of the snapshot that allowed its session, whenever it gets into the map: if a later
//! snapshot concerns the connection, the entry does not count from the start.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use ahash::AHashMap;
use dataplane::port::Tag;
use dataplane::port::af_xdp::UplinkFilter;
use dataplane::session::SessionId;
use dataplane::wire::Mac;
use dataplane::{PortId, Snapshot, Switch};

use crate::connection::Connection;
use crate::context::{Context, Options};
use crate::engine::Engine;
use crate::follow::Followed;
use crate::installed::PortUsage;
use crate::layout::PuntedPort;
use crate::{Counters, Error, Kernel};

/// Greatest age of the counts of entries that are handed out.
const FRESH: Duration = Duration::from_millis(100);

/// The state of flow offload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OffloadState {
    /// Connections with entries.
    pub connections: u64,
    /// Connections that found no room.
    pub refused: u64,
    /// Connections whose entries made room for others.
    pub evicted: u64,
    /// Counters of the programs.
    pub counters: Counters,
    /// The same a second, lately.
    pub per_second: Counters,
}

/// Flow offload, running. Dropping it stops the threads; the programs and what is in their maps
/// stay, for as long as the grace lasts.
pub struct Offload {
    engine: Arc<Engine>,
    threads: Vec<JoinHandle<()>>,
}

impl Offload {
    /// Starts over loaded programs whose punt link is set.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(kernel: Kernel, switch: Arc<Switch>, options: Options) -> Result<Self, Error> {
        let engine = Arc::new(Engine::new(Context::new(kernel, switch, options)));
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let failed = |cause| Error::new("start a thread of flow offload", cause);
        let barrier = Arc::clone(&engine);
        let barrier = thread("flow-barrier").spawn(move || {
            let context = &barrier.context;
            barrier.barrier.run(&context.switch, || context.wait_for_programs());
        });
        let mut this = Self { engine, threads: vec![barrier.map_err(failed)?] };
        let scanner = Arc::clone(&this.engine);
        let scanner = thread("flow-offload").spawn(move || scanner.run());
        this.threads.push(scanner.map_err(failed)?);
        this.engine.context.kernel.handshakes().serve(&this.engine);
        Ok(this)
    }

    /// The loaded programs.
    pub fn kernel(&self) -> &Kernel {
        &self.engine.context.kernel
    }

    /// Serves a pod's port, whose frames take the punt link under `tag`, once
    /// [`attach_ports`](Self::attach_ports) follows.
    ///
    /// # Errors
    /// If it cannot be entered.
    pub fn add_port(&self, id: PortId, ifindex: u32, tag: Tag, mac: Mac) -> Result<(), Error> {
        self.forget(id);
        self.engine.connections.lock().forget_port(id);
        let queue = u32::from(id.0) % self.engine.context.options.queues.max(1);
        let port = PuntedPort { ifindex, tag: tag.bytes(), mac, queue };
        self.kernel().enter_port(id, &port)?;
        Arc::make_mut(&mut self.engine.interfaces.lock()).insert(id, ifindex);
        Ok(())
    }

    /// Attaches the program to pods' interfaces, in the place of those of an earlier process; the result of each:
    /// an error if its program cannot be attached, or the port was removed. Called when workers serve the ports:
    /// what the pods send is not lost in between.
    pub fn attach_ports(&self, ports: &[(PortId, u32)]) -> Vec<Result<(), Error>> {
        let numbers: Vec<u32> = ports.iter().map(|(_, ifindex)| *ifindex).collect();
        let attached = self.kernel().attach_all(&numbers);
        let interfaces = self.engine.interfaces.lock();
        let note = |((id, ifindex), attached): (&(PortId, u32), Result<(), Error>)| {
            attached?;
            if interfaces.get(id) != Some(ifindex) {
                let gone = std::io::ErrorKind::NotFound.into();
                return Err(Error::new(format!("serve interface {ifindex}"), gone));
            }
            self.engine.pods.lock().insert(*id, *ifindex);
            Ok(())
        };
        ports.iter().zip(attached).map(note).collect()
    }

    /// Sets which packets the switch takes from the uplink, and has them taken.
    ///
    /// # Errors
    /// If the kernel refuses. Another call continues from the state reached.
    pub fn set_uplink_filter(&self, filter: &UplinkFilter) -> Result<(), Error> {
        self.kernel().set_uplink_filter(filter)?;
        self.kernel().steer_uplink()
    }

    /// Lets packets leave by the interface of a port that is no pod's, and enter by the uplink's.
    pub fn add_wire(&self, id: PortId, ifindex: u32) {
        self.forget(id);
        self.engine.connections.lock().forget_port(id);
        if let Err(error) = self.kernel().enter_wire(id) {
            tracing::warn!("{error}");
        }
        Arc::make_mut(&mut self.engine.interfaces.lock()).insert(id, ifindex);
    }

    /// Takes a port away: whatever its pod sends is dropped from now on, and nothing reaches it.
    pub fn remove_port(&self, id: PortId) {
        self.forget(id);
        self.kernel().remove_port(id);
        Arc::make_mut(&mut self.engine.interfaces.lock()).remove(&id);
        self.engine.pods.lock().remove(&id);
    }

    /// Interfaces of pods whose program is not where it belongs; found within a second.
    pub fn unguarded(&self) -> Vec<u32> {
        let mut suspects = std::mem::take(&mut *self.engine.suspects.lock());
        // What was so a moment ago may be mended.
        suspects.retain(|suspect| {
            self.engine.pods.lock().values().any(|ifindex| ifindex == suspect)
                && !self.kernel().is_guarded(*suspect)
        });
        suspects
    }

    fn forget(&self, id: PortId) {
        let mut published = self.engine.published.lock();
        let (next, changed) = published.without(id);
        self.engine.write(&next, &changed);
        *published = next;
    }

    /// Invalidates the entries that `snapshot` affects. Called before it is published.
    pub fn prepare(&self, snapshot: &Arc<Snapshot>) {
        let engine = &self.engine;
        let mut published = engine.published.lock();
        let (next, changed) = published.next(snapshot);
        engine.write(&next, &changed);
        let before = published.snapshot.generation;
        *published = next;
        drop(published);
        if changed.iter().any(|guard| engine.context.is_used(*guard)) {
            engine.barrier.request(&engine.context.switch, before, snapshot.generation);
        }
    }

    /// Invalidates all entries, for good.
    pub fn close(&self) {
        self.engine.close();
    }

    /// Sends every packet of the connections that `wanted` chooses through the switch, from now on and
    /// until the guard is dropped. Other connections stay where they are.
    pub fn follow(
        &self,
        wanted: impl Fn(&Connection<'_>) -> bool + Send + Sync + 'static,
    ) -> Followed {
        let engine = &self.engine;
        // What templates have opened is known then, and they open nothing more.
        engine.followers.fetch_add(1, Ordering::SeqCst);
        engine.beat();
        engine.context.wait_for_programs();
        engine.settle_reports();
        engine.read_if_older(Duration::ZERO);
        let published = engine.published.lock().clone();
        let (number, were_offloaded) =
            engine.connections.lock().follow(&engine.context, &published, Box::new(wanted));
        if were_offloaded {
            // A program may have found the entry just before.
            engine.context.wait_for_programs();
        }
        Followed::new(engine, number)
    }

    /// Its state.
    pub fn state(&self) -> OffloadState {
        OffloadState {
            connections: self.engine.connections.lock().len() as u64,
            refused: self.engine.context.refused.load(Ordering::Relaxed),
            evicted: self.engine.context.evicted.load(Ordering::Relaxed),
            counters: self.kernel().counters(),
            per_second: self.engine.measured.lock().1.clone(),
        }
    }

    /// Usage of each port by packets that the kernel has forwarded since it was added, as of a moment ago.
    pub fn of_ports(&self) -> AHashMap<PortId, PortUsage> {
        self.engine.read_if_older(FRESH);
        self.engine.connections.lock().of_ports().clone()
    }

    /// Packets and bytes of the connections that the kernel forwards, of both directions; as of a
    /// moment ago.
    pub fn of_sessions(&self) -> AHashMap<SessionId, (u64, u64)> {
        self.engine.read_if_older(FRESH);
        self.engine.connections.lock().of_sessions().collect()
    }
}

impl Drop for Offload {
    fn drop(&mut self) {
        self.engine.stop();
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
        // The last word: without a grace nothing is forwarded for a dead switch. The FINs forwarded so
        // far are noted; no more are, until the next switch knows the connections.
        let engine = &self.engine;
        engine.beat_for(engine.context.options.grace, Duration::ZERO);
        engine.context.wait_for_programs();
        engine.settle_reports();
        engine.read_if_older(Duration::ZERO);
    }
}
