//! The loaded programs, their maps, and the cgroups they are attached to.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dataplane::bpf::{Barrier, Counts, Map, Object};
use session_rules::{Rule, Services};

use crate::events::Events;
use crate::exchanges::{self, exchange};
use crate::flags::flags;
use crate::generation::{Tables, Written, put};
use crate::layout::{
    ASKED_ABOUT, CLOSED, DENIED, Event, Exchange, ExchangePlace, KEPT_OUT, LOST, POD_DATAGRAMS,
    POD_HOST, POD_KNOWN, Pod, RAW, Settings, WAYS, bytes,
};
use crate::limits::Limits;
use crate::open::{Ended, Known};
use crate::render::{Overflow, render};
use crate::report::{Counters, Denied};
use crate::state::{Attached, State};
use crate::{Error, link};

static FILE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/socket.bpf.o"));

/// Programs, and the types by which they are attached (`enum bpf_attach_type`). The last two cost time for each packet, and are
/// for pods on the host network alone: packets of others pass the switch.
const PROGRAMS: [(&std::ffi::CStr, u32); 9] = [
    (c"connect4", libbpf_sys::BPF_CGROUP_INET4_CONNECT),
    (c"connect6", libbpf_sys::BPF_CGROUP_INET6_CONNECT),
    (c"sendmsg4", libbpf_sys::BPF_CGROUP_UDP4_SENDMSG),
    (c"sendmsg6", libbpf_sys::BPF_CGROUP_UDP6_SENDMSG),
    (c"recvmsg4", libbpf_sys::BPF_CGROUP_UDP4_RECVMSG),
    (c"recvmsg6", libbpf_sys::BPF_CGROUP_UDP6_RECVMSG),
    (c"create", libbpf_sys::BPF_CGROUP_INET_SOCK_CREATE),
    (c"ingress", libbpf_sys::BPF_CGROUP_INET_INGRESS),
    (c"egress", libbpf_sys::BPF_CGROUP_INET_EGRESS),
];

fn programs_of(is_host: bool) -> &'static [(&'static std::ffi::CStr, u32)] {
    if is_host { &PROGRAMS } else { &PROGRAMS[..PROGRAMS.len() - 2] }
}

/// Settings of the programs.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// A denied call fails with ECONNREFUSED in place of EPERM.
    pub refuse: bool,
    /// Nothing opens from a cgroup before its rules are known.
    pub closed: bool,
    /// Folder of a bpf file system where links are pinned, so that programs outlive the process. Without one
    /// they end with it.
    pub pins: Option<PathBuf>,
    /// Room for rules, services and exchanges.
    pub limits: Limits,
}

/// Pods of a node for whose exchanges there is room.
const PODS: u32 = 256;

/// The loaded programs with their maps.
#[derive(Debug)]
pub struct SocketPolicy {
    programs: [RawFd; PROGRAMS.len()],
    pods: Map<u64, Pod>,
    settings: Map<u32, Settings>,
    tables: Tables,
    /// Exchanges of datagrams that pods began, and that others did.
    exchanges: [Map<ExchangePlace, Exchange>; 2],
    limits: Limits,
    barrier: Barrier,
    counters: Counts,
    events: Mutex<Events>,
    pins: Option<PathBuf>,
    state: Mutex<State>,
    /// Keeps all of them open.
    _object: Object,
}

