//! The server side of the local API.
//!
//! Each connection has a thread. There are four classes of connections: pending attachments,
//! streams, captures, and all others. Each class has its own bound, so none displaces another; in the last
//! class a new connection replaces the one that has been idle longest. Requests that only read are
//! answered from the shared status; requests that change something go to the control loop.

use std::collections::HashMap;
use std::fs::{self, Permissions};
use std::io::{self, BufReader, Read};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::json;

use super::capture;
use super::events::Event;
use super::session_rules::Follower;
use super::shared_status::SharedStatus;
use super::show::show;
use super::state_dir::make_folder;
use super::status::Status;
use local_api::{Answer, ApiError, ErrorKind};
use local_api::{FrameError, REQUEST_BYTES, read_line, write_line};
use local_api::{Request, TraceAdd};
use observe::trace;
use observe::verdicts::Filter;

/// Maximum of connections that neither stream nor wait for an attachment.
const CONNECTIONS: usize = 128;
/// Maximum of pending attachments.
const ATTACHING: usize = 1024;
/// Maximum of streams.
const STREAMS: usize = 64;
/// Maximum of captures.
const CAPTURES: usize = 4;
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

struct Shared {
    status: Arc<SharedStatus>,
    events: Mutex<Sender<Event>>,
    /// Connections by number, so that they can be ended.
    connections: Mutex<HashMap<u64, (UnixStream, Doing)>>,
    accepted: AtomicU64,
    stop: AtomicBool,
}

/// State of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    /// Waiting for a request since then.
    Idle(Instant),
    Answering,
    Attaching,
    Streaming,
    Capturing,
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
        if let Some(folder) = socket.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            make_folder(folder)?;
        }
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
        for (connection, _) in lock(&self.shared.connections).values() {
            let _ = connection.shutdown(Shutdown::Read);
        }
        if let Err(error) = fs::remove_file(&self.socket) {
            tracing::debug!("remove {}: {error}", self.socket.display());
        }
    }
}

fn listen(socket: &Path) -> io::Result<UnixListener> {
    let listener = match UnixListener::bind(socket) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if UnixStream::connect(socket).is_ok() {
                let text = "another podgate answers there";
                return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
            }
            fs::remove_file(socket)?;
            UnixListener::bind(socket)?
        }
        other => other?,
    };
    fs::set_permissions(socket, Permissions::from_mode(0o600))?;
    Ok(listener)
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
        lock(&shared.connections).insert(number, (clone, Doing::Idle(Instant::now())));
        let serve = move || {
            if let Err(error) = serve(stream, &connection) {
                tracing::debug!("local API: {error}");
            }
        };
        std::thread::Builder::new().name("api-connection".into()).spawn(serve)
    });
    if let Err(error) = begun {
        tracing::warn!("local API: {error}");
    }
}

/// Counts the connection until it is dropped.
struct Connection {
    number: u64,
    shared: Arc<Shared>,
}

