//! The loaded programs, their maps, and the interfaces they are attached to.

#![allow(unsafe_code, reason = "runs a program over bytes for tests")]

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dataplane::PortId;
use dataplane::port::Port;
use libbpf_sys as sys;

use crate::Error;
use crate::layout::{
    COUNTERS, FORWARDED, FORWARDED_BYTES, FlowEntry, FlowKey, GUARD_PORTS, NO_PORT, OVER_SHARE,
    PORTS, PortShare, PuntedPort, Reason, Settings,
};
use crate::map::{Map, result};
use crate::object::Object;
use crate::progress::{Progress, PuntQueue};
use crate::tcx;

/// The loaded programs with their maps.
pub struct Kernel {
    from_pod: RawFd,
    from_switch: RawFd,
    flows: Map<FlowKey, FlowEntry>,
    generations: Map<u32, u32>,
    interfaces: Map<u32, PuntedPort>,
    ports: Map<u32, PuntedPort>,
    shares: Map<u32, PortShare>,
    settings: Map<u32, Settings>,
    counters: Map<u32, u64>,
    progress: Arc<Progress>,
    /// Number of the kernel's end of the punt link.
    punt: AtomicU32,
    /// Keeps all of them open.
    _object: Object,
}

/// What the programs did, since they were loaded.
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
}

/// What a program did with one packet; see [`Kernel::run`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was redirected, looking so.
    Redirected(Vec<u8>),
    /// It was dropped.
    Dropped,
    /// Something else: the program's own number.
    Other(u32),
}

/// Notes which programs at these interfaces of this network an earlier process left there. Called
/// while the process may still read programs' names (CAP_SYS_ADMIN).
pub fn recognize_programs(interfaces: impl IntoIterator<Item = u32>) {
    tcx::recognize(interfaces.into_iter());
}

/// Numbers of this network's interfaces.
pub fn interfaces() -> impl Iterator<Item = u32> {
    let interfaces = std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    interfaces.filter_map(|it| {
        let text = std::fs::read_to_string(it.path().join("ifindex")).ok()?;
        text.trim().parse().ok()
    })
}

impl Kernel {
    /// Loads the programs, with room for so many entries. Nothing is forwarded before the first
    /// [`beat`](Self::beat).
    ///
    /// # Errors
    /// If the kernel refuses them.
    pub fn load(entries: u32) -> Result<Self, Error> {
        let object = Object::load(entries)?;
        let this = Self {
            from_pod: object.program(c"from_pod")?,
            from_switch: object.program(c"from_switch")?,
            flows: object.map(c"flows")?,
            generations: object.map(c"generations")?,
            interfaces: object.map(c"interfaces")?,
            ports: object.map(c"ports")?,
            shares: object.map(c"shares")?,
            settings: object.map(c"settings")?,
            counters: object.map(c"counters")?,
            progress: Progress::of(object.descriptor(c"progress")?)?,
            punt: AtomicU32::new(0),
            _object: object,
        };
        for program in [this.from_pod, this.from_switch] {
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
        let failed = |cause| Error::new(format!("attach to the punt link ({ifindex})"), cause);
        tcx::attach(self.from_switch, ifindex).map_err(failed)?;
        self.punt.store(ifindex, Ordering::Relaxed);
        self.beat(Duration::ZERO)
    }

    /// The port of a queue of the punt link as the switch is to use it: what it takes there, pods
    /// may send again.
    pub fn punt_queue(&self, queue: usize, port: Box<dyn Port>) -> Box<dyn Port> {
        Box::new(PuntQueue { port, queue, progress: Arc::clone(&self.progress) })
    }

    /// Gives back to pods the shares of frames that were lost on the punt link.
    pub(crate) fn renew_shares(&self) {
        self.progress.begin_rounds();
    }

    /// Lets entries count until this moment of the monotonic clock.
    ///
    /// # Errors
    /// If the map cannot be written.
    pub fn beat(&self, good_until: Duration) -> Result<(), Error> {
        let punt = self.punt.load(Ordering::Relaxed);
        let good_until_ns = u64::try_from(good_until.as_nanos()).unwrap_or(u64::MAX);
        let settings = Settings { good_until_ns, punt, zero: 0 };
        let failed = |cause| Error::new("write the heartbeat of flow offload", cause);
        self.settings.put(&0, &settings).map_err(failed)
    }

    /// Serves a pod's interface: closes it to the kernel's own stack, and has its frames take the
    /// punt link as those of `id`.
    ///
    /// # Errors
    /// If the program cannot be attached, or the number is too large.
    pub fn add_port(&self, id: PortId, port: &PuntedPort) -> Result<(), Error> {
        let failed = |cause| Error::new(format!("attach to interface {}", port.ifindex), cause);
        if id.0 >= PORTS {
            return Err(failed(io::ErrorKind::InvalidInput.into()));
        }
        let number = u32::from(id.0);
        self.shares.put(&number, &PortShare::default()).map_err(failed)?;
        self.ports.put(&number, port).map_err(failed)?;
        self.interfaces.put(&port.ifindex, port).map_err(failed)?;
        tcx::attach(self.from_pod, port.ifindex).map_err(failed)
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
        tcx::is_first(self.from_pod, ifindex).unwrap_or(false)
    }

    /// Takes the programs of flow offload off an interface.
    pub fn release(ifindex: u32) {
        tcx::detach(ifindex);
    }

    /// Sets the generation of a guard's place.
    ///
    /// # Errors
    /// If there is no such place.
    pub fn set_generation(&self, guard: u32, generation: u32) -> Result<(), Error> {
        let failed = |cause| Error::new(format!("write generation {guard}"), cause);
        self.generations.put(&guard, &generation).map_err(failed)
    }

    /// The guard's place of a port's generation.
    pub fn guard_of(port: PortId) -> u32 {
        GUARD_PORTS + u32::from(port.0)
    }

    /// Enters entries; how many got in before the map was full.
    pub fn put_flows(&self, keys: &[FlowKey], entries: &[FlowEntry]) -> usize {
        self.flows.put_all(keys, entries)
    }

    /// An entry as it is now.
    pub fn flow(&self, key: &FlowKey) -> Option<FlowEntry> {
        self.flows.get(key)
    }

    /// Removes an entry; as it was last, if there was one.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn remove_flow(&self, key: &FlowKey) -> Result<Option<FlowEntry>, Error> {
        self.flows.take(key).map_err(|cause| Error::new("remove an entry", cause))
    }