impl SocketPolicy {
    /// Loads the programs; they are attached nowhere and have no rules.
    ///
    /// # Errors
    /// If the kernel refuses them.
    pub fn load(options: Options) -> Result<Self, Error> {
        let failed = |cause| Error::new("load the programs of socket policy", cause);
        let find = || -> io::Result<Self> {
            let Limits { networks, ranges, endpoints, services, exchanges } = options.limits;
            let places = exchanges.saturating_mul(PODS);
            let sizes = [
                (c"rules", networks.saturating_mul(2)),
                (c"ranges", ranges.saturating_mul(2)),
                (c"endpoints", endpoints.saturating_mul(2)),
                (c"services", services.saturating_mul(2)),
                (c"sent", places),
                (c"heard", places),
            ];
            let object = Object::load(FILE, &sizes)?;
            let mut programs = [0; PROGRAMS.len()];
            for (program, (name, _)) in programs.iter_mut().zip(PROGRAMS) {
                *program = object.program(name)?;
            }
            let error = if options.refuse { -libc::ECONNREFUSED } else { 0 };
            let sets = (1 << (exchanges / WAYS).max(1).ilog2()) - 1;
            let closed = options.closed.into();
            let settings = Settings { closed, error, sets, ..Settings::default() };
            Ok(Self {
                programs,
                pods: object.map(c"pods")?,
                settings: object.map(c"settings")?,
                tables: Tables::of(&object, options.limits)?,
                exchanges: [object.map(c"sent")?, object.map(c"heard")?],
                limits: options.limits,
                barrier: Barrier::of(&object)?,
                counters: object.counts(c"counters")?,
                events: Mutex::new(Events::of(object.descriptor(c"events")?)?),
                pins: options.pins,
                state: Mutex::new(State {
                    settings,
                    written: Written::default(),
                    names: Default::default(),
                    attached: BTreeMap::new(),
                    known: None,
                    numbers: (HashMap::new(), 1),
                }),
                _object: object,
            })
        };
        let this = find().map_err(failed)?;
        this.settings.put(&0, &this.state().settings).map_err(failed)?;
        Ok(this)
    }

    /// Attaches the programs to a pod's cgroup. They decide by its rules from the next
    /// [`set_rules`](Self::set_rules) on; until then those that an earlier process had pinned decide too. A pod that is
    /// attached already gets these addresses. One on the host network is never closed; the rules about what it opens and
    /// accepts hold for it, and none about its addresses, which are the node's.
    ///
    /// # Errors
    /// If the cgroup cannot be opened, or the kernel refuses; then nothing is attached.
    pub fn attach(
        &self,
        pod: &str,
        addresses: &[IpAddr],
        cgroup: &Path,
        is_host: bool,
    ) -> Result<(), Error> {
        let failed = |cause| Error::new(format!("attach to {}", cgroup.display()), cause);
        let mut state = self.state();
        let opened = File::open(cgroup).map_err(failed)?;
        let id = opened.metadata().map_err(failed)?.ino();
        let mut own = [[0; 16]; 2];
        // The first of each family.
        for address in addresses.iter().rev() {
            own[usize::from(address.is_ipv6())] = bytes(*address).1;
        }
        if let Some(known) = state.attached.get_mut(pod).filter(|it| it.cgroup == id) {
            known.pod.own = own;
            return put(&self.pods, &id, &known.pod).map_err(failed);
        }
        let pod: Arc<str> = pod.into();
        let number = state.number(&pod);
        let data = Pod { number, flags: if is_host { POD_HOST } else { 0 }, own, reported: 0 };
        let mut links = Vec::new();
        for (program, (_, kind)) in self.programs.iter().zip(programs_of(is_host)) {
            links.push(link::attach(*program, *kind, &opened).map_err(failed)?);
            // All of them share it; it is there from the first one on.
            if links.len() == 1 {
                put(&self.pods, &id, &data).map_err(failed)?;
            }
        }
        let mut attached =
            Attached { cgroup: id, path: cgroup.to_owned(), pod: data, links, is_pinned: false };
        if self.folder(&pod).is_some_and(|folder| !folder.exists()) {
            self.pin(&pod, &mut attached)?;
        }
        state.attached.insert(pod, attached);
        Ok(())
    }

    /// Enters the data of a cgroup; one that is gone needs none.
    fn put_pod(&self, cgroup: u64, pod: &Pod) -> io::Result<()> {
        match put(&self.pods, &cgroup, pod) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }

