//! Growth of rates with workers, sessions and rules.
//!
//! ```text
//! cargo run --release -p bench --bin packets -- growth [--out bench]
//! ```
//!
//! Whole workers, each pinned to a core, with their loop, free frames and counters; 64-byte UDP
//! over memory, sessions in a file in memory, as `podgate run` keeps them. Four clients ask a server each, so that the
//! bursts of their ports fill a vector. Every client's port has as many queues as there are workers, each with packets
//! without end, so that all workers share ports, the session table and the policy's table, and nothing else.
//!
//! A figure is what all workers do in a second, and (per core) what one does in a second that the
//! operating system really gave it: on a machine with other work the second is the one to compare,
//! and what the last column does. The making of packets is left out of both.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use acl::Action;
use bench::process::threads;
use bench::{Group, SessionFile, draw, in_turns, print_table};
use clap::Parser;
use dataplane::port::Port;
use dataplane::switch::{Config, RxMode};
use dataplane::{Frame, Memory, Outcome, PortId, Switch, Verdict};
use fastrand::Rng;

use super::traffic::{Kind, Queue, Rules, Traffic};

#[derive(Parser)]
struct Args {
    /// Workers compared: 1, 2, 4, … up to this [default: the cores there are]
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// Rounds in which the cases take turns
    #[arg(long, default_value_t = 5, value_name = "N")]
    rounds: usize,
    /// Sessions that packets are of
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 100_000, 1_000_000])]
    sessions: Vec<u32>,
    /// Milliseconds that are measured in a round
    #[arg(long, default_value_t = 500, value_name = "MS")]
    time: u64,
    /// Write growth.svg into this folder too
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

/// Clients, and as many servers.
const PAIRS: u32 = 4;
/// Rules in front of new sessions, and of others.
const RULES: [u16; 3] = [100, 1_000, 10_000];
const FEW_RULES: u16 = 1_000;
/// Room for what is opened in one round.
const NEW_SESSIONS: u32 = 8_000_000;
/// For each worker: the ring between two workers holds half of them.
const FRAMES: u32 = 8192;
const PATIENCE: Duration = Duration::from_secs(60);

/// A measurement.
#[derive(Clone, Copy)]
enum Case {
    /// Packets of so many sessions that are there; each server's port has one worker, if they are handed over.
    Established { sessions: u32, handed: bool },
    /// Packets that each open a session under so many rules.
    Opening(u16),
}

impl Case {
    fn name(self) -> String {
        match self {
            Self::Established { sessions, handed: false } => format!("{sessions} sessions"),
            Self::Established { sessions, .. } => {
                format!("{sessions} sessions, handed to another worker")
            }
            Self::Opening(rules) => format!("new sessions, {rules} rules"),
        }
    }
}

pub(crate) fn main(args: &[String]) -> Result<(), Box<dyn Error>> {
    let args = Args::parse_from(args);
    let most = args.workers.unwrap_or(thread::available_parallelism()?.get()).max(1);
    let workers: Vec<usize> =
        std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|n| *n <= most).collect();
    let established = [false, true].into_iter().flat_map(|handed| {
        args.sessions.iter().map(move |sessions| Case::Established { sessions: *sessions, handed })
    });
    let cases: Vec<Case> = established.chain(RULES.map(Case::Opening)).collect();
    let of_workers =
        |case: &Case| workers.iter().map(|n| format!("{}, {n} workers", case.name())).collect();
    let names: Vec<String> = cases.iter().flat_map::<Vec<String>, _>(of_workers).collect();
    let time = Duration::from_millis(args.time.max(1));
    let all = in_turns(args.rounds.max(1), &names, |n| {
        measure(cases[n / workers.len()], workers[n % workers.len()], time)
    })?;
    let most = workers[workers.len() - 1];
    let mut head = vec!["Mpps".to_owned()];
    head.extend(workers.iter().flat_map(|n| [format!("{n} workers"), "per core".to_owned()]));
    head.push(format!("{most} to 1, each with a core"));
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    let figures = cases.iter().zip(all.chunks(workers.len()));
    let row = |(case, of_case): (&Case, &[[bench::Samples; 2]])| {
        let mut row = vec![case.name()];
        for [rate, per_core] in of_case {
            row.extend([rate.to_string(), format!("{:.2}", per_core.median())]);
        }
        let share = of_case[workers.len() - 1][1].median() / of_case[0][1].median();
        row.push(format!("{:.2}", share * most as f64));
        row
    };
    print_table(&head, &figures.clone().map(row).collect::<Vec<_>>());
    if let Some(folder) = &args.out {
        let group = |(case, of_case): (&Case, &[[bench::Samples; 2]])| -> Group {
            let bars = workers.iter().zip(of_case);
            let bars = bars.map(|(n, [rate, _])| (format!("{n} workers (Mpps)"), rate.median()));
            (case.name(), bars.collect())
        };
        fs::create_dir_all(folder)?;
        fs::write(folder.join("growth.svg"), draw(&figures.map(group).collect::<Vec<_>>(), true))?;
    }
    Ok(())
}

