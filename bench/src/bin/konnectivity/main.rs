//! The API server network proxy: dials, throughput, memory, a stalled reader, latency.
//!
//! ```text
//! cargo run --release -p bench --bin konnectivity
//! ```
//!
//! Server and agent are processes of their own with one thread each, and so is the target; the
//! clients share what is left of the machine. The frontend is gRPC over a unix socket, the
//! agent's connection TLS. `direct` is the same client without a proxy, in the same run, and so is
//! another server and agent with the original's flags.

mod rig;

use std::error::Error;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bench::{Samples, print_table};
use konnectivity::packet::Packet;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use rig::{Programs, Rig};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const HELP: &str = "\
The API server network proxy: dials a second, throughput of 1 and 100 connections, memory for
10,000 idle ones, a stalled reader beside 100 busy ones, added latency.

Usage: konnectivity [--rounds N] [--seconds N] [--connections N]
                    [--peer-server PROGRAM --peer-agent PROGRAM]

  --rounds N             rounds of each measurement [3]
  --seconds N            length of a round [3]
  --connections N        idle connections [10000]
  --peer-server PROGRAM  a server to measure beside this one, with the original's flags
  --peer-agent PROGRAM   the agent that goes with it

Example:
  cargo run --release -p bench --bin konnectivity -- --rounds 5
";

const PATIENCE: Duration = Duration::from_secs(60);
/// Time in which a dial and its close are answered, or counted as unanswered.
const ANSWER: Duration = Duration::from_secs(5);
/// Clients that dial at a time.
const DIALLERS: usize = 16;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        ["--help" | "-h"] => {
            print!("{HELP}");
            Ok(())
        }
        ["server", folder] => role(rig::serve(folder.to_owned())),
        ["agent", folder, server] => role(rig::dial(folder.to_owned(), server.parse()?)),
        ["target"] => role(rig::target()),
        _ => {
            let (mut rounds, mut seconds, mut connections) = (3, 3, 10_000);
            let (mut server, mut agent) = (None, None);
            let mut rest = words.iter();
            while let Some(word) = rest.next() {
                let value = rest.next().ok_or(HELP)?;
                match *word {
                    "--rounds" => rounds = value.parse().map_err(|_| HELP)?,
                    "--seconds" => seconds = value.parse().map_err(|_| HELP)?,
                    "--connections" => connections = value.parse().map_err(|_| HELP)?,
                    "--peer-server" => server = Some(value.into()),
                    "--peer-agent" => agent = Some(value.into()),
                    _ => return Err(HELP.into()),
                }
            }
            let peer = match (server, agent) {
                (Some(server), Some(agent)) => Some(Programs { server, agent }),
                (None, None) => None,
                _ => return Err(HELP.into()),
            };
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            let length = Duration::from_secs(seconds);
            runtime.block_on(measure(rounds, length, connections, peer.as_ref()))
        }
    }
}

/// Runs one of the processes, on one thread.
fn role(future: impl Future<Output = Result<()>>) -> Result<()> {
    files_limit()?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(future)
}

/// Every connection is a file.
fn files_limit() -> Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?)
}

/// The proxies to measure, and the table so far.
struct Run {
    rigs: Vec<Arc<Rig>>,
    rounds: usize,
    length: Duration,
    rows: Vec<Vec<String>>,
}

impl Run {
    /// Each proxy in turn, and at last none; with its place in a row.
    fn ways(&self) -> Vec<(usize, Arc<Rig>, bool)> {
        let rigs = self.rigs.iter().map(|rig| (Arc::clone(rig), true));
        let direct = (Arc::clone(&self.rigs[0]), false);
        let ways = rigs.chain([direct]).enumerate();
        ways.map(|(at, (rig, proxied))| (at, rig, proxied)).collect()
    }

    /// Samples for each proxy, and for none.
    fn samples(&self) -> Vec<Samples> {
        vec![Samples::new(); self.rigs.len() + 1]
    }

    /// A row of figures; those that are missing are dashes.
    fn row(&mut self, name: impl Into<String>, cells: &[impl Display]) {
        let mut row = vec![name.into()];
        row.extend(cells.iter().map(ToString::to_string));
        row.resize(self.rigs.len() + 2, "–".to_owned());
        self.rows.push(row);
    }
}

async fn measure(
    rounds: usize,
    length: Duration,
    connections: usize,
    peer: Option<&Programs>,
) -> Result<()> {
    files_limit()?;
    let mut rigs = vec![Arc::new(Rig::new()?)];
    let mut head = vec!["measure", "podgate"];
    if let Some(peer) = peer {
        rigs.push(Arc::new(Rig::of(peer)?));
        head.push("peer");
    }
    head.push("direct");
    let mut run = Run { rigs, rounds, length, rows: Vec::new() };
    dials(&mut run).await?;
    latency(&mut run).await?;
    memory(&mut run, connections).await?;
    throughput(&mut run, 1).await?;
    // At last: a peer may not survive that its readers go away in the middle of their downloads.
    throughput(&mut run, 100).await?;
    stalled(&mut run).await?;
    println!();
    print_table(&head, &run.rows);
    Ok(())
}

