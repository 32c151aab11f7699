//! The loaded programs, their maps, and the cgroups they are attached to.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dataplane::bpf::{Barrier, Counts, Map, Object, Plain};
use session_rules::{Rule, Services, Transport};

use crate::events::Events;
use crate::layout::{
    self, ASKED_ABOUT, CLOSED, DENIED, ENDPOINTS, Endpoint, LOST, LocalKey, POD_HOST, POD_KNOWN,
    Piece, Pod, RANGES, Range, RuleKey, ServiceKey, Settings, bytes,
};
use crate::render::{Rendered, render};
use crate::{Error, link};

static FILE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/socket.bpf.o"));

/// Programs, and the types by which they are attached (`enum bpf_attach_type`).
const PROGRAMS: [(&std::ffi::CStr, u32); 4] = [
    (c"connect4", libbpf_sys::BPF_CGROUP_INET4_CONNECT),
    (c"connect6", libbpf_sys::BPF_CGROUP_INET6_CONNECT),
    (c"sendmsg4", libbpf_sys::BPF_CGROUP_UDP4_SENDMSG),
    (c"sendmsg6", libbpf_sys::BPF_CGROUP_UDP6_SENDMSG),
];

/// How the programs answer.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// A denied call fails with ECONNREFUSED in place of EPERM.
    pub refuse: bool,
    /// Nothing opens from a cgroup before its rules are known.
    pub closed: bool,
    /// Folder of a bpf file system where links are pinned, so that programs outlive the process. Without one
    /// they end with it.
    pub pins: Option<PathBuf>,
}

/// The loaded programs with their maps.
#[derive(Debug)]
pub struct SocketPolicy {
    programs: [RawFd; PROGRAMS.len()],
    pods: Map<u64, Pod>,
    settings: Map<u32, Settings>,
    rules: Map<RuleKey, Piece>,
    ranges: Map<u32, Range>,
    locals: Map<LocalKey, u32>,
    services: Map<ServiceKey, Piece>,
    endpoints: Map<u32, Endpoint>,
    barrier: Barrier,
    counters: Counts,
    events: Mutex<Events>,
    pins: Option<PathBuf>,
    state: Mutex<State>,
    /// Keeps all of them open.
    _object: Object,
}

#[derive(Debug)]
struct State {
    settings: Settings,
    /// Keys of the generation in force.
    written: Written,
    /// Names of policies of the generation in force, and of the one before.
    names: [(u32, Vec<Arc<str>>); 2],
    attached: BTreeMap<Arc<str>, Attached>,
    /// Numbers of pods, and the next one.
    numbers: (HashMap<Arc<str>, u32>, u32),
}

#[derive(Debug, Default)]
struct Written {
    rules: Vec<RuleKey>,
    locals: Vec<LocalKey>,
    services: Vec<ServiceKey>,
}

/// A cgroup with the programs.
#[derive(Debug)]
struct Attached {
    cgroup: u64,
    pod: Pod,
    _links: Vec<OwnedFd>,
}

/// A call that was denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    /// The pod in whose cgroup the socket was opened.
    pub pod: Arc<str>,
    /// The deciding policies; empty if their names are not known any more.
    pub by: Arc<str>,
    /// The calling process, and its name.
    pub process: (u32, String),
    /// User of the process.
    pub user: u32,
    /// Its protocol.
    pub transport: Transport,
    /// The address that was asked for.
    pub target: SocketAddr,
}

/// Counters of the programs, since they were loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Calls that programs were asked about.
    pub asked: u64,
    /// Calls denied by a rule.
    pub denied: u64,
    /// Calls denied because the rules of the pod were not known.
    pub closed: u64,
    /// Denied calls that found no room for a report.
    pub lost: u64,
}