    /// Pins a pod's links in the place of others.
    fn pin(&self, pod: &str, attached: &mut Attached) -> Result<(), Error> {
        let Some(folder) = self.folder(pod).filter(|_| !attached.is_pinned) else { return Ok(()) };
        let names: Vec<String> =
            PROGRAMS.iter().map(|(name, _)| name.to_string_lossy().into_owned()).collect();
        let pin = || -> io::Result<()> {
            std::fs::create_dir_all(&folder)?;
            attached
                .links
                .iter()
                .zip(&names)
                .try_for_each(|(link, name)| link::pin(link, &folder, name))?;
            link::remove_but(&folder, &names[..attached.links.len()])
        };
        pin().map_err(|cause| Error::new(format!("pin to {}", folder.display()), cause))?;
        attached.is_pinned = true;
        Ok(())
    }

    /// Takes the programs off a pod's cgroup.
    ///
    /// # Errors
    /// If the pins cannot be removed.
    pub fn detach(&self, pod: &str) -> Result<(), Error> {
        let mut state = self.state();
        if let Some(mut attached) = state.attached.remove(pod) {
            attached.is_pinned = false;
        }
        if let Some(number) = state.numbers.0.remove(pod) {
            let sets = state.settings.sets;
            self.exchanges.iter().for_each(|map| exchanges::remove(map, number, sets));
        }
        let Some(folder) = self.folder(pod) else { return Ok(()) };
        let failed = |cause| Error::new(format!("remove {}", folder.display()), cause);
        link::remove(&folder).map_err(failed)
    }

    /// The pods whose cgroups have the programs.
    pub fn attached(&self) -> Vec<Arc<str>> {
        self.state().attached.keys().cloned().collect()
    }

    /// Removes the pins of pods that an earlier process had attached and this one has not.
    ///
    /// # Errors
    /// If a pin cannot be removed.
    pub fn detach_others(&self) -> Result<(), Error> {
        let Some(pins) = &self.pins else { return Ok(()) };
        let state = self.state();
        let own: Vec<PathBuf> = state.attached.keys().filter_map(|it| self.folder(it)).collect();
        link::remove_pins_but(pins, &own)
    }

    /// Puts rules in force, all at once; ports of the node are services at its addresses `node`. `accepted` are rules about
    /// what the sockets of a pod on the host network accept, with the pod: they name remote networks and local ports.
    /// Returns the pods and namespaces that found no room and are closed.
    ///
    /// # Errors
    /// If the kernel has no memory for them: those before stay in force. If it has none for a pod's
    /// data: those before stay in force, or these are, but for this pod; a next call enters them.
    pub fn set_rules(
        &self,
        rules: &[Rule],
        accepted: &[(Arc<str>, Rule)],
        services: &Services,
        node: &[IpAddr],
    ) -> Result<Vec<Overflow>, Error> {
        let mut state = self.state();
        let rendered = render(rules, accepted, services, node, &state.numbers.0, &self.limits);
        let generation = match state.settings.generation.wrapping_add(1) {
            0 => 2,
            next => next,
        };
        let mut written = Written::default();
        let failed = |cause| Error::new("enter session rules (those before stay in force)", cause);
        let flags = flags(rules, accepted);
        let of = |name: &Arc<str>, pod: &Pod| {
            let wanted = flags.get(&**name).map_or(0, |flags| flags.of(pod.flags & POD_HOST != 0));
            pod.flags & POD_HOST | POD_KNOWN | wanted
        };
        // Datagrams are remembered before rules ask about them.
        let mut prepare = || {
            self.tables.write(&rendered, generation, &mut written)?;
            state.attached.iter().try_for_each(|(name, attached)| {
                let more = of(name, &attached.pod) & POD_DATAGRAMS;
                self.put_pod(
                    attached.cgroup,
                    &Pod { flags: attached.pod.flags | more, ..attached.pod },
                )
            })?;
            self.settings.put(&0, &Settings { generation, ..state.settings })
        };
        if let Err(cause) = prepare() {
            self.tables.remove(&written);
            return Err(failed(cause));
        }
        state.settings.generation = generation;
        let hosts: Vec<&Arc<str>> = state.hosts().map(|(pod, _)| pod).collect();
        state.known = (!hosts.is_empty())
            .then(|| Arc::new(Known::of(rules, accepted, services, node, &hosts)));
        let before = std::mem::replace(&mut state.written, written);
        let [last, _] = std::mem::take(&mut state.names);
        state.names = [(generation, rendered.names), last];
        let mut flagged = Ok(());
        for (name, attached) in &mut state.attached {
            let pod = Pod { flags: of(name, &attached.pod), ..attached.pod };
            match self.put_pod(attached.cgroup, &pod) {
                Ok(()) => attached.pod = pod,
                failed => flagged = failed,
            }
        }
        // Programs that run with the generation before find its rules to their end.
        self.barrier.wait().map_err(|cause| Error::new("remove the rules before", cause))?;
        self.tables.remove(&before);
        // Programs of an earlier process stay where these do not have all they need.
        flagged.map_err(|cause| Error::new("enter the data of a pod", cause))?;
        for (name, attached) in &mut state.attached {
            self.pin(name, attached)?;
        }
        Ok(rendered.closed)
    }

