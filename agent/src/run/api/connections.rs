//! The connections of the local API: their classes, and the bound of each.

use std::collections::HashMap;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use local_api::{ApiError, ErrorKind};
use parking_lot::Mutex;

use crate::run::events::Event;
use crate::run::shared_status::SharedStatus;

/// Maximum of connections that neither stream nor wait for an attachment.
pub(super) const CONNECTIONS: usize = 128;
/// Time that every connection has for its request: it is not closed in favour of a new one before.
const FRESH: Duration = Duration::from_secs(1);
/// Interval at which a new connection looks for room again.
const RETRY: Duration = Duration::from_millis(20);
/// Maximum of pending attachments.
const ATTACHING: usize = 1024;
/// Maximum of streams.
const STREAMS: usize = 64;
/// Maximum of captures.
const CAPTURES: usize = 4;

/// State that all connections share.
pub(super) struct Shared {
    pub(super) status: Arc<SharedStatus>,
    pub(super) events: Mutex<Sender<Event>>,
    /// Connections by number, so that they can be ended.
    pub(super) connections: Mutex<HashMap<u64, (UnixStream, Doing)>>,
    pub(super) accepted: AtomicU64,
    pub(super) stop: AtomicBool,
}

/// State of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    /// Waiting for a request since then.
    Idle(Instant),
    Answering,
    Attaching,
    Streaming,
    Capturing,
}

/// Counts the connection until it is dropped.
pub(super) struct Connection {
    pub(super) number: u64,
    pub(super) shared: Arc<Shared>,
}

impl Connection {
    /// Moves the connection to another class; fails if that class is full.
    pub(super) fn does(&self, doing: Doing) -> Result<(), ApiError> {
        let mut connections = self.shared.connections.lock();
        let most = match doing {
            Doing::Attaching => ATTACHING,
            Doing::Streaming => STREAMS,
            Doing::Capturing => CAPTURES,
            Doing::Idle(_) | Doing::Answering => usize::MAX,
        };
        if most < usize::MAX && connections.values().filter(|(_, it)| *it == doing).count() >= most
        {
            let text = format!("{most} requests of this kind are under way already");
            return Err(ApiError::new(ErrorKind::NotReady, text));
        }
        if let Some((_, known)) = connections.get_mut(&self.number) {
            *known = doing;
        }
        Ok(())
    }
}

impl Shared {
    /// Makes room for one more connection, if need be by closing the one that has been idle
    /// longest, and waits while all idle ones are new; `false` if all of them are answered just now.
    pub(super) fn make_room(&self) -> bool {
        let until = Instant::now() + 2 * FRESH;
        while !self.has_room() {
            if Instant::now() >= until || self.stop.load(Ordering::Acquire) {
                return false;
            }
            std::thread::sleep(RETRY);
        }
        true
    }

    fn has_room(&self) -> bool {
        let mut connections = self.connections.lock();
        let counts = |doing: &Doing| matches!(doing, Doing::Idle(_) | Doing::Answering);
        if connections.values().filter(|(_, doing)| counts(doing)).count() < CONNECTIONS {
            return true;
        }
        let idle = connections.iter().filter_map(|(number, (stream, doing))| match doing {
            Doing::Idle(since) if since.elapsed() >= FRESH && !has_input(stream) => {
                Some((*since, *number))
            }
            _ => None,
        });
        let Some((_, oldest)) = idle.min() else { return false };
        if let Some((stream, _)) = connections.remove(&oldest) {
            // Its thread ends at its next read.
            let _ = stream.shutdown(Shutdown::Both);
        }
        true
    }
}

/// Returns whether a request has arrived that is not read yet.
fn has_input(stream: &UnixStream) -> bool {
    use rustix::net::RecvFlags;

    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    rustix::net::recv(stream, &mut [0_u8][..], flags).is_ok_and(|(read, _)| read > 0)
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.connections.lock().remove(&self.number);
    }
}
