//! The server side of the local API.
//!
//! Each connection has a thread. There are four classes of connections: pending attachments,
//! streams, captures, and all others. Each class has its own bound, so none displaces another; in the last
//! class a new connection replaces the one that has been idle longest, and at least for a second. Requests that only read are
//! answered from the shared status; requests that change something go to the control loop.

mod connections;
mod requests;
mod streams;

use std::fs;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use local_api::{Answer, ApiError, ErrorKind, write_line};
use parking_lot::Mutex;

use super::events::Event;
use super::shared_status::SharedStatus;
use super::socket::listen;
use connections::{CONNECTIONS, Connection, Doing, Shared};

/// Timeout for writing an answer.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which a silent stream checks for the end of its reader.
const IDLE: Duration = Duration::from_millis(200);

/// The listening socket and all connections. Dropping it ends them; requests received before are
/// still answered.
pub(super) struct Server {
    socket: PathBuf,
    shared: Arc<Shared>,
    listener: Arc<UnixListener>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at `socket`, for its owner only. A stale socket is replaced.
    ///
    /// # Errors
    /// If another process listens there, or the path cannot be used.
    pub(super) fn start(
        socket: &Path,
        status: Arc<SharedStatus>,
        events: Sender<Event>,
    ) -> io::Result<Self> {
        let listener = Arc::new(listen(socket)?);
        let shared = Arc::new(Shared {
            status,
            events: Mutex::new(events),
            connections: Mutex::default(),
            accepted: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        });
        let (accepting, accepted) = (Arc::clone(&shared), Arc::clone(&listener));
        let thread = std::thread::Builder::new().name("api".into());
        let thread = thread.spawn(move || accept(&accepted, &accepting))?;
        Ok(Self { socket: socket.to_owned(), shared, listener, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        // Wakes the accepting thread, even if the socket's file was deleted.
        let woken = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
        for (connection, _) in self.shared.connections.lock().values() {
            let _ = connection.shutdown(Shutdown::Read);
        }
        if let Err(error) = fs::remove_file(&self.socket) {
            tracing::debug!("remove {}: {error}", self.socket.display());
        }
    }
}

fn accept(listener: &UnixListener, shared: &Arc<Shared>) {
    loop {
        let stream = listener.accept();
        if shared.stop.load(Ordering::Acquire) {
            return;
        }
        match stream {
            Ok((stream, _)) => begin(stream, shared),
            Err(error) => {
                tracing::warn!("local API: {error}");
                std::thread::sleep(IDLE);
            }
        }
    }
}

fn begin(mut stream: UnixStream, shared: &Arc<Shared>) {
    let _ = stream.set_write_timeout(Some(WRITE_TIMEOUT));
    if !shared.make_room() {
        let text = format!("{CONNECTIONS} requests are being answered already");
        let _ = write_line(&mut stream, &Answer::from(ApiError::new(ErrorKind::NotReady, text)));
        return;
    }
    let number = shared.accepted.fetch_add(1, Ordering::Relaxed);
    let connection = Connection { number, shared: Arc::clone(shared) };
    let begun = stream.try_clone().and_then(|clone| {
        shared.connections.lock().insert(number, (clone, Doing::Idle(Instant::now())));
        let serve = move || {
            if let Err(error) = requests::serve(stream, &connection) {
                tracing::debug!("local API: {error}");
            }
        };
        std::thread::Builder::new().name("api-connection".into()).spawn(serve)
    });
    if let Err(error) = begun {
        tracing::warn!("local API: {error}");
    }
}