/// Million packets a second, by the clock and by the time that workers had a core.
fn measure(case: Case, workers: usize, time: Duration) -> Result<[f64; 2], Box<dyn Error>> {
    let rig = Rig::start(case, workers)?;
    if let Case::Established { sessions, .. } = case {
        let deadline = Instant::now() + PATIENCE;
        while rig.switch.sessions().used() < rig.opened {
            if Instant::now() > deadline {
                let used = rig.switch.sessions().used();
                return Err(format!("{used} of {sessions} sessions are open").into());
            }
            thread::sleep(Duration::from_millis(1));
        }
        rig.shared.phase.store(RUN, Ordering::Relaxed);
        thread::sleep(time / 5);
    }
    let (began, packets) = (Instant::now(), rig.packets());
    let (spent, making) = (rig.worker_time()?, rig.making_time());
    let opens = matches!(case, Case::Opening(_));
    while began.elapsed() < time && !(opens && rig.switch.sessions().used() > NEW_SESSIONS / 10 * 8)
    {
        thread::sleep(Duration::from_millis(2));
    }
    let elapsed = began.elapsed();
    let (packets, spent) = (rig.packets() - packets, rig.worker_time()? - spent);
    let making = rig.making_time() - making;
    rig.check()?;
    let millions = packets as f64 / 1e6;
    let each = elapsed.saturating_sub(making / workers as u32);
    Ok([millions / each.as_secs_f64(), millions / spent.saturating_sub(making).as_secs_f64()])
}

/// Phases of the queues: wait; send each flow's first packet; send without end.
const WAIT: u8 = 0;
const BEGIN: u8 = 1;
const RUN: u8 = 2;

/// A running switch.
struct Rig {
    switch: Switch,
    shared: Arc<Shared>,
    /// Sessions that the flows open before they run.
    opened: u32,
    _file: SessionFile,
}

/// State shared by all queues.
struct Shared {
    traffic: Traffic,
    /// [`WAIT`], [`BEGIN`] or [`RUN`].
    phase: AtomicU8,
    making: Vec<Making>,
}

/// Nanoseconds that the queues of one number, all of one worker, have spent on the making of packets.
/// In cache lines of its own: workers must not meet in what they measure with.
#[derive(Default)]
#[repr(align(128))]
struct Making(AtomicU64);

