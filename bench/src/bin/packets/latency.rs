//! The round trip that a switch adds: AF_XDP in both pods, idle and at half load.
//!
//! ```text
//! cargo run --release -p bench --bin packets -- latency     (as root; Debian: dpdk-dev ethtool)
//! ```
//!
//! One thread on core 1 holds both pods' ends. It sends a frame from one pod, sends it back as soon
//! as it comes out at the other, and takes the time until it is back. Between them is a veth pair
//! alone, or a switch on core 0 and two pairs. Under load, other frames go the same way, at half the
//! rate that the slowest switch can do. Switches take turns; a figure is the median of rounds.

use std::error::Error;
use std::time::{Duration, Instant};

use bench::forwarder::{Forwarder, SERVER_PORT};
use bench::rig::{End, Rig, joined, mac, needs_root, pin};
use bench::{Samples, end_progress, print_table, show_progress};
use dataplane::wire::Mac;
use testkit::Namespace;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const ROUNDS: usize = 5;
/// Duration of a round, of one switch at one load.
const MEASURED: Duration = Duration::from_secs(2);
const WARM_UP: usize = 500;
/// Time after which a frame counts as lost.
const LOST: Duration = Duration::from_millis(20);
/// Pause between two round trips, so that each meets an idle switch.
const PAUSE: Duration = Duration::from_micros(100);

pub(crate) fn main(args: &[String]) -> Result<()> {
    if args.len() > 1 {
        return Err("latency takes no arguments".into());
    }
    needs_root()?;
    pin(1)?;
    let rig = Rig::new(1500, 0);
    let forwarders = Forwarder::usual(None);
    let through = |forwarder: Forwarder, measure: &mut dyn FnMut(&mut Trip) -> Result<()>| {
        let running = forwarder.start(&rig, 0)?;
        let mut trip = Trip::new(&rig.a, &rig.b, mac(&rig.mac_a)?, mac(&rig.mac_b)?)?;
        measure(&mut trip)?;
        drop((trip, running));
        rig.clear();
        Ok::<(), Box<dyn Error>>(())
    };
    let mut least = f64::INFINITY;
    for forwarder in &forwarders {
        show_progress(&format!("what {} can do", forwarder.name()));
        through(*forwarder, &mut |trip| {
            least = least.min(trip.capacity()?);
            Ok(())
        })?;
    }
    let loads = [("idle".to_owned(), 0.0), (format!("{:.2} Mpps", least / 2e6), least / 2.0)];
    let mut alone = Trips::default();
    let mut all = vec![[Trips::default(), Trips::default()]; forwarders.len()];
    for round in 1..=ROUNDS {
        show_progress(&format!("round {round} of {ROUNDS}"));
        alone.add(direct()?);
        for (forwarder, figures) in forwarders.iter().zip(&mut all) {
            through(*forwarder, &mut |trip| {
                for ((_, load), figures) in loads.iter().zip(figures.iter_mut()) {
                    figures.add(trip.measure(*load)?);
                }
                Ok(())
            })?;
        }
    }
    end_progress();
    let mut rows = vec![alone.row("a veth pair alone", &loads[0].0)];
    for (n, (load, _)) in loads.iter().enumerate() {
        let of_load = forwarders.iter().zip(&all);
        rows.extend(of_load.map(|(forwarder, figures)| figures[n].row(forwarder.name(), load)));
        for (peer, figures) in forwarders.iter().zip(&all).skip(1) {
            let name = format!("{} : {}", forwarders[0].name(), peer.name());
            rows.push(all[0][n].ratios_to(&figures[n], &name, load));
        }
    }
    println!();
    print_table(&["between the pods", "load", "p50 (µs)", "p99", "p99.9", "trips", "lost"], &rows);
    Ok(())
}

/// Shares of the round trips that take less than a figure.
const SHARES: [f64; 3] = [0.5, 0.99, 0.999];

/// The round trips of all rounds.
#[derive(Clone, Default)]
struct Trips {
    /// By share, each round's figure in order of the rounds, in microseconds.
    rounds: [Vec<f64>; SHARES.len()],
    trips: usize,
    lost: usize,
}

impl Trips {
    fn add(&mut self, (trips, lost): (Vec<f64>, usize)) {
        self.trips += trips.len();
        self.lost += lost;
        let samples: Samples = trips.into_iter().collect();
        let shares = self.rounds.iter_mut().zip(SHARES);
        shares.for_each(|(rounds, share)| rounds.push(samples.quantile(share)));
    }

    fn row(&self, name: &str, load: &str) -> Vec<String> {
        let figures = self.rounds.iter().map(|it| it.iter().copied().collect::<Samples>());
        let figures = figures.map(|it| it.to_string());
        let counts = [self.trips, self.lost].map(|n| n.to_string());
        [name, load].map(str::to_owned).into_iter().chain(figures).chain(counts).collect()
    }

    /// This one's figures of those of a peer in the same rounds.
    fn ratios_to(&self, peer: &Self, name: &str, load: &str) -> Vec<String> {
        let ratio = |(own, peer): (&Vec<f64>, &Vec<f64>)| {
            own.iter().zip(peer).map(|(own, peer)| own / peer).collect::<Samples>().to_string()
        };
        let ratios = self.rounds.iter().zip(&peer.rounds).map(ratio);
        let counts = [String::new(), String::new()];
        [name, load].map(str::to_owned).into_iter().chain(ratios).chain(counts).collect()
    }
}

