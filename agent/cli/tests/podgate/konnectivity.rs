//! `podgate konnectivity-server` and `konnectivity-agent` as processes: started as a manifest
//! starts them, killed, stopped and started again under load.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use konnectivity::client::Tunnel;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use testkit::{Process, TempDir};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const PATIENCE: Duration = Duration::from_secs(60);

struct World {
    folder: TempDir,
    ports: [u16; 5],
}

/// A port of loopback that no other test gets, below those that the kernel gives to clients.
fn unused_port() -> u16 {
    static TRIED: AtomicU16 = AtomicU16::new(0);
    loop {
        let first = 20_000 + (std::process::id() % 8_000) as u16;
        let port = first + TRIED.fetch_add(1, Ordering::Relaxed);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

impl World {
    fn new(label: &str) -> Self {
        let folder = TempDir::new(label);
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let write = |name: &str, text: String| {
            std::fs::write(folder.path().join(name), text).unwrap();
        };
        write("ca.crt", params.self_signed(&key).unwrap().pem());
        let issuer = Issuer::new(params, key);
        for name in ["server", "agent"] {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
            write(&format!("{name}.crt"), params.signed_by(&key, &issuer).unwrap().pem());
            write(&format!("{name}.key"), key.serialize_pem());
        }
        Self { folder, ports: std::array::from_fn(|_| unused_port()) }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_string_lossy().into_owned()
    }

    fn socket(&self) -> std::path::PathBuf {
        self.folder.path().join("server.sock")
    }

    /// Starts a server that loses an agent after twice `probe` without a sign of it: on a busy machine a short one
    /// loses agents that live.
    fn server(&self, probe: &str) -> Process {
        let [agents, health, admin, ..] = self.ports;
        let mut command = Command::new(env!("CARGO_BIN_EXE_podgate"));
        command.arg("konnectivity-server").args([
            "--logtostderr=true",
            "--mode=grpc",
            "--server-port=0",
            "--delete-existing-uds-file",
            "--proxy-strategies=default",
            "--server-id=one",
            "--keepalive-time=1h",
            "--audit-format=json",
        ]);
        command.arg(format!("--probe-time={probe}"));
        command.arg(format!("--uds-name={}", self.socket().display()));
        for flag in ["cluster-cert=server.crt", "cluster-key=server.key", "cluster-ca-cert=ca.crt"]
        {
            let (flag, file) = flag.split_once('=').unwrap();
            command.arg(format!("--{flag}={}", self.path(file)));
        }
        command.arg(format!("--agent-port={agents}"));
        command.arg(format!("--health-port={health}"));
        command.arg(format!("--admin-port={admin}"));
        let process = Process::spawn(&mut command);
        process.wait_for_line("server one: API server at", PATIENCE);
        process
    }

    fn agent(&self) -> Process {
        let [agents, _, _, health, admin] = self.ports;
        let mut command = Command::new(env!("CARGO_BIN_EXE_podgate"));
        command.arg("konnectivity-agent").args([
            "--logtostderr=true",
            "-v=2",
            "--proxy-server-host=127.0.0.1",
            "--agent-identifiers=host=node1&default-route=true",
            "--sync-interval=50ms",
            "--sync-interval-cap=200ms",
            "--agent-id=node1",
            "--probe-time=1h",
        ]);
        for flag in ["agent-cert=agent.crt", "agent-key=agent.key", "ca-cert=ca.crt"] {
            let (flag, file) = flag.split_once('=').unwrap();
            command.arg(format!("--{flag}={}", self.path(file)));
        }
        command.arg(format!("--proxy-server-port={agents}"));
        command.arg(format!("--health-server-port={health}"));
        command.arg(format!("--admin-server-port={admin}"));
        Process::spawn(&mut command)
    }

    async fn page(&self, port: usize, path: &str) -> String {
        let address: SocketAddr = ([127, 0, 0, 1], self.ports[port]).into();
        let mut answer = String::new();
        if let Ok(mut stream) = tokio::net::TcpStream::connect(address).await {
            let request = format!("GET {path} HTTP/1.1\r\n\r\n");
            let _refused = stream.write_all(request.as_bytes()).await;
            let _cut = stream.read_to_string(&mut answer).await;
        }
        answer
    }

    async fn until_ready(&self, ready: bool) {
        let end = Instant::now() + PATIENCE;
        let wanted = if ready { "HTTP/1.1 200 " } else { "HTTP/1.1 500 " };
        while !self.page(1, "/readyz").await.starts_with(wanted) {
            assert!(Instant::now() < end, "waited too long for readiness {ready}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn echo_once(&self, target: &str) -> Result<(), String> {
        let mut tunnel = Tunnel::unix(&self.socket()).await.map_err(|error| error.to_string())?;
        let connection = tunnel.dial(target).await?;
        tunnel.send_data(connection, b"hello");
        tunnel.receive_data(5).await.map(|_| ())
    }
}

async fn echo() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                let _over = tokio::io::copy(&mut read, &mut write).await;
            });
        }
    });
    address.to_string()
}

