//! State shared by all parts of a server.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};

use tokio::sync::{Semaphore, watch};

use super::backends::Backends;
use super::metrics::Metrics;
use super::options::Options;
use crate::memory::Shares;

/// Agents that may wait for each TokenReview in progress.
const WAITING: usize = 64;

/// A server's state.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) options: Arc<Options>,
    pub(crate) backends: Backends,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) shares: Arc<Shares>,
    server_count: AtomicUsize,
    /// One permit a TokenReview.
    pub(crate) reviews: Semaphore,
    /// One permit an agent that waits for its TokenReview.
    pub(crate) waiting: Arc<Semaphore>,
    pub(crate) stopping: watch::Sender<bool>,
    /// True once all connections have ended, so that no dial may begin.
    pub(crate) ended: RwLock<bool>,
}

impl Proxy {
    pub(crate) fn new(options: Options) -> Arc<Self> {
        Arc::new(Self {
            backends: Backends::new(options.strategies.clone()),
            metrics: Arc::default(),
            shares: Arc::default(),
            server_count: AtomicUsize::new(options.server_count),
            reviews: Semaphore::new(options.limits.reviews),
            waiting: Arc::new(Semaphore::new(options.limits.reviews * WAITING)),
            stopping: watch::Sender::new(false),
            ended: RwLock::new(false),
            options: Arc::new(options),
        })
    }

    /// The number of servers announced to agents.
    pub(crate) fn server_count(&self) -> usize {
        self.server_count.load(Ordering::Relaxed)
    }

    pub(crate) fn set_server_count(&self, count: usize) {
        self.server_count.store(count, Ordering::Relaxed);
    }

    /// Resolves when the server is to accept no more connections.
    pub(crate) async fn stopped(&self) {
        let mut stopping = self.stopping.subscribe();
        // An error would be the sender's end, and this side holds it.
        let _stopped = stopping.wait_for(|it| *it).await;
    }

    pub(crate) fn page(&self) -> String {
        self.metrics.page(self.backends.agents(), self.backends.ready())
    }
}