impl Rig {
    fn start(case: Case, workers: usize) -> Result<Self, Box<dyn Error>> {
        let (rules, capacity) = match case {
            Case::Established { sessions, .. } => (FEW_RULES, 2 * sessions),
            Case::Opening(rules) => (rules, NEW_SESSIONS),
        };
        let traffic = Traffic::new(Kind::Udp, Rules::Ports(rules), 2 * PAIRS);
        let config = Config {
            workers,
            cores: (0..workers).collect(),
            rx_mode: RxMode::Polling,
            sessions: capacity,
            ports: traffic.ports(),
            ..Config::default()
        };
        let (memory, frames) = Memory::heap(2048, FRAMES * workers as u32);
        let (file, sessions) = SessionFile::sessions(capacity, config.ports, config.timeouts)?;
        let switch = Switch::start_over(&config, sessions, &memory, frames, |_| None)?;
        let snapshot = Arc::new(traffic.snapshot(Action::Permit, false));
        let making = (0..workers).map(|_| Making::default()).collect();
        let shared = Arc::new(Shared { traffic, phase: AtomicU8::new(WAIT), making });
        let share = match case {
            Case::Established { sessions, .. } => Some(sessions / PAIRS / workers as u32),
            Case::Opening(_) => None,
        };
        let queue = |port: u32, n: usize, sends: bool| -> Box<dyn Port> {
            let generate = generator(Arc::clone(&shared), (port, n as u32), share);
            Box::new(Queue { burst: if sends { usize::MAX } else { 0 }, generate })
        };
        for port in 0..2 * PAIRS {
            let (id, sends) = (PortId(port as u16), port < PAIRS);
            match case {
                Case::Established { handed: true, .. } if !sends => {
                    switch.add_port(id, queue(port, 0, sends));
                }
                _ => switch.add_queues(id, (0..workers).map(|n| queue(port, n, sends)).collect()),
            }
        }
        // Added after the ports, so its presence implies theirs.
        switch.publish(&snapshot);
        if !switch.wait_in_force(1, PATIENCE) {
            return Err("the workers do not answer".into());
        }
        shared.phase.store(BEGIN, Ordering::Relaxed);
        let opened = share.map_or(0, |share| share * PAIRS * workers as u32);
        Ok(Self { switch, shared, opened, _file: file })
    }

    /// Time that the workers have made packets, together.
    fn making_time(&self) -> Duration {
        let making = self.shared.making.iter().map(|it| it.0.load(Ordering::Relaxed));
        Duration::from_nanos(making.sum())
    }

    /// Packets that have left.
    fn packets(&self) -> u64 {
        let parts = (0..2 * PAIRS).flat_map(|port| self.switch.parts(PortId(port as u16)));
        parts.map(|part| part.counters.sent.value()).sum()
    }

    /// Nothing may have been refused. (What finds the ring in front of a busy worker full has not
    /// left, and counts for nothing.)
    fn check(&self) -> Result<(), String> {
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
    fn worker_time(&self) -> std::io::Result<Duration> {
        let threads = threads(std::process::id())?.into_iter();
        let workers = threads.filter(|it| it.name.starts_with("worker-"));
        Ok(Duration::from_nanos(workers.map(|it| it.nanoseconds).sum()))
    }
}

/// Making a burst takes longer only if the operating system interrupted it.
const INTERRUPTED: Duration = Duration::from_micros(20);

/// Makes packets of a client and a worker: one of each flow, of which there are `share` or without end, then by chance.
fn generator(
    shared: Arc<Shared>,
    (client, worker): (u32, u32),
    share: Option<u32>,
) -> impl FnMut(&Memory, &mut [Frame]) -> usize + Send {
    let mut rng = Rng::with_seed(u64::from(client * 64 + worker + 1));
    // Flows that have had their first packet, and the time that the last burst took.
    let (mut begun, mut usual) = (0, Duration::ZERO);
    move |memory, frames| {
        let phase = shared.phase.load(Ordering::Relaxed);
        let (mut made, started) = (0, Instant::now());
        while made < frames.len() && phase != WAIT {
            let n = match share {
                Some(share) if begun >= share && phase == RUN => rng.u32(..share),
                Some(share) if begun >= share => break,
                _ => {
                    begun += 1;
                    begun - 1
                }
            };
            let n = (n * shared.making.len() as u32 + worker) * PAIRS + client;
            shared.traffic.write(memory, &mut frames[made], n, false);
            made += 1;
        }
        let spent = started.elapsed();
        usual = if spent < INTERRUPTED { spent } else { usual };
        let making = &shared.making[worker as usize];
        making.0.fetch_add(usual.as_nanos() as u64, Ordering::Relaxed);
        made
    }
}
