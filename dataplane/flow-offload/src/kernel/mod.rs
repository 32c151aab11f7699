//! The loaded programs, their maps, and the interfaces they are attached to.

mod maps;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dataplane::PortId;
use dataplane::bpf::{Barrier, Counts, Entries, Map, NetworkKey, Object};
use dataplane::port::Port;
use dataplane::port::af_xdp::{UplinkFilter, UplinkMaps};

use crate::handshake::Handshakes;
use crate::ingress::{self, Ingress};
use crate::layout::{
    CLEAR_TEXT, COUNTERS, Choice, ChoiceKey, FORWARDED, FORWARDED_BYTES, FlowEntry, FlowKey,
    NO_PORT, OPENED, OVER_SHARE, PORTS, PortShare, PuntedPort, Reason, Settings, Template,
    TemplateKey,
};
use crate::progress::Progress;
use crate::queues::Queue;
use crate::reports::Reports;
use crate::{Error, lock, tcx};

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

/// The uplink as the programs see it; without one both numbers are 0.
#[derive(Clone, Copy, Default)]
struct Uplink {
    ifindex: u32,
    link: u32,
    /// Whether the program is attached to it.
    is_steered: bool,
}

/// Counters of the programs, since they were loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets forwarded by entries; segments that are still to be cut count each.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Frames that went to the switch, by reason.
    pub punted: Vec<(Reason, u64)>,
    /// Frames dropped whose interface or tag belongs to no port.
    pub no_port: u64,
    /// Frames dropped because their port had used up its share of the punt link.
    pub over_share: u64,
    /// Connections that templates opened.
    pub opened: u64,
    /// Packets dropped that other nodes should have encrypted.
    pub clear_text: u64,
}

impl Counters {
    /// Rates by the second, if these were the counters `before` so many seconds ago.
    pub(crate) fn per_second(&self, before: &Self, seconds: f64) -> Self {
        let rate = |now: u64, then: u64| (now.saturating_sub(then) as f64 / seconds) as u64;
        let then = |reason: &Reason| before.of(*reason);
        Self {
            packets: rate(self.packets, before.packets),
            bytes: rate(self.bytes, before.bytes),
            punted: self.punted.iter().map(|(why, now)| (*why, rate(*now, then(why)))).collect(),
            no_port: rate(self.no_port, before.no_port),
            over_share: rate(self.over_share, before.over_share),
            opened: rate(self.opened, before.opened),
            clear_text: rate(self.clear_text, before.clear_text),
        }
    }

    /// Frames that went to the switch for a reason.
    pub fn of(&self, reason: Reason) -> u64 {
        self.punted.iter().find(|(why, _)| *why == reason).map_or(0, |(_, count)| *count)
    }
}

