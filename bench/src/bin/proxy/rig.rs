//! The processes of a run: server, agent and target, of this project or of another one with the
//! original's flags.

use std::net::{TcpListener as StdListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use bench::process;
use konnectivity::client::Tunnel;
use rcgen::generate_simple_self_signed;
use testkit::{Process, TempDir, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::{Done, PATIENCE, Result};

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
    pub(crate) fn new() -> Done<Self> {
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
    pub(crate) fn of(server: &Path, agent: &Path) -> Done<Self> {
        Self::start(Command::new(server), Command::new(agent))
    }

    fn start(mut server: Command, mut agent: Command) -> Done<Self> {
        let folder = TempDir::new("bench-konnectivity");
        let path = |name: &str| folder.path().join(name).display().to_string();
        // Server and agent know each other by the one certificate that both have.
        let own = generate_simple_self_signed(vec!["127.0.0.1".to_owned()])?;
        let (certificate, key) = (path("crt"), path("key"));
        std::fs::write(&certificate, own.cert.pem())?;
        std::fs::write(&key, own.signing_key.serialize_pem())?;
        let [agents, health, admin, agent_health, agent_admin] = free_ports()?;
        server.args(["--mode=grpc", "--server-port=0", "--health-bind-address=127.0.0.1"]).args([
            format!("--uds-name={}", path("server.sock")),
            format!("--cluster-cert={certificate}"),
            format!("--cluster-key={key}"),
            format!("--cluster-ca-cert={certificate}"),
            format!("--agent-port={agents}"),
            format!("--health-port={health}"),
            format!("--admin-port={admin}"),
        ]);
        agent.args(["--proxy-server-host=127.0.0.1", "--sync-interval=100ms"]).args([
            format!("--proxy-server-port={agents}"),
            format!("--agent-cert={certificate}"),
            format!("--agent-key={key}"),
            format!("--ca-cert={certificate}"),
            format!("--health-server-port={agent_health}"),
            format!("--admin-server-port={agent_admin}"),
        ]);
        let server = Process::spawn(one_thread(&mut server));
        let agent = Process::spawn(one_thread(&mut agent));
        eventually("a server that is ready", || is_ready(health).ok()?.then_some(()));
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

    /// Connects with the target without a proxy, and sends it these bytes.
    pub(crate) async fn open_directly(&self, first: &[u8]) -> Result<tokio::net::TcpStream> {
        let mut stream = tokio::net::TcpStream::connect(self.target()).await?;
        stream.set_nodelay(true)?;
        stream.write_all(first).await?;
        Ok(stream)
    }
}

/// Each role has one thread: of a Go program's goroutines, and of tokio's tasks.
fn one_thread(command: &mut Command) -> &mut Command {
    command.env("GOMAXPROCS", "1").env("TOKIO_WORKER_THREADS", "1")
}

/// Ports that are free now; the original's server takes none above 49151.
fn free_ports<const N: usize>() -> Done<[u16; N]> {
    let mut candidates = (30_000 + (std::process::id() % 10_000) as u16..49_151)
        .filter(|port| StdListener::bind(("0.0.0.0", *port)).is_ok());
    let mut ports = [0; N];
    for port in &mut ports {
        *port = candidates.next().ok_or("no free port")?;
    }
    Ok(ports)
}

/// Whether `/readyz` at this port of loopback says so.
fn is_ready(port: u16) -> std::io::Result<bool> {
    use std::io::{Read, Write};
    let (mut stream, mut answer) = (TcpStream::connect(("127.0.0.1", port))?, String::new());
    stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n")?;
    stream.read_to_string(&mut answer)?;
    Ok(answer.split(' ').nth(1) == Some("200"))
}

/// The first byte says what a connection is for: `e` echo, `s` send without end.
pub(crate) async fn target() -> Done {
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