fn direct() -> Result<(Vec<f64>, usize)> {
    let [a, b] = joined(1500);
    let macs = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
    Trip::new(&a, &b, macs[0], macs[1])?.measure(0.0)
}

/// Both ends of the way, and the frames that travel it.
struct Trip {
    a: End,
    b: End,
    /// From `a`, and back from `b`; loads differ from probes by their last byte.
    there: Vec<u8>,
    back: Vec<u8>,
}

const PROBE: u8 = 1;
const LOAD: u8 = 2;

impl Trip {
    fn new(a: &Namespace, b: &Namespace, mac_a: Mac, mac_b: Mac) -> Result<Self> {
        let open = |namespace: &Namespace| {
            namespace.enter(|| End::open("eth0", 8192, 1024).map_err(|error| error.to_string()))
        };
        let (a, b) = (open(a)?, open(b)?);
        let (from, to) = ("10.88.0.2:4000".to_owned(), format!("10.88.0.3:{SERVER_PORT}"));
        let packet = |from: &str, to: &str, macs: (Mac, Mac)| {
            let packet = testkit::packet::udp(from, to).from_mac(macs.0).to_mac(macs.1);
            packet.payload(&[PROBE; 18]).build()
        };
        let there = packet(&from, &to, (mac_a, mac_b));
        let back = packet(&to, &from, (mac_b, mac_a));
        Ok(Self { a, b, there, back })
    }

    /// Microseconds of each round trip, and how many frames did not come back.
    fn measure(&mut self, load: f64) -> Result<(Vec<f64>, usize)> {
        let (mut trips, mut lost) = (Vec::new(), 0);
        let mut load = Load::new(load);
        let started = Instant::now();
        while started.elapsed() < MEASURED || trips.len() + lost < 2 * WARM_UP {
            match self.once(&mut load)? {
                Some(time) => trips.push(time.as_secs_f64() * 1e6),
                None => lost += 1,
            }
            let rest = Instant::now();
            while rest.elapsed() < PAUSE {
                load.send(&mut self.a, &self.there)?;
                self.receive_b()?;
            }
        }
        trips.drain(..WARM_UP.min(trips.len()));
        Ok((trips, lost))
    }

    fn once(&mut self, load: &mut Load) -> Result<Option<Duration>> {
        let sent = Instant::now();
        send(&mut self.a, &self.there, PROBE)?;
        let mut frames = Vec::new();
        while sent.elapsed() < LOST {
            load.send(&mut self.a, &self.there)?;
            if self.receive_b()? {
                send(&mut self.b, &self.back, PROBE)?;
            }
            self.a.receive(&mut frames)?;
            let came = frames.iter().any(|frame| self.a.memory.bytes(frame).ends_with(&[PROBE]));
            frames.drain(..).for_each(|frame| self.a.free.put(frame));
            if came {
                return Ok(Some(sent.elapsed()));
            }
        }
        Ok(None)
    }

    /// Takes what arrived at `b`; whether a probe is among it.
    fn receive_b(&mut self) -> Result<bool> {
        let mut frames = Vec::new();
        self.b.receive(&mut frames)?;
        let probe = frames.iter().any(|frame| self.b.memory.bytes(frame).ends_with(&[PROBE]));
        frames.drain(..).for_each(|frame| self.b.free.put(frame));
        Ok(probe)
    }

    /// Frames a second that come out at `b` when as many are sent as go in.
    fn capacity(&mut self) -> Result<f64> {
        let mut load = Load::new(f64::INFINITY);
        let (mut count, mut frames) = (0, Vec::new());
        let started = Instant::now();
        while started.elapsed() < MEASURED / 2 {
            load.send(&mut self.a, &self.there)?;
            self.b.receive(&mut frames)?;
            count += frames.len();
            frames.drain(..).for_each(|frame| self.b.free.put(frame));
        }
        Ok(count as f64 / started.elapsed().as_secs_f64())
    }
}

fn send(end: &mut End, bytes: &[u8], kind: u8) -> Result<()> {
    let Some(frame) = filled(end, bytes, kind) else { return Ok(()) };
    let mut frames = vec![frame];
    end.send(&mut frames)?;
    frames.into_iter().for_each(|frame| end.free.put(frame));
    Ok(())
}

fn filled(end: &mut End, bytes: &[u8], kind: u8) -> Option<dataplane::Frame> {
    let mut frame = end.free.take()?;
    end.memory.fill(&mut frame, bytes);
    *end.memory.bytes_mut(&mut frame).last_mut()? = kind;
    Some(frame)
}

/// Frames that go along at a steady rate.
struct Load {
    rate: f64,
    started: Instant,
    sent: u64,
    batch: Vec<dataplane::Frame>,
}

impl Load {
    fn new(rate: f64) -> Self {
        Self { rate, started: Instant::now(), sent: 0, batch: Vec::new() }
    }

    /// Sends what is due, at most a burst of it.
    fn send(&mut self, end: &mut End, bytes: &[u8]) -> Result<()> {
        if self.rate == 0.0 {
            return Ok(());
        }
        let due = (self.started.elapsed().as_secs_f64() * self.rate) as u64;
        while self.sent < due
            && self.batch.len() < 32
            && let Some(frame) = filled(end, bytes, LOAD)
        {
            self.batch.push(frame);
            self.sent += 1;
        }
        end.send(&mut self.batch)
    }
}