    /// Ends connections of pods on the host network that were open before the rules in force, and that these deny: up to a
    /// thousand, with whether there may be more. A call that was let through just before the rules may open its connection just
    /// after this.
    ///
    /// # Errors
    /// If the kernel does not list sockets or does not end them.
    pub fn end_denied(&self) -> Result<(Vec<Ended>, bool), Error> {
        let state = self.state();
        let Some(known) = state.known.clone() else { return Ok((Vec::new(), false)) };
        let pods: Vec<(Arc<str>, PathBuf, u32)> = state
            .hosts()
            .map(|(pod, it)| (Arc::clone(pod), it.path.clone(), it.pod.number))
            .collect();
        let sets = state.settings.sets;
        drop(state);
        let [_, heard] = &self.exchanges;
        let is_answered = |pod: &str, local: SocketAddr, remote: SocketAddr| {
            let Some((.., number)) = pods.iter().find(|it| &*it.0 == pod) else { return false };
            exchanges::is_known(heard, *number, sets, &exchange(local.port(), remote))
        };
        let cgroups: Vec<_> =
            pods.iter().map(|(pod, path, _)| (Arc::clone(pod), path.as_path())).collect();
        let failed = |error| Error::new("end connections", io::Error::other(error));
        known.end_denied(&cgroups, is_answered).map_err(failed)
    }

    /// Takes the calls that were denied since the last call.
    pub fn denied(&self) -> Vec<Denied> {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner).take();
        let state = self.state();
        let denied = |event: Event| {
            let pod = state.numbers.0.iter().find(|(_, number)| **number == event.pod)?.0;
            let names = state.names.iter().find(|(generation, _)| *generation == event.generation);
            let by = names.and_then(|(_, names)| names.get(event.by as usize)).cloned();
            Some(Denied::of(&event, Arc::clone(pod), by.unwrap_or_default()))
        };
        events.into_iter().filter_map(denied).collect()
    }

    /// Counters of the programs.
    pub fn counters(&self) -> Counters {
        let of = |counter| self.counters.sum(counter);
        let (asked, denied) = (of(ASKED_ABOUT), of(DENIED));
        let (kept_out, raw) = (of(KEPT_OUT), of(RAW));
        Counters { asked, denied, closed: of(CLOSED), lost: of(LOST), kept_out, raw }
    }

    /// Where the pins of a pod are; names of pins have no dots.
    fn folder(&self, pod: &str) -> Option<PathBuf> {
        let name = pod.replace('/', ":").replace('.', "+");
        self.pins.as_ref().map(|pins| pins.join(name))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