    /// Calls `each` with all entries, as a picture taken while they change.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn for_each_flow(&self, each: impl FnMut(&FlowKey, &FlowEntry)) -> Result<(), Error> {
        self.flows.for_each(each).map_err(|cause| Error::new("read the entries", cause))
    }

    /// What the programs did.
    pub fn counters(&self) -> Counters {
        let values: Vec<u64> = (0..COUNTERS as u32).map(|n| self.counters.sum(n)).collect();
        Counters {
            packets: values[FORWARDED],
            bytes: values[FORWARDED_BYTES],
            punted: Reason::all().map(|reason| (reason, values[reason.counter()])).collect(),
            no_port: values[NO_PORT],
            over_share: values[OVER_SHARE],
        }
    }

    /// Runs the program of pods over one frame that enters by the interface `ifindex`, without
    /// sending anything; `segments` are the size and number of those the kernel would cut it into.
    ///
    /// # Errors
    /// If the kernel cannot run it.
    pub fn run(
        &self,
        ifindex: u32,
        frame: &[u8],
        segments: Option<(u32, u32)>,
    ) -> Result<Outcome, Error> {
        let mut context = [0_u32; CONTEXT];
        let (size, count) = segments.unwrap_or_default();
        (context[IFINDEX], context[GSO_SIZE], context[GSO_SEGS]) = (ifindex, size, count);
        let mut out = vec![0; frame.len() + 256];
        let mut options = sys::bpf_test_run_opts {
            data_in: frame.as_ptr().cast(),
            data_size_in: frame.len() as u32,
            data_out: out.as_mut_ptr().cast(),
            data_size_out: out.len() as u32,
            ctx_in: (&raw const context).cast(),
            ctx_size_in: size_of_val(&context) as u32,
            repeat: 1,
            ..Default::default()
        };
        options.sz = size_of_val(&options) as _;
        // SAFETY: all that the options point to is as long as they say, and outlives the call.
        let error = unsafe { sys::bpf_prog_test_run_opts(self.from_pod, &raw mut options) };
        result(error).map_err(|cause| Error::new("run the program of pods", cause))?;
        out.truncate(options.data_size_out as usize);
        Ok(match options.retval {
            REDIRECT => Outcome::Redirected(out),
            SHOT => Outcome::Dropped,
            other => Outcome::Other(other),
        })
    }
}

/// Words of `struct __sk_buff` of linux/bpf.h, and places in it.
const CONTEXT: usize = 48;
const IFINDEX: usize = 10;
const GSO_SEGS: usize = 41;
const GSO_SIZE: usize = 44;
/// `TC_ACT_SHOT` and `TC_ACT_REDIRECT` of linux/pkt_cls.h.
const SHOT: u32 = 2;
const REDIRECT: u32 = 7;
