//! Certificates, targets, servers and agents for tests. Everything on loopback, on ports the
//! kernel chooses.

pub(crate) mod api;
pub(crate) mod plain;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use konnectivity::agent::{self, Agent, ServerCount};
use konnectivity::audit::{Audit, Format};
use konnectivity::server::{self, Frontend, Mode, Server, Strategy};
use konnectivity::{TlsFiles, TlsPolicy};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use testkit::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Longer than anything takes that works.
pub(crate) const PATIENCE: Duration = testkit::PATIENCE;

/// A folder with two authorities and certificates that they signed.
pub(crate) struct World {
    pub(crate) folder: TempDir,
}

impl World {
    pub(crate) fn new(label: &str) -> Self {
        let folder = TempDir::new(label);
        for authority in ["ca", "other-ca"] {
            let mut params = CertificateParams::default();
            params.distinguished_name.push(DnType::CommonName, authority);
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let key = KeyPair::generate().unwrap();
            let certificate = params.self_signed(&key).unwrap();
            write(&folder, &format!("{authority}.crt"), &certificate.pem());
            let issuer = Issuer::new(params, key);
            let prefix = if authority == "ca" { "" } else { "other-" };
            for name in ["server", "agent", "client"] {
                let names = ["localhost", "server.test", "127.0.0.1", "::1"].map(str::to_owned);
                let mut params = CertificateParams::new(names).unwrap();
                params.distinguished_name.push(DnType::CommonName, name);
                let key = KeyPair::generate().unwrap();
                let certificate = params.signed_by(&key, &issuer).unwrap();
                write(&folder, &format!("{prefix}{name}.crt"), &certificate.pem());
                write(&folder, &format!("{prefix}{name}.key"), &key.serialize_pem());
            }
        }
        Self { folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn files(&self, name: &str) -> TlsFiles {
        TlsFiles {
            cert: Some(self.path(&format!("{name}.crt"))),
            key: Some(self.path(&format!("{name}.key"))),
            ca: Some(self.path("ca.crt")),
        }
    }

    /// Lets both authorities count from now on.
    pub(crate) fn trust_both(&self) {
        let [own, other] = ["ca.crt", "other-ca.crt"].map(|name| self.read(name));
        self.replace("ca.crt", &(own + &other));
    }

    /// Exchanges the certificates of server and agent for those of the other authority, file by file.
    pub(crate) fn exchange_certificates(&self) {
        for name in ["server.crt", "server.key", "agent.crt", "agent.key"] {
            let other = format!("other-{name}");
            let [now, next] = [self.read(name), self.read(&other)];
            self.replace(name, &next);
            self.replace(&other, &now);
        }
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    fn replace(&self, name: &str, text: &str) {
        write(&self.folder, "next", text);
        std::fs::rename(self.path("next"), self.path(name)).unwrap();
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path("server.sock")
    }

    /// A server with a gRPC frontend on a unix socket.
    pub(crate) fn server_options(&self) -> server::Options {
        server::Options {
            mode: Mode::Grpc,
            frontend: Frontend::Unix { path: self.socket(), delete_existing: true },
            agents: ([127, 0, 0, 1], 0).into(),
            agent_files: self.files("server"),
            tls: TlsPolicy::default(),
            tokens: None,
            server_id: "server-1".to_owned(),
            server_count: 1,
            leases: None,
            strategies: vec![Strategy::Default],
            keepalive: Duration::from_secs(3600),
            limits: server::Limits::default(),
            rules: None,
            audit: Audit::new(Some(&self.path("server-audit")), Format::Json).unwrap(),
        }
    }

    pub(crate) fn agent_options(&self, server: SocketAddr) -> agent::Options {
        agent::Options {
            server_host: server.ip().to_string(),
            server_port: server.port(),
            proxy: None,
            files: self.files("agent"),
            alpn: Vec::new(),
            token: None,
            agent_id: "agent-1".to_owned(),
            identifiers: String::new(),
            sync_interval: Duration::from_millis(50),
            sync_interval_cap: Duration::from_millis(200),
            probe_interval: Duration::from_millis(100),
            sync_forever: false,
            server_count: ServerCount::Reported,
            keepalive: Duration::from_secs(3600),
            limits: agent::Limits::default(),
            rules: None,
            audit: Audit::new(Some(&self.path("agent-audit")), Format::Json).unwrap(),
        }
    }

    pub(crate) fn client_config(
        &self,
        files: &TlsFiles,
        alpn: &[&str],
    ) -> Arc<rustls::ClientConfig> {
        let mut roots = rustls::RootCertStore::empty();
        let ca = files.ca.as_ref().unwrap();
        roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match (&files.cert, &files.key) {
            (Some(cert), Some(key)) => builder
                .with_client_auth_cert(
                    vec![CertificateDer::from_pem_file(cert).unwrap()],
                    PrivateKeyDer::from_pem_file(key).unwrap(),
                )
                .unwrap(),
            _ => builder.with_no_client_auth(),
        };
        config.alpn_protocols = alpn.iter().map(|it| it.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}

fn write(folder: &TempDir, name: &str, text: &str) {
    std::fs::write(folder.path().join(name), text).unwrap();
}

/// A server and an agent that are connected.
pub(crate) struct Pair {
    pub(crate) world: World,
    pub(crate) server: Server,
    pub(crate) agent: Agent,
}

impl Pair {
    pub(crate) async fn new(label: &str) -> Self {
        Self::with(label, |_| (), |_| ()).await
    }

    pub(crate) async fn with(
        label: &str,
        change_server: impl FnOnce(&mut server::Options),
        change_agent: impl FnOnce(&mut agent::Options),
    ) -> Self {
        let world = World::new(label);
        let mut options = world.server_options();
        change_server(&mut options);
        let server = Server::start(options).await.unwrap();
        let mut options = world.agent_options(server.agent_address());
        change_agent(&mut options);
        let agent = Agent::start(options).unwrap();
        until("an agent", || server.agents() == 1).await;
        Self { world, server, agent }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.world.socket()
    }
}

/// Waits until something holds.
pub(crate) async fn until(what: &str, holds: impl FnMut() -> bool) {
    until_within(PATIENCE, what, holds).await;
}

/// Waits until something holds that may take a certain time.
pub(crate) async fn until_within(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !holds() {
        assert!(Instant::now() < end, "waited too long for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits for something that must come.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it comes soon")
}

/// An echo target, which closes when its client does.
pub(crate) async fn echo() -> SocketAddr {
    target(|mut stream| async move {
        let (mut read, mut write) = stream.split();
        let _over = tokio::io::copy(&mut read, &mut write).await;
    })
    .await
}

/// A target that sends `count` bytes and closes.
pub(crate) async fn sends(count: usize) -> SocketAddr {
    target(move |mut stream| async move {
        let _over = stream.write_all(&pattern(count)).await;
    })
    .await
}

/// A target that takes everything and reads nothing.
pub(crate) async fn stalls() -> SocketAddr {
    target(|stream| async move {
        tokio::time::sleep(Duration::from_secs(3600)).await;
        drop(stream);
    })
    .await
}

/// A target that answers the number of bytes it got, as text, after the first empty line.
pub(crate) async fn target<F, R>(serve: F) -> SocketAddr
where
    F: Fn(TcpStream) -> R + Send + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    address
}

/// An address without a listener.
pub(crate) async fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

/// Bytes that are nowhere the same.
pub(crate) fn pattern(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at.wrapping_mul(31) ^ (at >> 8)) as u8).collect()
}

/// The value of a metric, or 0.
pub(crate) fn metric(page: &str, name: &str) -> f64 {
    let line = page.lines().find(|line| {
        line.strip_prefix("konnectivity_network_proxy_")
            .and_then(|line| line.strip_prefix(name))
            .is_some_and(|rest| rest.starts_with(' '))
    });
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
}

/// The lines of an audit file, once there are any.
pub(crate) async fn audit(path: &Path) -> Vec<serde_json::Value> {
    let mut text = String::new();
    until("an audit line", || {
        text = std::fs::read_to_string(path).unwrap_or_default();
        text.ends_with('\n')
    })
    .await;
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Sends a CONNECT request and reads the answer's head.
pub(crate) async fn connect<I>(io: &mut I, target: &str) -> String
where
    I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let request = format!("CONNECT {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    io.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if io.read(&mut byte).await.unwrap() == 0 {
            break;
        }
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}