async fn dials(run: &mut Run) -> Result<()> {
    let mut rates = run.samples();
    let mut costs = [vec![Samples::new(); run.rigs.len()], vec![Samples::new(); run.rigs.len()]];
    let unanswered: Vec<Arc<AtomicU64>> = run.ways().iter().map(|_| Arc::default()).collect();
    for round in 1..=run.rounds {
        for (way, rig, proxied) in run.ways() {
            eprintln!("dials, round {round} of {}", run.rounds);
            let (before, begin, length) = (rig.time()?, Instant::now(), run.length);
            let count = Arc::new(AtomicU64::new(0));
            let mut tasks = JoinSet::new();
            for _ in 0..DIALLERS {
                let (rig, count) = (Arc::clone(&rig), Arc::clone(&count));
                let unanswered = Arc::clone(&unanswered[way]);
                tasks.spawn(async move {
                    while begin.elapsed() < length {
                        match tokio::time::timeout(ANSWER, dial(&rig, proxied)).await {
                            Ok(done) => drop((done?, count.fetch_add(1, Ordering::Relaxed))),
                            Err(_) => drop(unanswered.fetch_add(1, Ordering::Relaxed)),
                        }
                    }
                    Result::Ok(())
                });
            }
            while let Some(done) = tasks.join_next().await {
                done??;
            }
            let count = count.load(Ordering::Relaxed) as f64;
            rates[way].add(count / length.as_secs_f64());
            if proxied {
                for (cost, (after, before)) in costs.iter_mut().zip(rig.time()?.iter().zip(before))
                {
                    cost[way].add((after - before) / count * 1e6);
                }
            }
        }
    }
    run.row("dials and closes a second", &rates);
    let unanswered: Vec<u64> = unanswered.iter().map(|it| it.load(Ordering::Relaxed)).collect();
    run.row("dials and closes without an answer within 5 s", &unanswered);
    run.row("processor time a dial, server (µs)", &costs[0]);
    run.row("processor time a dial, agent (µs)", &costs[1]);
    Ok(())
}

/// Opens a connection to the target and closes it, to the answer.
async fn dial(rig: &Rig, proxied: bool) -> Result<()> {
    if proxied {
        let (mut tunnel, connection) = rig.open(b"").await?;
        tunnel.send(&Packet::CloseRequest { connection, half: false });
        tunnel.receive().await.ok_or("no answer to the close")?;
    } else {
        // An answer, so that no more are on their way than are accepted.
        let mut stream = TcpStream::connect(rig.target()).await?;
        stream.write_all(b"ex").await?;
        stream.read_exact(&mut [0]).await?;
    }
    Ok(())
}

/// Bytes that connections received in a round.
struct Received {
    /// Bytes a second, all connections together.
    rate: f64,
    /// The most bytes of one connection over the least of one.
    spread: f64,
    /// Most resident memory of the server during the round, in bytes.
    memory: f64,
}

