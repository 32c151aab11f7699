//! Serves the health checks of load balancers.
//!
//! A service with `externalTrafficPolicy: Local` has a `healthCheckNodePort`. A load balancer sends
//! traffic only to nodes that answer there with status 200, which means that a ready endpoint
//! of the service is local. The answer is that of kube-proxy.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use control::model::Key;
use control::{ServiceView, View};
use serde_json::json;
use telemetry::{Page, Pages, Server};

use super::reconciler::{Effects, Reconciler, Signal};
use crate::run::shared_status::SharedStatus;

/// Pause before a port that could not be opened is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// Keeps one HTTP server for each port in line with the services.
#[derive(Default)]
pub(super) struct HealthChecks {
    servers: BTreeMap<u16, Served>,
    /// The services that the servers follow from.
    made_for: Option<Arc<BTreeMap<Key, Arc<ServiceView>>>>,
    retry_at: Option<Instant>,
}

struct Served {
    health: Arc<Health>,
    /// `None` while the port cannot be opened.
    server: Option<Server>,
}

/// The answer about one service.
struct Health {
    service: Key,
    local_endpoints: AtomicUsize,
    shared: Arc<SharedStatus>,
}

impl Reconciler for HealthChecks {
    fn on(&mut self, signal: &Signal<'_>, effects: &mut Effects) {
        if matches!(signal, Signal::Due(_) | Signal::Published(_)) {
            let (view, node) = (effects.control.view(), effects.node());
            self.reconcile(&view, node, &effects.shared);
        }
    }
}

impl HealthChecks {
    /// Serves the services of `view`; endpoints on node `node` are local.
    fn reconcile(&mut self, view: &View, node: &str, shared: &Arc<SharedStatus>) {
        let is_same = |known: &Arc<_>| Arc::ptr_eq(known, &view.services);
        if !self.made_for.as_ref().is_some_and(is_same) {
            self.update(view, node, shared);
            self.made_for = Some(Arc::clone(&view.services));
            self.retry_at = Some(Instant::now());
        }
        if self.retry_at.is_some_and(|at| at <= Instant::now()) {
            self.open();
        }
    }

    fn update(&mut self, view: &View, node: &str, shared: &Arc<SharedStatus>) {
        let services = view.services.values();
        let wanted: BTreeMap<u16, &Arc<ServiceView>> = services
            .filter_map(|service| Some((service.service.health_check_node_port?, service)))
            .collect();
        let is_wanted = |port: &u16, served: &Served| {
            wanted.get(port).is_some_and(|service| service.service.key == served.health.service)
        };
        self.servers.retain(|port, served| is_wanted(port, served));
        for (port, service) in wanted {
            let served = self.servers.entry(port).or_insert_with(|| Served {
                health: Arc::new(Health {
                    service: service.service.key.clone(),
                    local_endpoints: AtomicUsize::new(0),
                    shared: Arc::clone(shared),
                }),
                server: None,
            });
            let endpoints = service.endpoints.iter().flatten();
            let local =
                endpoints.filter(|it| it.ready && it.topology.node.as_deref() == Some(node));
            let addresses: BTreeSet<_> = local.map(|it| it.address).collect();
            served.health.local_endpoints.store(addresses.len(), Ordering::Release);
        }
    }

    /// Opens the ports that are not open.
    fn open(&mut self) {
        self.retry_at = None;
        for (port, served) in self.servers.iter_mut().filter(|(_, it)| it.server.is_none()) {
            let pages: Arc<dyn Pages> = Arc::clone(&served.health) as _;
            match listen(*port).and_then(|listener| Server::start(listener, pages)) {
                Ok(server) => served.server = Some(server),
                Err(error) => {
                    let service = &served.health.service;
                    tracing::warn!("health check of Service {service}: port {port}: {error}");
                    self.retry_at = Some(Instant::now() + RETRY);
                }
            }
        }
    }
}

/// Listens at every address, of both families where the kernel has both.
fn listen(port: u16) -> io::Result<TcpListener> {
    TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
        .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))
}

impl Pages for Health {
    fn page(&self, _path: &str, _query: &str) -> Option<Page> {
        let local = self.local_endpoints.load(Ordering::Acquire);
        let is_healthy = self.shared.unhealthy_reasons().is_empty();
        let answer = json!({
            "service": {"namespace": *self.service.namespace, "name": *self.service.name},
            "localEndpoints": local,
            "serviceProxyHealthy": is_healthy,
        });
        let code = if local > 0 && is_healthy { 200 } else { 503 };
        Some(Page::new(code, format!("{answer}\n")))
    }
}