fn signal(process: &Process, signal: Signal) {
    let pid = Pid::from_raw(process.id().cast_signed()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// Connections one after the other, several at a time, until told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicUsize>,
    tasks: tokio::task::JoinSet<()>,
}

impl Load {
    fn start(world: &Arc<World>, target: &str) -> Self {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let (world, target) = (Arc::clone(world), target.to_owned());
            let (stop, done) = (Arc::clone(&stop), Arc::clone(&done));
            tasks.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    // Whatever happens to the roles, every client gets an answer.
                    let once = tokio::time::timeout(PATIENCE, world.echo_once(&target)).await;
                    match once.expect("an answer, of whatever kind") {
                        Ok(()) => {
                            done.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                    }
                }
            });
        }
        Self { stop, done, tasks }
    }

    /// Waits until so many more have succeeded.
    async fn more(&self, count: usize) {
        let (wanted, end) = (self.done.load(Ordering::Relaxed) + count, Instant::now() + PATIENCE);
        while self.done.load(Ordering::Relaxed) < wanted {
            assert!(Instant::now() < end, "the load does not go on");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn stop(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(done) = self.tasks.join_next().await {
            done.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_stopped_and_started_again_under_load() {
    let world = Arc::new(World::new("konnectivity-load"));
    let target = echo().await;
    let mut server = world.server("300ms");
    let mut agent = world.agent();
    world.until_ready(true).await;
    let load = Load::start(&world, &target);
    load.more(50).await;

    // The agent is killed, and comes back.
    agent.kill();
    world.until_ready(false).await;
    let refused = world.echo_once(&target).await.unwrap_err();
    assert!(refused.contains("No agent available"), "{refused}");
    let mut agent = world.agent();
    world.until_ready(true).await;
    load.more(50).await;

    // It stands still: found by its silence, and given up.
    signal(&agent, Signal::STOP);
    world.until_ready(false).await;
    let page = world.page(1, "/metrics").await;
    assert!(!page.contains("_server_agents_lost_total 0\n"), "{page}");
    signal(&agent, Signal::CONT);
    world.until_ready(true).await;
    load.more(50).await;

    // The server is killed, leaves its socket behind, and comes back.
    server.kill();
    assert!(world.socket().exists() && UnixStream::connect(world.socket()).is_err());
    let server = world.server("1h");
    world.until_ready(true).await;
    load.more(50).await;
    load.stop().await;

    // Nothing is left of it all.
    let end = Instant::now() + PATIENCE;
    loop {
        let (server, agent) = (world.page(1, "/metrics").await, world.page(3, "/metrics").await);
        if server.contains("_server_established_connections 0\n")
            && server.contains("_server_pending_backend_dials 0\n")
            && agent.contains("_agent_open_endpoint_connections 0\n")
        {
            break;
        }
        assert!(Instant::now() < end, "{server}\n{agent}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    // An agent that drains serves what it has.
    let mut tunnel = Tunnel::unix(&world.socket()).await.unwrap();
    let connection = tunnel.dial(&target).await.unwrap();
    signal(&agent, Signal::TERM);
    agent.wait_for_line("draining, 1 connection open", PATIENCE);
    server.wait_for_line("agent node1 (CN=rcgen self signed cert", PATIENCE);
    tunnel.send_data(connection, b"hello");
    assert_eq!(tunnel.receive_data(5).await.unwrap(), b"hello");
    // It ends after its last connection.
    drop(tunnel);
    assert!(agent.wait(PATIENCE).success());
    let mut server = server;
    signal(&server, Signal::TERM);
    assert!(server.wait(PATIENCE).success());
    assert!(!world.socket().exists());
    let told = "\"bytes_to_target\":5,\"bytes_from_target\":5";
    assert!(server.output().iter().any(|line| line.contains(told)));
}

/// Whether this process may have so many files open.
fn may_open(files: u64) -> bool {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    limit.maximum.is_none_or(|most| most >= files) && setrlimit(Resource::Nofile, raised).is_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_connections() {
    const CONNECTIONS: usize = 10_000;
    testkit::requires!(testkit::has_program("redis-server"), "redis-server is not installed");
    testkit::requires!(may_open(11_000), "needs 11,000 open files");
    let world = World::new("konnectivity-scale");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let redis = Process::spawn(Command::new("redis-server").args([
        "--port",
        &port.to_string(),
        "--bind",
        "127.0.0.1",
        "--maxclients",
        "10500",
        "--save",
        "",
        "--dir",
        &world.path(""),
    ]));
    redis.wait_for_line("Ready to accept connections", PATIENCE);
    let target = format!("127.0.0.1:{port}");
    let (_server, _agent) = (world.server("1h"), world.agent());
    world.until_ready(true).await;
    let mut open = Vec::with_capacity(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        let mut tunnel = Tunnel::unix(&world.socket()).await.unwrap();
        let connection = tunnel.dial(&target).await.unwrap();
        open.push((tunnel, connection));
    }
    let established = "_server_established_connections 10000\n";
    assert!(world.page(1, "/metrics").await.contains(established));
    for (tunnel, connection) in &open {
        tunnel.send_data(*connection, format!("PING {connection}\r\n").as_bytes());
    }
    for (tunnel, connection) in &mut open {
        let text = connection.to_string();
        let wanted = format!("${}\r\n{text}\r\n", text.len());
        assert_eq!(tunnel.receive_data(wanted.len()).await.unwrap(), wanted.as_bytes());
    }
    drop(open);
    let end = Instant::now() + PATIENCE;
    while !world.page(3, "/metrics").await.contains("_agent_open_endpoint_connections 0\n") {
        assert!(Instant::now() < end, "connections are left behind");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A field of `/proc/PID/status`.
fn process_status(process: &Process, field: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    value.unwrap_or_else(|| panic!("no {field}")).trim().to_owned()
}

#[test]
fn both_roles_give_up_all_privileges() {
    let world = World::new("privileges");
    let (server, agent) = (world.server("1h"), world.agent());
    for role in [&server, &agent] {
        role.wait_for_line("privileges: 0 capabilities, no-new-privileges on", PATIENCE);
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert_eq!(process_status(role, set), "0000000000000000", "{set}");
        }
        if rustix::process::geteuid().is_root() {
            assert_eq!(process_status(role, "CapBnd"), "0000000000000000");
        }
        assert_eq!(process_status(role, "NoNewPrivs"), "1");
    }
}
