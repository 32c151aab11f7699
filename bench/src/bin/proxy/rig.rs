//! The processes of a run: server, agent and target, of this project or of another one with the
//! original's flags.

use std::net::TcpListener as StdListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bench::process;
use konnectivity::client::Tunnel;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use testkit::{Process, TempDir};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::{PATIENCE, Result};

/// The processes.
pub(crate) struct Rig {
    folder: TempDir,
    server: Process,
    agent: Process,
    _target: Process,
    port: String,
    turn: AtomicU64,
}

impl Rig {
    /// Starts this program's roles.
    pub(crate) fn new() -> Result<Self> {
        let own = std::env::current_exe()?;
        let role = |name: &str| {
            let mut command = Command::new(&own);
            // Not the audit's lines in the log.
            command.args([name, "--audit-log=/dev/null"]);
            command
        };
        Self::start(role("konnectivity-server"), role("konnectivity-agent"))
    }

    /// Starts other programs with the original's flags.
    pub(crate) fn of(server: &Path, agent: &Path) -> Result<Self> {
        Self::start(Command::new(server), Command::new(agent))
    }

    fn start(mut server: Command, mut agent: Command) -> Result<Self> {
        let folder = TempDir::new("bench-konnectivity");
        certificates(folder.path())?;
        let path = |name: &str| folder.path().join(name).display().to_string();
        let [agents, health, admin, agent_health, agent_admin] = free_ports()?;
        server.args(["--mode=grpc", "--server-port=0", "--health-bind-address=127.0.0.1"]).args([
            format!("--uds-name={}", path("server.sock")),
            format!("--cluster-cert={}", path("server.crt")),
            format!("--cluster-key={}", path("server.key")),
            format!("--cluster-ca-cert={}", path("ca.crt")),
            format!("--agent-port={agents}"),
            format!("--health-port={health}"),
            format!("--admin-port={admin}"),
        ]);
        agent.args(["--proxy-server-host=127.0.0.1", "--sync-interval=100ms"]).args([
            format!("--proxy-server-port={agents}"),
            format!("--agent-cert={}", path("agent.crt")),
            format!("--agent-key={}", path("agent.key")),
            format!("--ca-cert={}", path("ca.crt")),
            format!("--health-server-port={agent_health}"),
            format!("--admin-server-port={agent_admin}"),
        ]);
        let server = Process::spawn(one_thread(&mut server));
        let agent = Process::spawn(one_thread(&mut agent));
        wait_until_ready(health)?;
        let target = Process::spawn(Command::new(std::env::current_exe()?).arg("target"));
        let port = target.wait_for_line("listening at", PATIENCE);
        let port = port.rsplit(' ').next().unwrap_or_default().to_owned();
        Ok(Self { folder, server, agent, _target: target, port, turn: AtomicU64::new(0) })
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("server.sock")
    }

    /// The target, at the next of its addresses.
    pub(crate) fn target(&self) -> String {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        format!("127.0.{}.{}:{}", turn / 250 % 250, turn % 250 + 1, self.port)
    }

    /// Resident memory of server and agent, in bytes.
    pub(crate) fn memory(&self) -> Result<[f64; 2]> {
        let resident = |id: u32| process::memory(id, "VmRSS").map(|bytes| bytes as f64);
        Ok([resident(self.server.id())?, resident(self.agent.id())?])
    }

    /// Processor time of server and agent, in seconds.
    pub(crate) fn time(&self) -> Result<[f64; 2]> {
        let time = |id: u32| process::processor_time(id).map(|time| time.as_secs_f64());
        Ok([time(self.server.id())?, time(self.agent.id())?])
    }

    /// Dials the target and sends it these bytes.
    pub(crate) async fn open(&self, first: &[u8]) -> Result<(Tunnel, i64)> {
        let mut tunnel = Tunnel::unix(&self.socket()).await?;
        let connection = tunnel.dial(&self.target()).await?;
        if !first.is_empty() {
            tunnel.send_data(connection, first);
        }
        Ok((tunnel, connection))
    }
}

/// Each role has one thread: of a Go program's goroutines, and of tokio's tasks.
fn one_thread(command: &mut Command) -> &mut Command {
    command.env("GOMAXPROCS", "1").env("TOKIO_WORKER_THREADS", "1")
}

/// Ports that are free now; the original's server takes none above 49151.
fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let mut candidates = (30_000 + (std::process::id() % 10_000) as u16..49_151)
        .filter(|port| StdListener::bind(("0.0.0.0", *port)).is_ok());
    let mut ports = [0; N];
    for port in &mut ports {
        *port = candidates.next().ok_or("no free port")?;
    }
    Ok(ports)
}

/// Waits for `/readyz` at this port of loopback.
fn wait_until_ready(port: u16) -> Result<()> {
    use std::io::{Read, Write};
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        let mut answer = String::new();
        if let Ok(mut stream) = std::net::TcpStream::connect(("127.0.0.1", port)) {
            stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n")?;
            stream.read_to_string(&mut answer)?;
        }
        if answer.split(' ').nth(1) == Some("200") {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Err("the server is not ready".into())
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

/// The first byte says what a connection is for: `e` echo, `s` send without end.
pub(crate) async fn target() -> Result<()> {
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