/// Lets `count` connections receive at once for `length`.
async fn received(
    rig: &Arc<Rig>,
    proxied: bool,
    count: usize,
    length: Duration,
) -> Result<Received> {
    let bytes: Arc<[AtomicU64]> = (0..count).map(|_| AtomicU64::new(0)).collect();
    let mut tasks: JoinSet<Result<()>> = JoinSet::new();
    for at in 0..count {
        let (rig, bytes) = (Arc::clone(rig), Arc::clone(&bytes));
        tasks.spawn(async move {
            if proxied {
                let (mut tunnel, _) = rig.open(b"s").await?;
                loop {
                    match tunnel.receive().await {
                        Some(Packet::Data { bytes: some, .. }) => {
                            bytes[at].fetch_add(some.len() as u64, Ordering::Relaxed);
                        }
                        other => return Err(format!("{other:?} instead of data").into()),
                    }
                }
            } else {
                let mut stream = TcpStream::connect(rig.target()).await?;
                stream.write_all(b"s").await?;
                let mut buffer = vec![0; 64 * 1024];
                loop {
                    match stream.read(&mut buffer).await? {
                        0 => return Err("the target ended the connection".into()),
                        some => drop(bytes[at].fetch_add(some as u64, Ordering::Relaxed)),
                    }
                }
            }
        });
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let count = || bytes.iter().map(|it| it.load(Ordering::Relaxed)).collect::<Vec<_>>();
    let (before, begin) = (count(), Instant::now());
    let mut memory = 0_f64;
    while begin.elapsed() < length {
        tokio::time::sleep(Duration::from_millis(100)).await;
        memory = memory.max(rig.memory()?[0]);
    }
    let shares: Vec<_> =
        count().iter().zip(before).map(|(after, before)| (after - before) as f64).collect();
    let rate = shares.iter().sum::<f64>() / begin.elapsed().as_secs_f64();
    let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
    let spread = shares.iter().copied().fold(0.0, f64::max) / least;
    // A task ends by itself with an error alone. One whose proxy gives it nothing any more would wait
    // for ever.
    while let Some(done) = tasks.try_join_next() {
        done??;
    }
    tasks.shutdown().await;
    Ok(Received { rate, spread, memory })
}

async fn throughput(run: &mut Run, count: usize) -> Result<()> {
    let proxies = || vec![Samples::new(); run.rigs.len()];
    let (mut rates, mut spreads) = (run.samples(), run.samples());
    let (mut costs, mut memory) = ([proxies(), proxies()], [proxies(), proxies()]);
    for round in 1..=run.rounds {
        for (way, rig, proxied) in run.ways() {
            eprintln!("throughput of {count}, round {round} of {}", run.rounds);
            let (before, begin) = (rig.time()?, Instant::now());
            let Received { rate, spread, memory: during } =
                received(&rig, proxied, count, run.length).await?;
            spreads[way].add(spread);
            rates[way].add(rate / 1e6);
            if proxied {
                let gigabytes = rate * begin.elapsed().as_secs_f64() / 1e9;
                for (cost, (after, before)) in costs.iter_mut().zip(rig.time()?.iter().zip(before))
                {
                    cost[way].add((after - before) / gigabytes);
                }
                // The connections' ends reach the server.
                tokio::time::sleep(Duration::from_secs(1)).await;
                memory[0][way].add(during / 1e6);
                memory[1][way].add(rig.memory()?[0] / 1e6);
            }
        }
    }
    run.row(format!("throughput of {count} (MB/s)"), &rates);
    run.row(format!("most over least bytes of {count}"), &spreads);
    for (memory, when) in memory.iter().zip(["during", "a second after"]) {
        run.row(format!("server's memory {when} the throughput of {count} (MB)"), memory);
    }
    for (cost, name) in costs.iter().zip(["server", "agent"]) {
        run.row(format!("processor time a gigabyte of {count}, {name} (s)"), cost);
    }
    Ok(())
}

async fn stalled(run: &mut Run) -> Result<()> {
    let mut rates = [const { Samples::new() }; 2];
    // The original holds up all connections of an agent for one reader.
    let rig = Arc::clone(&run.rigs[0]);
    for round in 1..=run.rounds {
        eprintln!("a stalled reader, round {round} of {}", run.rounds);
        rates[0].add(received(&rig, true, 100, run.length).await?.rate / 1e6);
        // It asks for data and never takes any.
        let stalled = rig.open(b"s").await?;
        rates[1].add(received(&rig, true, 100, run.length).await?.rate / 1e6);
        drop(stalled);
    }
    run.row("100 busy connections alone (MB/s)", &rates[..1]);
    run.row("the same beside a stalled reader (MB/s)", &rates[1..]);
    Ok(())
}

async fn latency(run: &mut Run) -> Result<()> {
    const TURNS: usize = 5_000;
    let mut samples = [run.samples(), run.samples()];
    for round in 1..=run.rounds {
        eprintln!("latency, round {round} of {}", run.rounds);
        for (way, rig, proxied) in run.ways() {
            let (mut tunnel, connection) = rig.open(b"e").await?;
            let mut stream = TcpStream::connect(rig.target()).await?;
            stream.set_nodelay(true)?;
            stream.write_all(b"e").await?;
            let message = [0x5a; 64];
            let mut times = Vec::with_capacity(TURNS);
            for _ in 0..TURNS {
                let begin = Instant::now();
                if proxied {
                    tunnel.send_data(connection, &message);
                    tunnel.receive_data(message.len()).await?;
                } else {
                    let mut answer = [0; 64];
                    stream.write_all(&message).await?;
                    stream.read_exact(&mut answer).await?;
                }
                times.push(begin.elapsed());
            }
            times.sort();
            for (sample, at) in samples.iter_mut().zip([TURNS / 2, TURNS * 99 / 100]) {
                sample[way].add(times[at].as_secs_f64() * 1e6);
            }
        }
    }
    for (samples, name) in samples.iter().zip(["p50", "p99"]) {
        run.row(format!("64 bytes there and back, {name} (µs)"), samples);
    }
    Ok(())
}

async fn memory(run: &mut Run, count: usize) -> Result<()> {
    // What the measurements before left behind is there in both.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut each = [Vec::new(), Vec::new()];
    for rig in &run.rigs {
        eprintln!("memory of {count} idle connections");
        let before = rig.memory()?;
        let mut open = Vec::with_capacity(count);
        for _ in 0..count {
            let (mut tunnel, connection) = rig.open(b"e").await?;
            tunnel.send_data(connection, b"once");
            tunnel.receive_data(4).await?;
            open.push(tunnel);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let after = rig.memory()?;
        for (each, (after, before)) in each.iter_mut().zip(after.iter().zip(before)) {
            each.push(format!("{:.0}", (after - before) / count as f64));
        }
    }
    for (each, name) in each.iter().zip(["server", "agent"]) {
        run.row(format!("memory for each of {count} idle connections, {name} (bytes)"), each);
    }
    Ok(())
}
