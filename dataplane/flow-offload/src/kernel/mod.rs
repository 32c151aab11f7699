//! The loaded programs, their maps, and the interfaces they are attached to.

mod counters;
mod interfaces;
mod maps;

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dataplane::PortId;
use dataplane::bpf::{Barrier, Counts, Entries, Map, NetworkKey, Object};
use dataplane::port::Port;
use dataplane::port::af_xdp::UplinkMaps;

use crate::handshake::Handshakes;
use crate::ingress::Ingress;
use crate::layout::{
    Choice, ChoiceKey, FlowEntry, FlowKey, PortShare, PuntedPort, Settings, Template, TemplateKey,
};
use crate::progress::Progress;
use crate::queues::Queue;
use crate::reports::Reports;
use crate::{Error, lock, tcx};
pub use counters::Counters;
use interfaces::Uplink;
pub use interfaces::recognize_programs;

static FILE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/flow.bpf.o"));

/// The loaded programs with their maps.
pub struct Kernel {
    pub(crate) from_pod: RawFd,
    from_switch: RawFd,
    pub(crate) from_uplink: RawFd,
    to_uplink: RawFd,
    from_device: RawFd,
    pub(crate) from_host: RawFd,
    uplink_maps: Mutex<UplinkMaps>,
    sealed: Map<u32, u32>,
    sealed_networks: Mutex<Entries<NetworkKey, u32>>,
    flows: Map<FlowKey, FlowEntry>,
    generations: Map<u32, u32>,
    interfaces: Map<u32, PuntedPort>,
    ports: Map<u32, PuntedPort>,
    shares: Map<u32, PortShare>,
    templates: Map<TemplateKey, Template>,
    choices: Map<ChoiceKey, Choice>,
    pub(crate) reports: Arc<Reports>,
    settings: Map<u32, Settings>,
    counters: Counts,
    barrier: Barrier,
    progress: Arc<Progress>,
    handshakes: Arc<Handshakes>,
    ingress: Ingress,
    /// Number of the kernel's end of the punt link.
    punt: AtomicU32,
    /// Numbers of the uplink's interface and of the kernel's end of its link to the switch.
    uplink: Mutex<Uplink>,
    /// Number of the kernel's end of the host port; 0 without one.
    host: AtomicU32,
    /// Keeps all of them open.
    _object: Object,
}

impl Kernel {
    /// Loads the programs, with room for so many entries. Nothing is forwarded before the first
    /// [`beat`](Self::beat).
    ///
    /// # Errors
    /// If the kernel refuses them.
    pub fn load(entries: u32) -> Result<Self, Error> {
        let failed = |cause| Error::new("load the programs of flow offload", cause);
        let object = Object::load(FILE, &[(c"flows", entries)]).map_err(failed)?;
        let progress = Progress::of(object.descriptor(c"progress").map_err(failed)?)?;
        let reports = Arc::new(Reports::of(object.descriptor(c"reports").map_err(failed)?)?);
        let ingress = Ingress::open()?;
        let find = || {
            Ok(Self {
                from_pod: object.program(c"from_pod")?,
                from_switch: object.program(c"from_switch")?,
                from_uplink: object.program(c"from_uplink")?,
                to_uplink: object.program(c"to_uplink")?,
                from_device: object.program(c"from_device")?,
                from_host: object.program(c"from_host")?,
                uplink_maps: Mutex::new(UplinkMaps::find(&object)?),
                sealed: object.map(c"sealed")?,
                sealed_networks: Mutex::new(Entries::new(object.map(c"sealed_networks")?)),
                flows: object.map(c"flows")?,
                generations: object.map(c"generations")?,
                interfaces: object.map(c"interfaces")?,
                ports: object.map(c"ports")?,
                shares: object.map(c"shares")?,
                templates: object.map(c"templates")?,
                choices: object.map(c"choices")?,
                reports,
                settings: object.map(c"settings")?,
                counters: object.counts(c"counters")?,
                barrier: Barrier::of(&object)?,
                progress,
                handshakes: Arc::default(),
                ingress,
                punt: AtomicU32::new(0),
                uplink: Mutex::default(),
                host: AtomicU32::new(0),
                _object: object,
            })
        };
        let this = find().map_err(failed)?;
        for program in [this.from_pod, this.from_switch, this.from_uplink, this.to_uplink] {
            tcx::note(program).map_err(|cause| Error::new("read a program's number", cause))?;
        }
        Ok(this)
    }

    /// The port of a queue of the punt link as the switch is to use it: what it takes there, pods
    /// may send again, and connections that are accepted get their entries.
    pub fn punt_queue(&self, queue: usize, port: Box<dyn Port>) -> Box<dyn Port> {
        let (progress, reports) = (Arc::clone(&self.progress), Arc::clone(&self.reports));
        let handshakes = Arc::clone(&self.handshakes);
        Box::new(Queue::of_punt_link(queue, port, progress, reports, handshakes))
    }

    /// The same of a queue of the uplink's link.
    pub fn uplink_queue(&self, port: Box<dyn Port>) -> Box<dyn Port> {
        let (reports, handshakes) = (Arc::clone(&self.reports), Arc::clone(&self.handshakes));
        Box::new(Queue::of_uplink(port, reports, handshakes))
    }

    /// The receiver of connections from the queues of the punt link.
    pub(crate) fn handshakes(&self) -> &Handshakes {
        &self.handshakes
    }

    /// Gives back to pods the shares of frames that were lost on the punt link.
    pub(crate) fn renew_shares(&self) {
        self.progress.begin_rounds();
    }

    /// Whether the switch has taken note of all that programs reported.
    pub(crate) fn has_no_reports(&self) -> bool {
        self.reports.is_empty()
    }

    /// Takes note of a connection of a port that a template opened: it may open another one.
    pub(crate) fn note_opened(&self, port: PortId) {
        self.progress.note_opened(port);
    }

    /// The number of these.
    #[cfg(test)]
    pub(crate) fn noted(&self, port: PortId) -> u32 {
        self.progress.noted(port)
    }

    /// Lets entries count until this moment of the monotonic clock, take FINs, and templates open connections.
    ///
    /// # Errors
    /// If the map cannot be written.
    pub fn beat(&self, good_until: Duration) -> Result<(), Error> {
        self.beat_until([good_until; 3])
    }

    /// The same, each until a moment of its own.
    ///
    /// # Errors
    /// If the map cannot be written.
    pub fn beat_until(&self, [good, fins, opens]: [Duration; 3]) -> Result<(), Error> {
        let ns = |moment: Duration| u64::try_from(moment.as_nanos()).unwrap_or(u64::MAX);
        let (good_until_ns, fins_until_ns, opens_until_ns) = (ns(good), ns(fins), ns(opens));
        let punt = self.punt.load(Ordering::Relaxed);
        let Uplink { ifindex: uplink, link: uplink_link, .. } = *lock(&self.uplink);
        let settings = Settings {
            good_until_ns,
            fins_until_ns,
            opens_until_ns,
            punt,
            uplink,
            uplink_link,
            zero: 0,
        };
        let failed = |cause| Error::new("write the heartbeat of flow offload", cause);
        self.settings.put(&0, &settings).map_err(failed)
    }

    /// Waits until every program that runs now has ended: a grace period of RCU, some tens of milliseconds.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn wait_for_programs(&self) -> Result<(), Error> {
        self.barrier.wait().map_err(|cause| Error::new("wait for programs", cause))
    }
}
