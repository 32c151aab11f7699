//! The watches that an aggregator has: of all pods, and of those of the own node.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinHandle};

use super::super::{Event, Failure, RequestError};
use super::candidate::{Fed, Free, Seat};
use super::merge::Merge;
use super::objects::Page;

/// A watch of pods.
pub(super) struct Pods {
    pub(super) events: mpsc::Receiver<Event>,
    pub(super) position: Arc<Mutex<String>>,
    pub(super) task: JoinHandle<()>,
}

impl Drop for Pods {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The own watch of all pods, and the candidacy that comes with it.
pub(super) struct Full {
    pub(super) pods: Pods,
    pub(super) fed: mpsc::UnboundedSender<Fed>,
    pub(super) free: watch::Sender<Free>,
    pub(super) seat: watch::Receiver<Seat>,
    pub(super) task: JoinHandle<()>,
    /// Its pods are those in force.
    pub(super) is_listed: bool,
}

impl Drop for Full {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The watch of the own node's pods.
pub(super) struct Own {
    pub(super) pods: Pods,
    pub(super) merge: Merge,
    pub(super) is_listed: bool,
    pub(super) is_current: bool,
}

/// The next event of a watch; waits for ever without one.
pub(super) async fn next(pods: Option<&mut Pods>) -> Option<Event> {
    match pods {
        Some(pods) => pods.events.recv().await,
        None => std::future::pending().await,
    }
}

/// Waits for a change of the seat.
pub(super) async fn changed(seat: &mut Option<watch::Receiver<Seat>>) {
    if let Some(seat) = seat
        && seat.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

/// Returns the loaded objects; waits for ever if nothing is being loaded.
pub(super) async fn loaded(
    loading: &mut Option<JoinHandle<Result<Vec<Page>, RequestError>>>,
) -> Option<Result<Vec<Page>, RequestError>> {
    let failed = |error: JoinError| Failure::Broken(error.to_string());
    match loading {
        Some(task) => {
            Some(task.await.unwrap_or_else(|error| Err(RequestError::new("pages", failed(error)))))
        }
        None => std::future::pending().await,
    }
}
