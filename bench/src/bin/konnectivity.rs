//! The API server network proxy: dials, throughput, memory, a stalled reader, latency.
//!
//! ```text
//! cargo run --release -p bench --bin konnectivity
//! ```
//!
//! Server and agent are processes of their own with one thread each, and so is the target; the
//! clients share what is left of the machine. The frontend is gRPC over a unix socket, the
//! agent's connection TLS. `direct` is the same client without a proxy, in the same run.

use std::error::Error;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bench::{Samples, print_table};
use konnectivity::agent::{self, Agent, ServerCount};
use konnectivity::audit::Audit;
use konnectivity::client::Tunnel;
use konnectivity::packet::Packet;
use konnectivity::server::{self, Frontend, Mode, Server, Strategy};
use konnectivity::{TlsFiles, TlsPolicy};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use testkit::{Process, TempDir};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const HELP: &str = "\
The API server network proxy: dials a second, throughput of 1 and 100 connections, memory for
10,000 idle ones, a stalled reader beside 100 busy ones, added latency.

Usage: konnectivity [--rounds N] [--seconds N] [--connections N]

  --rounds N       rounds of each measurement [3]
  --seconds N      length of a round [3]
  --connections N  idle connections [10000]

Example:
  cargo run --release -p bench --bin konnectivity -- --rounds 5
";

const PATIENCE: Duration = Duration::from_secs(60);
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
        ["server", folder] => role(serve(folder.to_owned())),
        ["agent", folder, server] => role(dial(folder.to_owned(), server.parse()?)),
        ["target"] => role(target()),
        _ => {
            let (mut rounds, mut seconds, mut connections) = (3, 3, 10_000);
            let mut rest = words.iter();
            while let Some(word) = rest.next() {
                let value = rest.next().ok_or(HELP)?.parse().map_err(|_| HELP)?;
                match *word {
                    "--rounds" => rounds = value,
                    "--seconds" => seconds = value,
                    "--connections" => connections = value,
                    _ => return Err(HELP.into()),
                }
            }
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            let length = Duration::from_secs(seconds as u64);
            runtime.block_on(measure(rounds, length, connections))
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

fn certificates(folder: &Path) -> Result<()> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    std::fs::write(folder.join("ca.crt"), params.self_signed(&key)?.pem())?;
    let issuer = Issuer::new(params, key);
    for name in ["server", "agent"] {
        let key = KeyPair::generate()?;
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()])?;
        std::fs::write(folder.join(format!("{name}.crt")), params.signed_by(&key, &issuer)?.pem())?;
        std::fs::write(folder.join(format!("{name}.key")), key.serialize_pem())?;
    }
    Ok(())
}

fn files(folder: &Path, name: &str) -> TlsFiles {
    TlsFiles {
        cert: Some(folder.join(format!("{name}.crt"))),
        key: Some(folder.join(format!("{name}.key"))),
        ca: Some(folder.join("ca.crt")),
    }
}

async fn serve(folder: String) -> Result<()> {
    let folder = Path::new(&folder);
    let options = server::Options {
        mode: Mode::Grpc,
        frontend: Frontend::Unix { path: folder.join("server.sock"), delete_existing: true },
        agents: ([127, 0, 0, 1], 0).into(),
        agent_files: files(folder, "server"),
        tls: TlsPolicy::default(),
        tokens: None,
        server_id: "bench".to_owned(),
        server_count: 1,
        leases: None,
        strategies: vec![Strategy::Default],
        keepalive: Duration::from_secs(3600),
        limits: server::Limits::default(),
        rules: None,
        audit: Audit::default(),
    };
    let server = Server::start(options).await?;
    println!("agents at {}", server.agent_address());
    while server.agents() == 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("ready");
    std::future::pending().await
}

async fn dial(folder: String, server: SocketAddr) -> Result<()> {
    let folder = Path::new(&folder);
    let _agent = Agent::start(agent::Options {
        server_host: server.ip().to_string(),
        server_port: server.port(),
        files: files(folder, "agent"),
        alpn: Vec::new(),
        token: None,
        agent_id: "bench".to_owned(),
        identifiers: String::new(),
        sync_interval: Duration::from_millis(100),
        sync_interval_cap: Duration::from_secs(1),
        probe_interval: Duration::from_secs(1),
        sync_forever: false,
        server_count: ServerCount::Reported,
        keepalive: Duration::from_secs(3600),
        limits: agent::Limits::default(),
        rules: None,
        audit: Audit::default(),
    })?;
    std::future::pending().await
}

