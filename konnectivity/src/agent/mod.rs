//! The agent: connects to every server and dials targets for them.
//!
//! | file | part |
//! |---|---|
//! | `options.rs` | its options |
//! | `sync.rs`, `absent.rs` | finding the servers: one connection to each |
//! | `session/` | one connection to one server, `session/target.rs` one to a target |
//! | `http_proxy.rs` | the HTTP proxy on the way to them |
//! | `dial.rs` | dials of targets |
//! | `metrics.rs` | its metrics |

mod absent;
mod dial;
mod http_proxy;
mod metrics;
mod options;
mod session;
mod sync;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use absent::Absent;
pub use http_proxy::HttpProxy;
use metrics::Metrics;
pub use options::{Limits, Options, ServerCount};
use session::Session;
use telemetry::{Page, Pages};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::memory::{Shares, Trimmer};
use crate::packet::Packet;
use crate::rules::{Rules, Unknown};
use crate::server::{StartError, serve_pages};
use crate::tls;

/// A running agent. Dropping it ends it at once.
#[derive(Debug)]
pub struct Agent {
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
    health: Vec<telemetry::Server>,
}

/// State shared by all parts of an agent.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) metrics: Metrics,
    pub(crate) shares: Shares,
    sessions: Mutex<Vec<Arc<Session>>>,
    absent: Mutex<Absent>,
    draining: AtomicBool,
    /// A session has ended.
    changed: Notify,
}

impl Shared {
    fn sessions(&self) -> Vec<Arc<Session>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Fails while the rules deny every dial because they have not arrived.
    fn rules_known(&self) -> Result<(), Unknown> {
        self.options.rules.as_deref().map_or(Ok(()), Rules::known)
    }
}

impl Agent {
    /// Starts to connect to servers, on the current tokio runtime.
    ///
    /// # Errors
    /// Names the file that cannot be used.
    pub fn start(options: Options) -> Result<Self, StartError> {
        let tls = tls::client_of_files(&options.files, &options.alpn).map_err(StartError::Input)?;
        let shared = Arc::new(Shared {
            options,
            metrics: Metrics::default(),
            shares: Shares::default(),
            sessions: Mutex::default(),
            absent: Mutex::default(),
            draining: AtomicBool::new(false),
            changed: Notify::new(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(sync::run(Arc::clone(&shared), tls));
        tasks.spawn(look_after(Arc::clone(&shared)));
        Ok(Self { shared, tasks, health: Vec::new() })
    }

    /// Number of connected servers.
    pub fn servers(&self) -> Vec<String> {
        self.shared.sessions().iter().map(|it| it.server().to_owned()).collect()
    }

    /// Connections to targets.
    pub fn targets(&self) -> i64 {
        self.shared.metrics.open_endpoints.get()
    }

    /// Sends every server a DRAIN: no further dials; open connections continue.
    pub fn drain(&self) {
        self.shared.draining.store(true, Ordering::Relaxed);
        for session in self.shared.sessions() {
            session.send(&Packet::Drain);
        }
    }

    /// Resolves when a draining agent has served its last connection.
    pub async fn drained(&self) {
        let pending = &self.shared.metrics.pending;
        sync::until_idle(|| self.targets() == 0 && pending.get() == 0).await;
    }

    /// The page `/metrics`.
    pub fn metrics(&self) -> String {
        self.shared.metrics.page()
    }

    /// `/healthz`, `/readyz`, `/ready` and `/metrics` on this address, for as long as the agent
    /// lives; the address it really is.
    ///
    /// # Errors
    /// Fails if it cannot listen there.
    pub fn serve_health(&mut self, address: SocketAddr) -> Result<SocketAddr, StartError> {
        let server = serve_pages(address, Arc::new(Health(Arc::clone(&self.shared))))?;
        let bound = server.address();
        self.health.push(server);
        Ok(bound)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.tasks.abort_all();
        for session in self.shared.sessions() {
            session.link.abort();
        }
        self.shared.options.audit.flush();
    }
}

async fn look_after(shared: Arc<Shared>) {
    let mut ticks = tokio::time::interval(shared.options.probe_interval.min(sync::TICK));
    let rules = shared.options.rules.as_deref();
    let mut generation = rules.map(Rules::generation);
    let mut trimmer = Trimmer::default();
    loop {
        ticks.tick().await;
        trimmer.tick(shared.shares.busy(http2::millis()));
        let now = rules.map(Rules::generation);
        let changed = std::mem::replace(&mut generation, now) != now;
        for session in shared.sessions() {
            session.tick();
            if let Some(rules) = rules.filter(|_| changed) {
                session.recheck(rules);
            }
        }
    }
}

struct Health(Arc<Shared>);

impl Pages for Health {
    fn page(&self, path: &str, query: &str) -> Option<Page> {
        let verbose = query.split('&').any(|it| it == "verbose" || it.starts_with("verbose="));
        match path {
            "/healthz" | "/livez" => Some(Page::new(200, "ok")),
            "/readyz" | "/ready" => {
                let fault = match self.0.rules_known() {
                    Err(why) => Some(format!("session-rules failed: {why}")),
                    Ok(()) if self.0.sessions().is_empty() => {
                        Some("server-connected failed: not connected with any server".to_owned())
                    }
                    Ok(()) => None,
                };
                Some(match fault {
                    Some(fault) => Page::new(503, format!("[-]{fault}\nreadyz check failed\n")),
                    None if verbose => {
                        Page::new(200, "[+]server-connected ok\nreadyz check passed\n")
                    }
                    None => Page::new(200, "ok"),
                })
            }
            "/metrics" => Some(Page::new(200, self.0.metrics.page())),
            _ => None,
        }
    }
}
