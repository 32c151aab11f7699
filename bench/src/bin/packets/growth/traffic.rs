//! A switch over ports that always have packets.
//!
//! Four clients ask a server each, so that the bursts of their ports fill a vector. Flows have
//! numbers; the queues of a client share its flows.

use std::error::Error;
use std::fs;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use acl::{Action, AddressMapBuilder, Block, End, PeerSetId, PortRange, Rule, Table};
use bench::SessionFile;
use dataplane::port::{Buffers, Port, PortGone};
use dataplane::switch::{Config, RxMode};
use dataplane::wire::Mac;
use dataplane::{
    AclBinding, Frame, Memory, Outcome, Parts, PortId, PortKind, PortState, Snapshot, Switch,
    Verdict,
};
use fastrand::Rng;

/// Clients, and as many servers.
const PAIRS: u32 = 4;
/// Addresses of each server. Clients, whose addresses are checked, have one, as pods do.
const ADDRESSES: u32 = 64;
const CLIENT_PORTS: u32 = 60_000;
/// Destination ports that rules are about.
const SERVER_PORTS: u32 = 50_000;
/// For each worker: the ring between two workers holds half of them.
const FRAMES: u32 = 8192;

/// Phases of the queues: wait; send each flow's first packet; send without end.
const WAIT: u8 = 0;
const BEGIN: u8 = 1;
const RUN: u8 = 2;

/// Where packets go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Out by the worker that they came in by, in one direction.
    Straight,
    /// The same in both directions, each handled by another worker.
    Crossed,
    /// In one direction, to ports of which each has one worker.
    Handed,
}

/// A running switch.
pub(crate) struct Rig {
    switch: Switch,
    shared: Arc<Shared>,
    _file: SessionFile,
}

/// State shared by all queues.
struct Shared {
    phase: AtomicU8,
    making: Vec<Making>,
}

/// Nanoseconds that the queues of one number, all of one worker, have spent on the making of packets.
/// In cache lines of its own: workers must not meet in what they measure with.
#[derive(Default)]
#[repr(align(128))]
struct Making(AtomicU64);

impl Rig {
    /// With room for `capacity` sessions. First each of `flows` flows has one packet; nothing more
    /// comes before [`run`](Self::run). (No flows are flows without end, each with one packet.)
    pub(crate) fn start(
        workers: usize,
        rules: u32,
        capacity: u32,
        way: Way,
        flows: u32,
    ) -> Result<Self, Box<dyn Error>> {
        let config = Config {
            workers,
            cores: (0..workers).collect(),
            rx_mode: RxMode::Polling,
            sessions: capacity,
            ports: 2 * PAIRS as u16,
            ..Config::default()
        };
        let (memory, frames) = Memory::heap(2048, FRAMES * workers as u32);
        let (file, sessions) =
            SessionFile::sessions(config.sessions, config.ports, config.timeouts)?;
        let switch = Switch::start_over(&config, sessions, &memory, frames, |_| None)?;
        let making = (0..workers).map(|_| Making::default()).collect();
        let shared = Arc::new(Shared { phase: AtomicU8::new(WAIT), making });
        let share = (flows > 0).then(|| flows / PAIRS / workers as u32);
        let queue = |client, n: usize, sends| -> Box<dyn Port> {
            let flows = Flows { client, queue: n as u32, queues: workers as u32, rules };
            Box::new(Queue::new(flows, share, sends, &shared))
        };
        for port in 0..PAIRS {
            let asks = (0..workers).map(|n| queue(port, n, Sends::Questions));
            switch.add_queues(PortId(port as u16), asks.collect());
        }
        for port in 0..PAIRS {
            let id = PortId((PAIRS + port) as u16);
            let sends = if way == Way::Crossed { Sends::Answers } else { Sends::Nothing };
            match way {
                Way::Handed => switch.add_port(id, queue(port, 0, sends)),
                _ => {
                    // What the next worker's clients ask.
                    let answers = (1..=workers).map(|n| queue(port, n % workers, sends));
                    switch.add_queues(id, answers.collect());
                }
            }
        }
        // Added after the ports, so its presence implies theirs.
        switch.publish(&Arc::new(snapshot(rules)));
        if !switch.wait_in_force(1, Duration::from_secs(10)) {
            return Err("the workers do not answer".into());
        }
        shared.phase.store(BEGIN, Ordering::Relaxed);
        Ok(Self { switch, shared, _file: file })
    }