/// The first byte says what a connection is for: `e` echo, `s` send without end.
async fn target() -> Result<()> {
    // At every loopback address: one alone runs out of ports in seconds of dialling.
    let listener = TcpListener::bind("0.0.0.0:0").await?;
    println!("listening at {}", listener.local_addr()?.port());
    loop {
        let (mut stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(async move {
            let mut first = [0];
            let read = stream.read_exact(&mut first).await;
            let (mut reader, mut writer) = stream.split();
            // Whoever has enough closes.
            let _over = match (read, first) {
                (Ok(_), [b'e']) => tokio::io::copy(&mut reader, &mut writer).await.map(|_| ()),
                (Ok(_), [b's']) => loop {
                    if let Err(error) = writer.write_all(&[0x5a; 64 * 1024]).await {
                        break Err(error);
                    }
                },
                _ => Ok(()),
            };
        });
    }
}

/// The processes.
struct Rig {
    folder: TempDir,
    server: Process,
    agent: Process,
    _target: Process,
    port: String,
    turn: AtomicU64,
}

impl Rig {
    fn new() -> Result<Self> {
        let folder = TempDir::new("bench-konnectivity");
        certificates(folder.path())?;
        let own = std::env::current_exe()?;
        let path = folder.path().to_string_lossy().into_owned();
        let start = |args: &[&str]| Process::spawn(Command::new(&own).args(args));
        let last = |line: String| line.rsplit(' ').next().unwrap_or_default().to_owned();
        let target_process = start(&["target"]);
        let port = last(target_process.wait_for_line("listening at", PATIENCE));
        let server = start(&["server", &path]);
        let agents = last(server.wait_for_line("agents at", PATIENCE));
        let agent = start(&["agent", &path, &agents]);
        server.wait_for_line("ready", PATIENCE);
        Ok(Self { folder, server, agent, _target: target_process, port, turn: AtomicU64::new(0) })
    }

    fn socket(&self) -> std::path::PathBuf {
        self.folder.path().join("server.sock")
    }

    /// The target, at the next of its addresses.
    fn target(&self) -> String {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        format!("127.0.{}.{}:{}", turn / 250 % 250, turn % 250 + 1, self.port)
    }

    /// Resident memory of server and agent, in bytes.
    fn memory(&self) -> Result<[f64; 2]> {
        Ok([resident(self.server.id())?, resident(self.agent.id())?])
    }

    /// Processor time of server and agent, in seconds.
    fn time(&self) -> Result<[f64; 2]> {
        Ok([processor(self.server.id())?, processor(self.agent.id())?])
    }

    async fn open(&self, first: &[u8]) -> Result<(Tunnel, i64)> {
        let mut tunnel = Tunnel::unix(&self.socket()).await?;
        let connection = tunnel.dial(&self.target()).await?;
        if !first.is_empty() {
            tunnel.send_data(connection, first);
        }
        Ok((tunnel, connection))
    }
}

fn resident(process: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? * 1024.0)
}

fn processor(process: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    let fields = stat.rsplit(')').next().ok_or("no stat")?;
    let ticks: f64 =
        fields.split_whitespace().skip(11).take(2).filter_map(|it| it.parse::<f64>().ok()).sum();
    // Linux shows hundredths to user space, whatever its own tick is.
    Ok(ticks / 100.0)
}

async fn measure(rounds: usize, length: Duration, connections: usize) -> Result<()> {
    files_limit()?;
    let rig = Arc::new(Rig::new()?);
    let mut rows = Vec::new();
    dials(&rig, rounds, length, &mut rows).await?;
    throughput(&rig, rounds, length, &mut rows).await?;
    stalled(&rig, rounds, length, &mut rows).await?;
    latency(&rig, rounds, &mut rows).await?;
    memory(&rig, connections, &mut rows).await?;
    println!();
    print_table(&["measure", "through the proxy", "direct"], &rows);
    Ok(())
}