/// Notes which programs at these interfaces of this network an earlier process left there. Called
/// while the process may still read programs' names (CAP_SYS_ADMIN).
pub fn recognize_programs(interfaces: impl IntoIterator<Item = u32>) {
    tcx::recognize(interfaces.into_iter());
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

    /// Takes `ifindex` for the kernel's end of the punt link: what the switch sends there reaches
    /// the pods, what it is to decide leaves by it.
    ///
    /// # Errors
    /// If the program cannot be attached.
    pub fn set_punt(&self, ifindex: u32) -> Result<(), Error> {
        self.ingress.attach(self.from_switch, "from_switch", ifindex)?;
        self.punt.store(ifindex, Ordering::Relaxed);
        self.beat(Duration::ZERO)
    }

    /// Takes `ifindex` for the uplink and `link` for the kernel's end of its link to the switch: what
    /// the switch sends there leaves by the uplink. Nothing is taken from the uplink before
    /// [`steer_uplink`](Self::steer_uplink).
    ///
    /// # Errors
    /// If the program cannot be attached.
    pub fn set_uplink(&self, ifindex: u32, link: u32) -> Result<(), Error> {
        *lock(&self.uplink) = Uplink { ifindex, link, is_steered: false };
        let settings = self.settings.get(&0).unwrap_or_default();
        let Settings { good_until_ns, fins_until_ns, opens_until_ns, .. } = settings;
        self.beat_until([good_until_ns, fins_until_ns, opens_until_ns].map(Duration::from_nanos))?;
        self.ingress.attach(self.to_uplink, "to_uplink", link)
    }

    /// Sets which packets the switch takes from the uplink.
    ///
    /// # Errors
    /// If the kernel refuses. Another call continues from the state reached.
    pub fn set_uplink_filter(&self, filter: &UplinkFilter) -> Result<(), Error> {
        let set = lock(&self.uplink_maps).set(filter);
        set.map_err(|error| Error::new(error.attempt, error.cause))
    }

    /// Takes nothing from the uplink any more that other nodes have to encrypt, unless it arrived so: what comes in a
    /// tunnel, and what the values of `networks` say, which `dataplane/bpf/sealed.h` defines. `port` is where
    /// encrypted packets arrive.
    ///
    /// # Errors
    /// If the kernel refuses. Another call continues from the state reached.
    pub fn require_encryption(
        &self,
        networks: &BTreeMap<NetworkKey, u32>,
        port: u16,
    ) -> Result<(), Error> {
        let failed = |cause| Error::new("require encryption at the uplink", cause);
        self.sealed.put(&0, &port.into()).map_err(failed)?;
        lock(&self.sealed_networks).set(networks).map_err(failed)
    }

    /// The program for what a WireGuard device has decrypted, for `Programs::forward_by` of encryption.
    pub fn from_device(&self) -> RawFd {
        self.from_device
    }

    /// Attaches the uplink's program, unless that is done.
    ///
    /// # Errors
    /// If there is no uplink, or the program cannot be attached.
    pub fn steer_uplink(&self) -> Result<(), Error> {
        let mut uplink = lock(&self.uplink);
        if !uplink.is_steered {
            self.ingress.attach(self.from_uplink, "from_uplink", uplink.ifindex)?;
            uplink.is_steered = true;
        }
        Ok(())
    }

    /// Whether the uplink's program is where it belongs; other programs may stand there as well.
    pub fn is_uplink_guarded(&self) -> bool {
        let uplink = *lock(&self.uplink);
        !uplink.is_steered || self.ingress.is_attached(self.from_uplink, uplink.ifindex)
    }

    /// Forwards what the node's kernel sends by `ifindex`, its end of the host port, by
    /// entries.
    ///
    /// # Errors
    /// If the program cannot be attached: the switch forwards all of it.
    pub fn set_host(&self, ifindex: u32) -> Result<(), Error> {
        self.host.store(ifindex, Ordering::Relaxed);
        self.restore_host()
    }

    /// Attaches the program of the host port again if it is not there any more.
    pub(crate) fn restore_host(&self) -> Result<(), Error> {
        match self.host.load(Ordering::Relaxed) {
            0 => Ok(()),
            ifindex => self.ingress.attach_to_egress(self.from_host, "from_host", ifindex),
        }
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

    /// Begins to count connections of a port that is no pod's.
    ///
    /// # Errors
    /// If the number is too large.
    pub(crate) fn enter_wire(&self, id: PortId) -> Result<(), Error> {
        let failed = |cause| Error::new(format!("serve port {}", id.0), cause);
        let share = PortShare { opened: self.progress.noted(id), ..PortShare::default() };
        self.shares.put(&u32::from(id.0), &share).map_err(failed)
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

    /// Serves a pod's interface: closes it to the kernel's own stack, and has its frames take the
    /// punt link as those of `id`.
    ///
    /// # Errors
    /// As [`enter_port`](Self::enter_port) and [`attach`](Self::attach).
    pub fn add_port(&self, id: PortId, port: &PuntedPort) -> Result<(), Error> {
        self.enter_port(id, port)?;
        self.attach(port.ifindex)
    }

    /// Attaches the pods' program to an interface, in the place of that of an earlier process. From now
    /// on the entries of the port and of its connections count there.
    ///
    /// # Errors
    /// If the program cannot be attached.
    pub fn attach(&self, ifindex: u32) -> Result<(), Error> {
        self.ingress.attach(self.from_pod, "from_pod", ifindex)
    }

    /// The same at many interfaces; the result of each.
    pub fn attach_all(&self, interfaces: &[u32]) -> Vec<Result<(), Error>> {
        self.ingress.attach_all(self.from_pod, "from_pod", interfaces)
    }

    /// Enters a pod's interface: frames reach it, and those that its program will take are those of `id`.
    ///
    /// # Errors
    /// If the number is too large.
    pub fn enter_port(&self, id: PortId, port: &PuntedPort) -> Result<(), Error> {
        let failed = |cause| Error::new(format!("enter interface {}", port.ifindex), cause);
        if id.0 >= PORTS {
            return Err(failed(io::ErrorKind::InvalidInput.into()));
        }
        let number = u32::from(id.0);
        let share = PortShare { opened: self.progress.noted(id), ..PortShare::default() };
        self.shares.put(&number, &share).map_err(failed)?;
        self.ports.put(&number, port).map_err(failed)?;
        self.interfaces.put(&port.ifindex, port).map_err(failed)
    }

    /// Serves a pod's interface no more. What it sends is dropped: the program stays.
    pub fn remove_port(&self, id: PortId) {
        let number = u32::from(id.0);
        let Some(port) = self.ports.get(&number).filter(|port| port.ifindex != 0) else { return };
        // Neither fails: the places are there, and the interface's need not be.
        let _ = self.ports.put(&number, &PuntedPort::default());
        if self.interfaces.get(&port.ifindex) == Some(port) {
            let _ = self.interfaces.remove(&port.ifindex);
        }
    }

    /// Frames of a port that were dropped because it had used up its share of the punt link.
    pub fn over_share(&self, id: PortId) -> u64 {
        self.shares.get(&u32::from(id.0)).unwrap_or_default().dropped
    }

    /// Whether a pod's interface is guarded: its program is the first there.
    pub fn is_guarded(&self, ifindex: u32) -> bool {
        self.ingress.is_first(self.from_pod, ifindex)
    }

    /// Takes the programs of flow offload off an interface.
    pub fn release(ifindex: u32) {
        ingress::detach(ifindex);
    }

    /// Takes the program of flow offload off the kernel's end of the host port.
    pub fn release_host(ifindex: u32) {
        ingress::detach_from_egress(ifindex);
    }

    /// Waits until every program that runs now has ended: a grace period of RCU, some tens of milliseconds.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn wait_for_programs(&self) -> Result<(), Error> {
        self.barrier.wait().map_err(|cause| Error::new("wait for programs", cause))
    }

    /// Counters of the programs.
    pub fn counters(&self) -> Counters {
        let values: Vec<u64> = (0..COUNTERS as u32).map(|n| self.counters.sum(n)).collect();
        Counters {
            packets: values[FORWARDED],
            bytes: values[FORWARDED_BYTES],
            punted: Reason::all().map(|reason| (reason, values[reason.counter()])).collect(),
            no_port: values[NO_PORT],
            over_share: values[OVER_SHARE],
            opened: values[OPENED],
            clear_text: values[CLEAR_TEXT],
        }
    }
}