impl SocketPolicy {
    /// Loads the programs; they are attached nowhere and have no rules.
    ///
    /// # Errors
    /// If the kernel refuses them.
    pub fn load(options: Options) -> Result<Self, Error> {
        let failed = |cause| Error::new("load the programs of socket policy", cause);
        let find = || -> io::Result<Self> {
            let object = Object::load(FILE, &[])?;
            let mut programs = [0; PROGRAMS.len()];
            for (program, (name, _)) in programs.iter_mut().zip(PROGRAMS) {
                *program = object.program(name)?;
            }
            let error = if options.refuse { -libc::ECONNREFUSED } else { 0 };
            let settings = Settings { closed: options.closed.into(), error, ..Settings::default() };
            Ok(Self {
                programs,
                pods: object.map(c"pods")?,
                settings: object.map(c"settings")?,
                rules: object.map(c"rules")?,
                ranges: object.map(c"ranges")?,
                locals: object.map(c"locals")?,
                services: object.map(c"services")?,
                endpoints: object.map(c"endpoints")?,
                barrier: Barrier::of(&object)?,
                counters: object.counts(c"counters")?,
                events: Mutex::new(Events::of(object.descriptor(c"events")?)?),
                pins: options.pins,
                state: Mutex::new(State {
                    settings,
                    written: Written::default(),
                    names: Default::default(),
                    attached: BTreeMap::new(),
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
    /// [`set_rules`](Self::set_rules) on. A pod that is attached already gets these addresses. One on the host
    /// network is never closed, and only the rules about what it opens hold for it.
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
            return self.pods.put(&id, &known.pod).map_err(failed);
        }
        let pod: Arc<str> = pod.into();
        let number = state.number(&pod);
        let data = Pod { number, flags: if is_host { POD_HOST } else { 0 }, own };
        let mut links = Vec::new();
        for (program, (_, kind)) in self.programs.iter().zip(PROGRAMS) {
            links.push(link::attach(*program, kind, &opened).map_err(failed)?);
            // All of them share it; it is there from the first one on.
            if links.len() == 1 {
                self.pods.put(&id, &data).map_err(failed)?;
            }
        }
        if let Some(folder) = self.folder(&pod) {
            let pin = || -> io::Result<()> {
                std::fs::create_dir_all(&folder)?;
                links.iter().zip(PROGRAMS).try_for_each(|(link, (name, _))| {
                    link::pin(link, &folder, &name.to_string_lossy())
                })
            };
            pin().map_err(|cause| Error::new(format!("pin to {}", folder.display()), cause))?;
        }
        state.attached.insert(pod, Attached { cgroup: id, pod: data, _links: links });
        Ok(())
    }

    /// Takes the programs off a pod's cgroup.
    ///
    /// # Errors
    /// If the pins cannot be removed.
    pub fn detach(&self, pod: &str) -> Result<(), Error> {
        let mut state = self.state();
        state.attached.remove(pod);
        state.numbers.0.remove(pod);
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
        remove_pins_but(pins, &own)
    }

    /// Puts rules in force, all at once; ports of the node are services at its addresses `node`. Returns the
    /// generation.
    ///
    /// # Errors
    /// If there is no room for them: those before stay in force.
    pub fn set_rules(
        &self,
        rules: &[Rule],
        services: &Services,
        node: &[IpAddr],
    ) -> Result<u32, Error> {
        let mut state = self.state();
        let rendered = render(rules, services, node, &state.numbers.0);
        let generation = match state.settings.generation.wrapping_add(1) {
            0 => 2,
            next => next,
        };
        let mut written = Written::default();
        let failed = |cause| Error::new("enter session rules", cause);
        if let Err(cause) = self.write(&rendered, generation, &mut written) {
            self.remove(&written);
            return Err(failed(cause));
        }
        let settings = Settings { generation, ..state.settings };
        self.settings.put(&0, &settings).map_err(failed)?;
        state.settings = settings;
        let before = std::mem::replace(&mut state.written, written);
        let [last, _] = std::mem::take(&mut state.names);
        state.names = [(generation, rendered.names), last];
        for attached in state.attached.values_mut() {
            attached.pod.flags |= POD_KNOWN;
            // The cgroup may be gone.
            let _ = self.pods.put(&attached.cgroup, &attached.pod);
        }
        // Programs that run with the generation before find its rules to their end.
        self.barrier.wait().map_err(failed)?;
        self.remove(&before);
        Ok(generation)
    }

    fn write(&self, rendered: &Rendered, generation: u32, done: &mut Written) -> io::Result<()> {
        let half = generation & 1;
        enter(&self.ranges, half * RANGES, RANGES, &rendered.ranges)?;
        enter(&self.endpoints, half * ENDPOINTS, ENDPOINTS, &rendered.endpoints)?;
        for (key, piece) in &rendered.rules {
            let key = RuleKey { generation, ..*key };
            self.rules.put(&key, &Piece { first: half * RANGES + piece.first, ..*piece })?;
            done.rules.push(key);
        }
        for (key, table) in &rendered.locals {
            let key = LocalKey { generation, ..*key };
            self.locals.put(&key, table)?;
            done.locals.push(key);
        }
        for (key, piece) in &rendered.services {
            let key = ServiceKey { generation, ..*key };
            self.services.put(&key, &Piece { first: half * ENDPOINTS + piece.first, ..*piece })?;
            done.services.push(key);
        }
        Ok(())
    }

    /// Removes entries; none can fail to go.
    fn remove(&self, written: &Written) {
        written.rules.iter().for_each(|key| drop(self.rules.remove(key)));
        written.locals.iter().for_each(|key| drop(self.locals.remove(key)));
        written.services.iter().for_each(|key| drop(self.services.remove(key)));
    }

    /// Takes the calls that were denied since the last call.
    pub fn denied(&self) -> Vec<Denied> {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner).take();
        let state = self.state();
        let denied = |event: layout::Event| {
            let pod = state.numbers.0.iter().find(|(_, number)| **number == event.pod)?.0;
            let names = state.names.iter().find(|(generation, _)| *generation == event.generation);
            let by = names.and_then(|(_, names)| names.get(event.by as usize)).cloned();
            let command = event.command.split(|it| *it == 0).next().unwrap_or_default();
            Some(Denied {
                pod: Arc::clone(pod),
                by: by.unwrap_or_default(),
                process: (event.process, String::from_utf8_lossy(command).into_owned()),
                user: event.user,
                transport: match event.transport == layout::number(Transport::Udp) {
                    true => Transport::Udp,
                    false => Transport::Tcp,
                },
                target: event.target(),
            })
        };
        events.into_iter().filter_map(denied).collect()
    }

    /// Counters of the programs.
    pub fn counters(&self) -> Counters {
        let of = |counter| self.counters.sum(counter);
        let (asked, denied) = (of(ASKED_ABOUT), of(DENIED));
        Counters { asked, denied, closed: of(CLOSED), lost: of(LOST) }
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

impl State {
    /// The number of a pod's table, which it keeps.
    fn number(&mut self, pod: &Arc<str>) -> u32 {
        let (numbers, next) = &mut self.numbers;
        *numbers.entry(Arc::clone(pod)).or_insert_with(|| {
            *next += 1;
            *next - 1
        })
    }
}

/// Enters values of an array from a place on, of which there is room for so many.
fn enter<V: Plain>(map: &Map<u32, V>, first: u32, room: u32, values: &[V]) -> io::Result<()> {
    let full = || io::Error::from(io::ErrorKind::StorageFull);
    let count = u32::try_from(values.len()).ok().filter(|it| *it <= room).ok_or_else(full)?;
    let keys: Vec<u32> = (first..first + count).collect();
    match map.put_all(&keys, values) == values.len() {
        true => Ok(()),
        false => Err(full()),
    }
}

/// Removes all pins in a folder: the programs end there, unless a running process holds them.
///
/// # Errors
/// If a pin cannot be removed.
pub fn remove_pins(pins: &Path) -> Result<(), Error> {
    remove_pins_but(pins, &[])?;
    let failed = |cause| Error::new(format!("remove {}", pins.display()), cause);
    link::remove(pins).map_err(failed)
}

fn remove_pins_but(pins: &Path, kept: &[PathBuf]) -> Result<(), Error> {
    let failed = |cause| Error::new(format!("remove the pins in {}", pins.display()), cause);
    let entries = match std::fs::read_dir(pins) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(failed)?,
    };
    for entry in entries.flatten().filter(|it| !kept.contains(&it.path())) {
        link::remove(&entry.path()).map_err(failed)?;
    }
    Ok(())
}