fn row(name: &str, proxy: impl ToString, direct: impl ToString) -> Vec<String> {
    vec![name.to_owned(), proxy.to_string(), direct.to_string()]
}

async fn dials(
    rig: &Arc<Rig>,
    rounds: usize,
    length: Duration,
    rows: &mut Vec<Vec<String>>,
) -> Result<()> {
    let mut rates = [Samples::default(), Samples::default()];
    let mut costs = [Samples::default(), Samples::default()];
    for round in 1..=rounds {
        for (way, samples) in rates.iter_mut().enumerate() {
            eprintln!("dials, round {round} of {rounds}");
            let before = rig.time()?;
            let count = Arc::new(AtomicU64::new(0));
            let begin = Instant::now();
            let mut tasks = JoinSet::new();
            for _ in 0..DIALLERS {
                let (rig, count) = (Arc::clone(rig), Arc::clone(&count));
                tasks.spawn(async move {
                    while begin.elapsed() < length {
                        if way == 0 {
                            let (mut tunnel, connection) = rig.open(b"").await?;
                            tunnel.send(&Packet::CloseRequest { connection, half: false });
                            tunnel.receive().await.ok_or("no answer to the close")?;
                        } else {
                            // An answer, so that no more are on their way than are accepted.
                            let mut stream = TcpStream::connect(rig.target()).await?;
                            stream.write_all(b"ex").await?;
                            stream.read_exact(&mut [0]).await?;
                        }
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                    Result::Ok(())
                });
            }
            while let Some(done) = tasks.join_next().await {
                done??;
            }
            let count = count.load(Ordering::Relaxed) as f64;
            samples.add(count / begin.elapsed().as_secs_f64());
            if way == 0 {
                for (cost, (after, before)) in costs.iter_mut().zip(rig.time()?.iter().zip(before))
                {
                    cost.add((after - before) / count * 1e6);
                }
            }
        }
    }
    rows.push(row("dials and closes a second", &rates[0], &rates[1]));
    rows.push(row("processor time a dial, server (µs)", &costs[0], "–"));
    rows.push(row("processor time a dial, agent (µs)", &costs[1], "–"));
    Ok(())
}

/// What connections received in a round.
struct Received {
    /// Bytes a second, all connections together.
    rate: f64,
    /// The most bytes of one connection over the least of one.
    spread: f64,
    /// Resident memory of the server at the end of the round, in bytes.
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
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for at in 0..count {
        let (rig, bytes, stop) = (Arc::clone(rig), Arc::clone(&bytes), Arc::clone(&stop));
        tasks.spawn(async move {
            if proxied {
                let (mut tunnel, _) = rig.open(b"s").await?;
                while !stop.load(Ordering::Relaxed) {
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
                while !stop.load(Ordering::Relaxed) {
                    let some = stream.read(&mut buffer).await?;
                    bytes[at].fetch_add(some as u64, Ordering::Relaxed);
                }
            }
            Result::Ok(())
        });
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let count = || bytes.iter().map(|it| it.load(Ordering::Relaxed)).collect::<Vec<_>>();
    let (before, begin) = (count(), Instant::now());
    tokio::time::sleep(length).await;
    let shares: Vec<_> =
        count().iter().zip(before).map(|(after, before)| (after - before) as f64).collect();
    let rate = shares.iter().sum::<f64>() / begin.elapsed().as_secs_f64();
    let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
    let spread = shares.iter().copied().fold(0.0, f64::max) / least;
    let [memory, _] = rig.memory()?;
    stop.store(true, Ordering::Relaxed);
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(Received { rate, spread, memory })
}

async fn throughput(
    rig: &Arc<Rig>,
    rounds: usize,
    length: Duration,
    rows: &mut Vec<Vec<String>>,
) -> Result<()> {
    for count in [1, 100] {
        let mut rates = [Samples::default(), Samples::default()];
        let mut costs = [Samples::default(), Samples::default()];
        let mut spreads = [Samples::default(), Samples::default()];
        let mut memory = [Samples::default(), Samples::default()];
        for round in 1..=rounds {
            for (way, samples) in rates.iter_mut().enumerate() {
                eprintln!("throughput of {count}, round {round} of {rounds}");
                let (before, begin) = (rig.time()?, Instant::now());
                let Received { rate, spread, memory: during } =
                    received(rig, way == 0, count, length).await?;
                spreads[way].add(spread);
                samples.add(rate / 1e6);
                if way == 0 {
                    let gigabytes = rate * begin.elapsed().as_secs_f64() / 1e9;
                    for (cost, (after, before)) in
                        costs.iter_mut().zip(rig.time()?.iter().zip(before))
                    {
                        cost.add((after - before) / gigabytes);
                    }
                    // The connections' ends reach the server.
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    memory[0].add(during / 1e6);
                    memory[1].add(rig.memory()?[0] / 1e6);
                }
            }
        }
        let name = format!("throughput of {count} (MB/s)");
        rows.push(row(&name, &rates[0], &rates[1]));
        let name = format!("most over least bytes of {count}");
        rows.push(row(&name, &spreads[0], &spreads[1]));
        for (memory, when) in memory.iter().zip(["during", "a second after"]) {
            let name = format!("server's memory {when} the throughput of {count} (MB)");
            rows.push(row(&name, memory, "–"));
        }
        for (cost, name) in costs.iter().zip(["server", "agent"]) {
            let name = format!("processor time a gigabyte of {count}, {name} (s)");
            rows.push(row(&name, cost, "–"));
        }
    }
    Ok(())
}

async fn stalled(
    rig: &Arc<Rig>,
    rounds: usize,
    length: Duration,
    rows: &mut Vec<Vec<String>>,
) -> Result<()> {
    let mut rates = [Samples::default(), Samples::default()];
    for round in 1..=rounds {
        eprintln!("a stalled reader, round {round} of {rounds}");
        rates[0].add(received(rig, true, 100, length).await?.rate / 1e6);
        // It asks for data and never takes any.
        let stalled = rig.open(b"s").await?;
        rates[1].add(received(rig, true, 100, length).await?.rate / 1e6);
        drop(stalled);
    }
    rows.push(row("100 busy connections alone (MB/s)", &rates[0], "–"));
    rows.push(row("the same beside a stalled reader (MB/s)", &rates[1], "–"));
    Ok(())
}

async fn latency(rig: &Arc<Rig>, rounds: usize, rows: &mut Vec<Vec<String>>) -> Result<()> {
    const TURNS: usize = 5_000;
    let mut samples = [const { [const { Samples::new() }; 2] }; 2];
    for round in 1..=rounds {
        eprintln!("latency, round {round} of {rounds}");
        let (mut tunnel, connection) = rig.open(b"e").await?;
        let mut stream = TcpStream::connect(rig.target()).await?;
        stream.set_nodelay(true)?;
        stream.write_all(b"e").await?;
        let message = [0x5a; 64];
        for (way, samples) in samples.iter_mut().enumerate() {
            let mut times = Vec::with_capacity(TURNS);
            for _ in 0..TURNS {
                let begin = Instant::now();
                if way == 0 {
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
                sample.add(times[at].as_secs_f64() * 1e6);
            }
        }
    }
    let [proxied, direct] = &samples;
    for (at, name) in ["p50", "p99"].into_iter().enumerate() {
        let name = format!("64 bytes there and back, {name} (µs)");
        rows.push(row(&name, &proxied[at], &direct[at]));
    }
    Ok(())
}

async fn memory(rig: &Arc<Rig>, count: usize, rows: &mut Vec<Vec<String>>) -> Result<()> {
    eprintln!("memory of {count} idle connections");
    // What the measurements before left behind is there in both.
    tokio::time::sleep(Duration::from_secs(1)).await;
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
    let each = |at: usize| (after[at] - before[at]) / count as f64;
    for (at, name) in ["server", "agent"].into_iter().enumerate() {
        let name = format!("memory for each of {count} idle connections, {name} (bytes)");
        rows.push(row(&name, format!("{:.0}", each(at)), "–"));
    }
    Ok(())
}
