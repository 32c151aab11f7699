//! The load through the kernel's bridge, in real time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bench::forwarder::Forwarder;
use bench::rig::{Rig, filled, needs_root};
use dataplane::port::af_xdp::{Umem, UmemConfig};
use dataplane::port::{Buffers, Port};
use dataplane::{Frame, FreeList, Memory};
use testkit::TempDir;

use super::load::Load;
use super::{Report, Result, progress};

/// Rules of a node with a bridge: replies pass, and new connections that conntrack has a place for.
const RULES: &str = "table ip bench {\n chain forward { type filter hook forward priority 0; policy drop; \
    ct state established,related accept; ct state new accept; }\n}\n";
const FRAMES: u32 = 16_384;
/// After the last question, for what is on its way.
const REST: Duration = Duration::from_secs(1);

pub(super) fn run(load: &mut Load, seconds: u64, what: &str) -> Result<Report> {
    needs_root()?;
    let running = Forwarder::Bridge.start()?;
    let rig = &running.rig;
    rig.node.exec(["sysctl", "-qw", "net.bridge.bridge-nf-call-iptables=1"]);
    let folder = TempDir::new("bench-nft");
    let file = folder.path().join("rules");
    std::fs::write(&file, RULES)?;
    rig.node.exec(["nft", "-f", &file.display().to_string()]);
    let open = || End::open("eth0").map_err(|error| error.to_string());
    let (mut clients, mut servers) = (rig.a.enter(open)?, rig.b.enter(open)?);
    // What waits for room in the interface's ring, of each end.
    let mut waiting = [Vec::new(), Vec::new()];
    let (mut held, mut tick, ticks) = (0, 0, seconds * Load::TICKS);
    let (started, mut ended, mut took) = (Instant::now(), None, Duration::ZERO);
    while ended.is_none_or(|ended: Instant| ended.elapsed() < REST) {
        // On a machine that is too slow the load takes longer, and no packet waits for a ring.
        if tick < ticks && load.due.is_empty() && started.elapsed().as_millis() as u64 >= tick {
            load.begin(tick);
            if tick % Load::TICKS == 0 {
                held = held.max(counted(rig)?.held);
                progress(what, tick, seconds);
            }
            tick += 1;
        }
        if tick == ticks && ended.is_none() {
            took = started.elapsed();
            ended = Some(Instant::now());
        }
        while let Some(due) = load.due.front() {
            let side = usize::from(due.from.is_none());
            let end = if side == 0 { &mut clients } else { &mut servers };
            let Some(frame) = end.with(|_, buffers| buffers.filled(&load.frame(due))) else {
                break;
            };
            waiting[side].push(frame);
            load.due.pop_front();
        }
        for (end, waiting) in [&mut clients, &mut servers].into_iter().zip(&mut waiting) {
            end.with(|port, buffers| port.send(buffers, waiting))?;
            receive(end, load)?;
        }
    }
    let counts = counted(rig)?;
    Ok(Report {
        held: held.max(counts.held),
        evicted: format!("early drops {}", counts.early_drops),
        refused: counts.refused,
        seconds: took.as_secs(),
    })
}

/// An AF_XDP port in a pod, driven by hand.
struct End {
    _umem: Umem,
    memory: Arc<Memory>,
    free: FreeList,
    port: Option<Box<dyn Port>>,
}

impl End {
    fn open(interface: &str) -> Result<Self> {
        let (umem, memory, frames) =
            Umem::create(&UmemConfig { frames: FRAMES, hugepages: false })?;
        let port = umem.open(interface, &filled())?;
        let free = FreeList::new(&memory, frames);
        let mut end = Self { _umem: umem, memory, free, port: Some(Box::new(port)) };
        end.with(|port, buffers| port.receive(buffers, 64, &mut Vec::new()))?;
        Ok(end)
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut dyn Port, &mut Buffers<'_>) -> T) -> T {
        let mut buffers = Buffers { memory: &self.memory, free: &mut self.free };
        act(self.port.as_deref_mut().expect("there until it is dropped"), &mut buffers)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if let Some(port) = self.port.take() {
            port.close(&mut Buffers { memory: &self.memory, free: &mut self.free });
        }
    }
}

fn receive(end: &mut End, load: &mut Load) -> Result<()> {
    let mut frames: Vec<Frame> = Vec::new();
    loop {
        end.with(|port, buffers| port.receive(buffers, 64, &mut frames))?;
        if frames.is_empty() {
            return Ok(());
        }
        for frame in frames.drain(..) {
            load.arrived(end.memory.bytes(&frame));
            end.free.put(frame);
        }
    }
}

/// Conntrack's counts.
#[derive(Default)]
struct Counted {
    held: u64,
    refused: u64,
    early_drops: u64,
}

fn counted(rig: &Rig) -> Result<Counted> {
    let read = |path: &str| {
        rig.node.enter(|| std::fs::read_to_string(path)).map_err(|error| format!("{path}: {error}"))
    };
    let held = read("/proc/sys/net/netfilter/nf_conntrack_count")?.trim().parse()?;
    let table = read("/proc/thread-self/net/stat/nf_conntrack")?;
    let mut lines = table.lines();
    let head: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    let column = |name: &str| {
        let place = head.iter().position(|column| *column == name);
        place.ok_or_else(|| format!("conntrack has no column {name}"))
    };
    let (refused, early_drops) = (column("drop")?, column("early_drop")?);
    let mut counted = Counted { held, ..Counted::default() };
    // A line for each processor.
    for line in lines {
        let cells: Vec<&str> = line.split_whitespace().collect();
        let cell = |place: usize| cells.get(place).map_or(Ok(0), |it| u64::from_str_radix(it, 16));
        counted.refused += cell(refused)?;
        counted.early_drops += cell(early_drops)?;
    }
    Ok(counted)
}