impl Connection {
    /// Moves the connection to another class; fails if that class is full.
    fn does(&self, doing: Doing) -> Result<(), ApiError> {
        let mut connections = lock(&self.shared.connections);
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
    /// longest; `false` if there is none.
    fn make_room(&self) -> bool {
        let mut connections = lock(&self.connections);
        let counts = |doing: &Doing| matches!(doing, Doing::Idle(_) | Doing::Answering);
        if connections.values().filter(|(_, doing)| counts(doing)).count() < CONNECTIONS {
            return true;
        }
        let idle = connections.iter().filter_map(|(number, (stream, doing))| match doing {
            Doing::Idle(since) if !has_input(stream) => Some((*since, *number)),
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
        lock(&self.shared.connections).remove(&self.number);
    }
}

/// No code that can panic runs under these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves the requests of a connection in order.
fn serve(stream: UnixStream, connection: &Connection) -> io::Result<()> {
    let shared = &*connection.shared;
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    loop {
        let line = match read_line(&mut reader, REQUEST_BYTES) {
            Ok(Some(line)) => line,
            Ok(None) => return Ok(()),
            Err(FrameError::Io(error)) => return Err(error),
            Err(error) => {
                let error = ApiError::new(ErrorKind::BadRequest, format!("request: {error}"));
                return write_line(&mut writer, &Answer::from(error));
            }
        };
        let request = Request::parse(&line).and_then(|request| {
            connection.does(match request {
                Request::AttachPod(_) => Doing::Attaching,
                Request::Observe(_) | Request::FollowSessionRules => Doing::Streaming,
                Request::Capture(_) => Doing::Capturing,
                _ => Doing::Answering,
            })?;
            Ok(request)
        });
        let answer = match request {
            Err(error) => error.into(),
            Ok(Request::Observe(filters)) => match Filter::new(filters) {
                Err(error) => error.into(),
                Ok(filter) => match shared.status.broker.unknown_pod(&filter) {
                    // One that is followed may come yet.
                    Some(pod) if !filter.follow() => {
                        let text = format!("observe: no pod {pod} is known");
                        ApiError::new(ErrorKind::NotFound, text).into()
                    }
                    unknown => {
                        if let Some(pod) = unknown {
                            let notice = json!({ "notice": format!("no pod {pod} is known yet") });
                            write_line(&mut writer, &Answer::Result(notice))?;
                        }
                        return observe(reader, &mut writer, shared, filter);
                    }
                },
            },
            Ok(Request::FollowSessionRules) => {
                return follow_session_rules(reader, &mut writer, shared);
            }
            Ok(Request::Capture(wanted)) => {
                let stops = || shared.stop.load(Ordering::Acquire);
                let status = &shared.status;
                return capture::stream(reader, &mut writer, status, &wanted, has_left, stops);
            }
            Ok(Request::TraceShow) => return show_trace(&mut writer, &shared.status),
            Ok(request) => answer(request, shared),
        };
        write_line(&mut writer, &answer)?;
        // This class has no bound of its own.
        let _ = connection.does(Doing::Idle(Instant::now()));
    }
}

fn answer(request: Request, shared: &Shared) -> Answer {
    let status = &shared.status;
    match request {
        Request::Status => Answer::result(&Status::of(status)),
        Request::Show(wanted) => {
            let events = lock(&shared.events).clone();
            match show(status, &events, &wanted) {
                Ok(table) => Answer::Result(table),
                Err(error) => error.into(),
            }
        }
        Request::TraceAdd(wanted) => match begin_trace(status, &wanted) {
            Ok(()) => Answer::Result(json!({})),
            Err(text) => ApiError::new(ErrorKind::BadRequest, format!("trace-add: {text}")).into(),
        },
        Request::TraceClear => {
            status.clear_trace();
            Answer::Result(json!({}))
        }
        Request::Ready if status.is_ready() && status.unhealthy_reasons().is_empty() => {
            Answer::Result(json!({}))
        }
        Request::Ready => {
            let unhealthy_reasons = status.unhealthy_reasons().join("; ");
            let why = if unhealthy_reasons.is_empty() {
                status.unready().unwrap_or("busy")
            } else {
                &unhealthy_reasons
            };
            ApiError::new(ErrorKind::NotReady, why).into()
        }
        other => {
            let (sender, receiver) = channel();
            let events = lock(&shared.events).clone();
            let sent = events.send(Event::Request(other, sender)).is_ok();
            drop(events);
            match receiver.recv() {
                Ok(answer) if sent => answer,
                _ => ApiError::new(ErrorKind::NotReady, "podgate is ending").into(),
            }
        }
    }
}

fn begin_trace(status: &SharedStatus, wanted: &TraceAdd) -> Result<(), String> {
    if !(1..=trace::MOST).contains(&wanted.count) {
        return Err(format!("count: {} is not between 1 and {}", wanted.count, trace::MOST));
    }
    let filter = trace::parse(&wanted.filter, |pod| status.broker.addresses_of(pod))?;
    status.begin_trace(filter, wanted.count);
    Ok(())
}

/// Sends the packets traced so far.
fn show_trace(writer: &mut UnixStream, status: &SharedStatus) -> io::Result<()> {
    let (lines, wanted) = status.trace.lines(&status.switch);
    for line in &lines {
        write_line(writer, &Answer::result(line))?;
    }
    let end = json!({ "followed": lines.len(), "wanted": wanted });
    write_line(writer, &Answer::Result(end))
}

/// Sends events until the switch or the observer ends, or no event is left.
fn observe(
    reader: BufReader<UnixStream>,
    writer: &mut UnixStream,
    shared: &Shared,
    filter: Filter,
) -> io::Result<()> {
    let mut peer = reader.into_inner();
    peer.set_nonblocking(false)?;
    peer.set_read_timeout(Some(Duration::from_millis(1)))?;
    let observer = shared.status.broker.observe(filter);
    loop {
        match observer.events.recv_timeout(IDLE) {
            Ok(event) => write_line(writer, &Answer::result(&*event))?,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) if has_left(&mut peer) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        match observer.take_lost() {
            0 => {}
            lost => write_line(writer, &Answer::Result(json!({ "lost": lost })))?,
        }
    }
}

/// Sends session rules and their changes until the switch or the follower ends.
fn follow_session_rules(
    reader: BufReader<UnixStream>,
    writer: &mut UnixStream,
    shared: &Shared,
) -> io::Result<()> {
    let mut peer = reader.into_inner();
    peer.set_nonblocking(false)?;
    // Also the poll interval for changes.
    peer.set_read_timeout(Some(IDLE))?;
    let mut follower = Follower::new();
    let mut known = None;
    while !shared.stop.load(Ordering::Acquire) {
        let generation = shared.status.state().snapshot.generation;
        if known != Some(generation) {
            let events = lock(&shared.events).clone();
            match follower.steps(&events) {
                Ok(steps) => {
                    for step in steps {
                        write_line(writer, &Answer::result(&step))?;
                    }
                }
                Err(error) => return write_line(writer, &Answer::from(error)),
            }
            known = Some(generation);
        }
        if has_left(&mut peer) {
            return Ok(());
        }
    }
    Ok(())
}

/// Returns whether the peer has closed the connection; discards what it sends.
fn has_left(peer: &mut UnixStream) -> bool {
    match peer.read(&mut [0; 64]) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut),
    }
}