    /// From now on there are packets without end.
    pub(crate) fn run(&self) {
        self.shared.phase.store(RUN, Ordering::Relaxed);
    }

    /// Time that the workers have made packets, together.
    pub(crate) fn making_time(&self) -> Duration {
        let making = self.shared.making.iter().map(|it| it.0.load(Ordering::Relaxed));
        Duration::from_nanos(making.sum())
    }

    pub(crate) fn sessions(&self) -> u32 {
        self.switch.sessions().used()
    }

    /// Packets that have left.
    pub(crate) fn packets(&self) -> u64 {
        let parts = (0..2 * PAIRS).flat_map(|port| self.switch.parts(PortId(port as u16)));
        parts.map(|part| part.counters.sent.value()).sum()
    }

    /// Nothing may have been refused. (What finds the ring in front of a busy worker full has not
    /// left, and counts for nothing.)
    pub(crate) fn check(&self) -> Result<(), String> {
        let is_refusal =
            |it: &&Outcome| it.verdict() == Verdict::Drop && **it != Outcome::HandoffFull;
        for outcome in Outcome::ALL.iter().filter(is_refusal) {
            let count: u64 = self.switch.counters().map(|it| it.of(*outcome)).sum();
            if count > 0 {
                return Err(format!("{count} packets ended as {outcome}"));
            }
        }
        Ok(())
    }

    /// Time that the workers have had a core, together.
    pub(crate) fn worker_time(&self) -> Result<Duration, Box<dyn Error>> {
        let mut nanoseconds = 0;
        for thread in fs::read_dir("/proc/self/task")? {
            let path = thread?.path();
            // A thread may end between listing and reading.
            let Ok(name) = fs::read_to_string(path.join("comm")) else { continue };
            if name.starts_with("worker-") {
                let text = fs::read_to_string(path.join("schedstat"))?;
                nanoseconds += text.split(' ').next().unwrap_or_default().parse::<u64>()?;
            }
        }
        Ok(Duration::from_nanos(nanoseconds))
    }
}

/// The flows between a client and its server that one queue has.
#[derive(Clone, Copy)]
struct Flows {
    client: u32,
    queue: u32,
    queues: u32,
    rules: u32,
}

/// An address and a port.
type At = (u32, u16);

impl Flows {
    /// The client's and the server's end of the `n`th.
    fn ends(&self, n: u32) -> (At, At) {
        let n = n * self.queues + self.queue;
        let ports = self.rules.min(SERVER_PORTS);
        let (server_port, n) = (1 + n % ports, n / ports);
        let (client_port, n) = (1 + n % CLIENT_PORTS, n / CLIENT_PORTS);
        let client = (client_address(self.client), client_port as u16);
        (client, (server_address(self.client, n % ADDRESSES), server_port as u16))
    }
}

fn client_address(client: u32) -> u32 {
    Ipv4Addr::new(10, 1, client as u8, 1).into()
}

fn server_address(server: u32, n: u32) -> u32 {
    Ipv4Addr::new(10, 2, server as u8, 1 + n as u8).into()
}

fn client_mac(client: u32) -> Mac {
    [2, 0, 0, 0, 1, client as u8]
}

