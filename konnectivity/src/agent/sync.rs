//! Finds the servers. A name has one or several servers, each on an address of its own or all
//! behind a load balancer; the agent needs one connection with each, and each reports how many
//! there are.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio_rustls::TlsConnector;

use super::Shared;
use super::options::ServerCount;
use super::session::{Greeting, Reader, Session, reason};
use crate::grpc::request;
use crate::packet::Packet;
use crate::server::{AGENT_PATH, AGENT_SETTINGS, WINDOW};
use crate::tls::refusal;
use crate::window::Window;
use http2::{Link, Role, drive};
use telemetry::Reloaded;

/// Longest interval of session maintenance.
pub(super) const TICK: Duration = Duration::from_millis(500);
/// Timeout of opening a connection, TLS included.
const CONNECT: Duration = Duration::from_secs(10);
/// Timeout of a server's greeting, after it verified the token.
const GREETING: Duration = Duration::from_secs(30);
/// For how long dials may arrive that the server sent before it received a drain.
const UNDER_WAY: Duration = Duration::from_secs(1);

/// The result of an attempt.
enum Tried {
    /// Connected with a new server.
    Connected,
    /// Connected with a known server.
    Duplicate(String),
    Failed(&'static str, String),
}

/// Connects and reconnects without end.
pub(super) async fn run(shared: Arc<Shared>, tls: Reloaded<ClientConfig>) {
    let options = &shared.options;
    let mut wait = options.sync_interval;
    let mut turn = 0;
    let mut counter = Counter { count: 1, looked: None };
    let mut tasks = tokio::task::JoinSet::new();
    loop {
        while tasks.try_join_next().is_some() {}
        let have = connected(&shared);
        let count = counter.count(&shared).await;
        shared.metrics.known_servers.set(i64::try_from(count).unwrap_or(i64::MAX));
        let expected = expected(&shared);
        let longer = |wait: Duration| match have < expected {
            // One that restarts is back soon.
            true => options.sync_interval,
            false => (wait * 3 / 2).min(options.sync_interval_cap),
        };
        // An agent whose rules deny everything serves no dial.
        let serves = !shared.draining.load(Ordering::Relaxed) && shared.rules_known().is_ok();
        if serves && (have < count.max(expected) || options.sync_forever) {
            match try_all(&shared, &tls, &mut turn, &mut tasks).await {
                Tried::Connected => {
                    wait = options.sync_interval;
                    // There may be more.
                    let count = counter.count(&shared).await;
                    let now = connected(&shared);
                    if have < now && now < count.max(expected) {
                        continue;
                    }
                }
                Tried::Duplicate(server) => {
                    tracing::debug!("connected with server {server} already");
                    // A balancer decides by chance: the next attempt may meet a server that is
                    // missing.
                    wait = match have < count {
                        true => options.sync_interval,
                        false => longer(wait),
                    };
                }
                Tried::Failed(kind, text) => {
                    tracing::warn!("{}:{}: {text}", options.server_host, options.server_port);
                    shared.metrics.connect_failures.with_label_values(&[kind]).inc();
                    wait = longer(wait);
                }
            }
        }
        let pause = tokio::time::sleep(jittered(wait));
        tokio::select! {
            () = pause => {}
            () = shared.changed.notified() => wait = options.sync_interval,
        }
    }
}

/// Determines the number of servers.
struct Counter {
    count: usize,
    looked: Option<u64>,
}

impl Counter {
    async fn count(&mut self, shared: &Shared) -> usize {
        match &shared.options.server_count {
            ServerCount::Reported => {
                let greeting = shared.sessions().last().and_then(|it| it.server_count());
                self.count = greeting.unwrap_or(self.count);
            }
            ServerCount::Largest => {
                let greeting = shared.sessions().iter().filter_map(|it| it.server_count()).max();
                self.count = greeting.unwrap_or(self.count);
            }
            ServerCount::Leases(cluster, options) => {
                let now = http2::millis();
                let interval = shared.options.sync_interval_cap.as_millis() as u64;
                let due = self.looked.is_none_or(|at| now - at > interval);
                if due {
                    self.looked = Some(now);
                    match cluster.count(options, |it| shared.metrics.lease_lists.observe(it)).await
                    {
                        // Without a valid lease the last count stays.
                        Ok((0, _)) => {}
                        Ok((count, _)) => self.count = count,
                        Err(error) => tracing::warn!("leases: {error}; {} stays", self.count),
                    }
                }
            }
        }
        self.count.max(1)
    }
}

/// The number of connected servers that accept dials.
fn connected(shared: &Shared) -> usize {
    shared.sessions().iter().filter(|it| !it.is_leaving()).count()
}

/// The number of servers before a recent loss.
fn expected(shared: &Shared) -> usize {
    shared.absent.lock().unwrap_or_else(PoisonError::into_inner).expected(http2::millis())
}

/// Up to a tenth more.
fn jittered(wait: Duration) -> Duration {
    let random = RandomState::new().hash_one(http2::millis()) % 100;
    wait + wait.mul_f64(random as f64 / 1000.0)
}

/// Tries the addresses in turn, until one connects to a new server.
async fn try_all(
    shared: &Arc<Shared>,
    tls: &Reloaded<ClientConfig>,
    turn: &mut usize,
    tasks: &mut tokio::task::JoinSet<()>,
) -> Tried {
    let options = &shared.options;
    let host = options.server_host.trim_matches(['[', ']']);
    let addresses: Vec<Option<SocketAddr>> = match options.proxy {
        // It looks the name up itself.
        Some(_) => vec![None],
        None => match tokio::net::lookup_host((host, options.server_port)).await {
            Ok(addresses) => addresses.map(Some).collect(),
            Err(error) => return Tried::Failed("lookup", format!("lookup: {error}")),
        },
    };
    let mut result = Tried::Failed("lookup", "lookup: no address".to_owned());
    for _ in 0..addresses.len() {
        let address = addresses[*turn % addresses.len()];
        *turn = turn.wrapping_add(1);
        match connect(shared, tls, address, tasks).await {
            Tried::Connected => return Tried::Connected,
            tried @ Tried::Duplicate(_) => result = tried,
            tried => {
                if !matches!(result, Tried::Duplicate(_)) {
                    result = tried;
                }
            }
        }
    }
    result
}

async fn connect(
    shared: &Arc<Shared>,
    tls: &Reloaded<ClientConfig>,
    address: Option<SocketAddr>,
    tasks: &mut tokio::task::JoinSet<()>,
) -> Tried {
    let options = &shared.options;
    let host = options.server_host.trim_matches(['[', ']']).to_owned();
    let authority = match host.contains(':') {
        true => format!("[{host}]:{}", options.server_port),
        false => format!("{host}:{}", options.server_port),
    };
    let at = address.map_or_else(|| authority.clone(), |it| it.to_string());
    let name = match ServerName::try_from(host) {
        Ok(name) => name,
        Err(error) => return Tried::Failed("tls", format!("server name: {error}")),
    };
    let token = match &options.token {
        None => None,
        Some(path) => match tokio::fs::read_to_string(path).await {
            // Editors and `echo` end a file with a newline.
            Ok(token) => Some(format!("Bearer {}", token.trim_end_matches(['\r', '\n']))),
            Err(error) => return Tried::Failed("token", format!("{}: {error}", path.display())),
        },
    };
    let shaken = async {
        let stream = match (address, &options.proxy) {
            (Some(address), _) => TcpStream::connect(address).await,
            (None, Some(proxy)) => proxy.connect().await,
            (None, None) => Err(io::ErrorKind::NotFound.into()),
        };
        let stream = stream.map_err(|error| ("connect", error))?;
        crate::accept::prepare(&stream);
        let connector = TlsConnector::from(tls.current());
        connector.connect(name, stream).await.map_err(|error| ("tls", error))
    };
    let stream = match tokio::time::timeout(CONNECT, shaken).await {
        Ok(Ok(stream)) => stream,
        Ok(Err((kind, error))) => {
            let why = refusal("the server", &error);
            let why = why.unwrap_or_else(|| format!("{kind}: {error}"));
            return Tried::Failed(kind, format!("{at}: {why}"));
        }
        Err(_) => {
            return Tried::Failed("timeout", format!("{at}: no connection within {CONNECT:?}"));
        }
    };
    let window = Window::initial(options.limits.connection_bytes).to_string();
    let mut metadata = vec![
        ("agentid", options.agent_id.as_str()),
        ("agentidentifiers", options.identifiers.as_str()),
        (WINDOW, window.as_str()),
    ];
    if let Some(token) = &token {
        metadata.push(("authorization", token));
    }
    let link = Link::new(Role::Client, AGENT_SETTINGS);
    let Some(stream_id) = link.request(&request("https", &authority, AGENT_PATH, &metadata)) else {
        return Tried::Failed("connect", "the connection ended at once".to_owned());
    };
    let session = Session::new(shared, Arc::clone(&link), stream_id);
    let (sender, greeting) = oneshot::channel();
    let mut reader = Reader::new(Arc::clone(&session), sender);
    let driven = Arc::clone(shared);
    tasks.spawn(async move {
        let session = Arc::clone(&reader.session);
        let result = drive(stream, link, &mut reader).await;
        let why = reason(result, reader.over.take());
        // For a connection that ends before the server has answered.
        reader.greet(Err(why.clone()));
        session.end();
        if forget(&driven, &session) {
            tracing::warn!("server {} is gone: {why}", session.server());
            driven.metrics.server_failures.with_label_values(&["from_server"]).inc();
            driven.metrics.open_servers.add(-1);
            driven.changed.notify_one();
        }
    });
    let greeting = match tokio::time::timeout(GREETING, greeting).await {
        Ok(Ok(Ok(greeting))) => greeting,
        Ok(Ok(Err(why))) => return Tried::Failed("refused", format!("{at}: {why}")),
        Ok(Err(_)) => {
            return Tried::Failed("connect", format!("{at}: the server closed the connection"));
        }
        Err(_) => {
            session.link.abort();
            let text = format!("{at}: no word from the server within {GREETING:?}");
            return Tried::Failed("timeout", text);
        }
    };
    let tried = add(shared, &session, greeting);
    if matches!(tried, Tried::Duplicate(_)) {
        tasks.spawn(retire(session));
    }
    tried
}

/// Ends a second connection with a server. The server may have sent dials over it already: they
/// are served to their end.
async fn retire(session: Arc<Session>) {
    session.send(&Packet::Drain);
    until_idle(|| session.is_idle() || session.link.is_closed()).await;
    session.link.close(0, "connected already");
}

/// Waits until `idle` has held for as long as dials may be under way.
pub(super) async fn until_idle(idle: impl Fn() -> bool) {
    let mut busy = Instant::now();
    while busy.elapsed() < UNDER_WAY {
        if !idle() {
            busy = Instant::now();
        }
        tokio::time::sleep(UNDER_WAY / 10).await;
    }
}

/// Adds a session, unless there is one with the same server. A server that goes away may have a
/// successor with its name.
fn add(shared: &Arc<Shared>, session: &Arc<Session>, greeting: Greeting) -> Tried {
    let mut sessions = shared.sessions.lock().unwrap_or_else(PoisonError::into_inner);
    if sessions.iter().any(|it| it.server() == greeting.server && !it.is_leaving()) {
        return Tried::Duplicate(greeting.server);
    }
    sessions.push(Arc::clone(session));
    drop(sessions);
    shared.metrics.open_servers.add(1);
    tracing::info!("connected with server {}, one of {}", greeting.server, greeting.count);
    if session.link.is_closed() && forget(shared, session) {
        shared.metrics.open_servers.add(-1);
        return Tried::Failed("connect", "the server closed the connection".to_owned());
    }
    if shared.draining.load(Ordering::Relaxed) {
        session.send(&Packet::Drain);
    }
    Tried::Connected
}

/// Counts a session no more: its server accepts no dials, or its connection ended. Another server
/// is looked for.
pub(super) fn leave(shared: &Shared, session: &Arc<Session>) {
    let sessions = shared.sessions();
    let before = connected(shared);
    if !session.leave() && sessions.iter().any(|it| Arc::ptr_eq(it, session)) {
        let mut absent = shared.absent.lock().unwrap_or_else(PoisonError::into_inner);
        absent.lost(before, http2::millis());
        shared.changed.notify_one();
    }
}

/// Removes a session; false if it was not there.
fn forget(shared: &Shared, session: &Arc<Session>) -> bool {
    leave(shared, session);
    let mut sessions = shared.sessions.lock().unwrap_or_else(PoisonError::into_inner);
    let before = sessions.len();
    sessions.retain(|it| !Arc::ptr_eq(it, session));
    sessions.len() < before
}