fn server_mac(server: u32) -> Mac {
    [2, 0, 0, 0, 2, server as u8]
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sends {
    Questions,
    Answers,
    Nothing,
}

/// One queue of a port, which takes whatever leaves there.
struct Queue {
    flows: Flows,
    /// Number of flows; `None` without end.
    share: Option<u32>,
    sends: Sends,
    /// Flows that have had their first packet.
    begun: u32,
    rng: Rng,
    shared: Arc<Shared>,
    frame: Vec<u8>,
    /// Time that making the last burst took.
    usual: Duration,
}

/// Making a burst takes longer only if the operating system interrupted it.
const INTERRUPTED: Duration = Duration::from_micros(20);

impl Queue {
    fn new(flows: Flows, share: Option<u32>, sends: Sends, shared: &Arc<Shared>) -> Self {
        let seed = u64::from(flows.client * 64 + flows.queue + 1);
        let packet = testkit::packet::udp("10.1.0.1:1", "10.2.0.1:1");
        Self {
            flows,
            share,
            sends,
            begun: 0,
            rng: Rng::with_seed(seed),
            shared: Arc::clone(shared),
            frame: packet.payload(&[0; 22]).build(),
            usual: Duration::ZERO,
        }
    }

    /// The flow of the next packet: each once, then by chance.
    fn next(&mut self, runs: bool) -> Option<u32> {
        let begins = match self.share {
            Some(share) => self.begun < share && self.sends == Sends::Questions,
            None => runs,
        };
        if begins {
            self.begun += 1;
            return Some(self.begun - 1);
        }
        let share = self.share.filter(|_| runs)?;
        Some(self.rng.u32(..share))
    }

    fn write(&mut self, n: u32) {
        let (client, server) = self.flows.ends(n);
        let (from, to) = match self.sends {
            Sends::Answers => (server, client),
            _ => (client, server),
        };
        let sender = match self.sends {
            Sends::Answers => server_mac(self.flows.client),
            _ => client_mac(self.flows.client),
        };
        self.frame[6..12].copy_from_slice(&sender);
        let header = &mut self.frame[14..38];
        header[10..12].fill(0);
        header[12..16].copy_from_slice(&from.0.to_be_bytes());
        header[16..20].copy_from_slice(&to.0.to_be_bytes());
        header[20..22].copy_from_slice(&from.1.to_be_bytes());
        header[22..24].copy_from_slice(&to.1.to_be_bytes());
        let words = header[..20].chunks_exact(2);
        let sum: u32 = words.map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        let folded = (folded & 0xffff) + (folded >> 16);
        header[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    }
}

impl Port for Queue {
    fn receive(
        &mut self,
        buffers: &mut Buffers<'_>,
        most: usize,
        frames: &mut Vec<Frame>,
    ) -> Result<(), PortGone> {
        let phase = self.shared.phase.load(Ordering::Relaxed);
        if self.sends == Sends::Nothing || phase == WAIT {
            return Ok(());
        }
        let first = frames.len();
        buffers.free.take_many(most, frames);
        let started = Instant::now();
        let mut made = first;
        while made < frames.len()
            && let Some(n) = self.next(phase == RUN)
        {
            self.write(n);
            buffers.memory.fill(&mut frames[made], &self.frame);
            made += 1;
        }
        let mut spent = started.elapsed();
        if spent < INTERRUPTED {
            self.usual = spent;
        } else {
            spent = self.usual;
        }
        let making = &self.shared.making[self.flows.queue as usize];
        making.0.fetch_add(spent.as_nanos() as u64, Ordering::Relaxed);
        frames.drain(made..).for_each(|frame| buffers.free.put(frame));
        Ok(())
    }

    fn send(&mut self, buffers: &mut Buffers<'_>, frames: &mut Vec<Frame>) -> Result<(), PortGone> {
        buffers.free.put_all(frames);
        Ok(())
    }

    fn close(self: Box<Self>, _buffers: &mut Buffers<'_>) {}
}

/// So many rules in front of each server, of which the traffic meets as many as it can.
fn snapshot(rules: u32) -> Snapshot {
    let mut sets = AddressMapBuilder::default();
    let permit = |n: u32| {
        let set = PeerSetId(n / SERVER_PORTS);
        if n.is_multiple_of(SERVER_PORTS) {
            let net = format!("10.{}.0.0/16", 1 + set.0).parse().expect("a network");
            sets.add(set, [Block { net, except: Vec::new() }]);
        }
        Rule::new(Action::Permit, "permitted")
            .source(End::Set(set))
            .protocol(17)
            .destination_ports(PortRange::one((1 + n % SERVER_PORTS) as u16))
    };
    let mut list: Vec<Rule> = (0..rules).map(permit).collect();
    list.push(Rule::new(Action::Deny, "the rest"));
    let map = Arc::new(sets.build());
    let table = AclBinding::Table(Arc::new(Table::compile(list.into(), &map)));
    let pod = |name: String, mac: Mac, addresses: Vec<u32>, to_pod: &AclBinding| {
        Some(PortState {
            addresses: addresses.into_iter().map(acl::Address::from_v4_bits).collect(),
            to_pod: to_pod.clone(),
            from_pod: AclBinding::Open,
            mac: Some(mac),
            mtu: 1500,
            ..PortState::new(&*name, PortKind::Pod)
        })
    };
    let client = |n| {
        let addresses = vec![client_address(n)];
        pod(format!("default/client{n}"), client_mac(n), addresses, &AclBinding::Open)
    };
    let server = |n| {
        let addresses = (0..ADDRESSES).map(|address| server_address(n, address)).collect();
        pod(format!("default/server{n}"), server_mac(n), addresses, &table)
    };
    let ports = (0..PAIRS).map(client).chain((0..PAIRS).map(server)).collect();
    Snapshot::new(Parts { generation: 1, ports, addresses: map, ..Parts::default() })
}
