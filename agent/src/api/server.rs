//! The answering side.
//!
//! One thread a connection, and so many connections at most; one more is told so and closed.
//! What only reads is answered from the board; what changes something is asked of the control
//! loop.

use std::fs::{self, Permissions};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::json;

use super::answer::{Answer, ApiError, ErrorKind};
use super::frame::{FrameError, REQUEST_BYTES, read_line, write_line};
use super::request::Request;
use crate::run::{Board, Event, Status, make_folder, show};
use crate::verdicts::Filter;

/// Connections at a time.
const CONNECTIONS: usize = 128;
/// How long an answer may take to be read by whoever asked.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a connection that has nothing to say is looked at.
const IDLE: Duration = Duration::from_millis(200);

/// The listening socket and all connections; dropping it ends them.
pub struct Server {
    socket: PathBuf,
    shared: Arc<Shared>,
    listener: Option<JoinHandle<()>>,
}

struct Shared {
    board: Arc<Board>,
    events: Mutex<Sender<Event>>,
    connections: AtomicUsize,
    stop: AtomicBool,
}

impl Server {
    /// Listens at `socket`, for its owner only. A socket that nobody listens on is replaced.
    ///
    /// # Errors
    /// If somebody listens there, or the place cannot be used.
    pub(crate) fn start(
        socket: &Path,
        board: Arc<Board>,
        events: Sender<Event>,
    ) -> io::Result<Self> {
        if let Some(folder) = socket.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            make_folder(folder)?;
        }
        let listener = listen(socket)?;
        let shared = Arc::new(Shared {
            board,
            events: Mutex::new(events),
            connections: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("api".into());
        let thread = thread.spawn(move || accept(&listener, &accepting))?;
        Ok(Self { socket: socket.to_owned(), shared, listener: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        // Wakes the thread that accepts.
        let _ = UnixStream::connect(&self.socket);
        if let Some(thread) = self.listener.take() {
            let _ = thread.join();
        }
        if let Err(error) = fs::remove_file(&self.socket) {
            log::debug!("remove {}: {error}", self.socket.display());
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
                log::warn!("local API: {error}");
                std::thread::sleep(IDLE);
            }
        }
    }
}

fn begin(mut stream: UnixStream, shared: &Arc<Shared>) {
    let _ = stream.set_write_timeout(Some(WRITE_TIMEOUT));
    if shared.connections.fetch_add(1, Ordering::AcqRel) >= CONNECTIONS {
        shared.connections.fetch_sub(1, Ordering::AcqRel);
        let text = format!("{CONNECTIONS} connections are open already");
        let _ = write_line(&mut stream, &Answer::from(ApiError::new(ErrorKind::NotReady, text)));
        return;
    }
    let own = Arc::clone(shared);
    let serve = move || {
        let _one = Counted(&own.connections);
        if let Err(error) = serve(stream, &own) {
            log::debug!("local API: {error}");
        }
    };
    if let Err(error) = std::thread::Builder::new().name("api-connection".into()).spawn(serve) {
        log::warn!("local API: start a thread: {error}");
        shared.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Counts a connection until it ends, in whatever way.
struct Counted<'a>(&'a AtomicUsize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Answers one request after the other.
fn serve(stream: UnixStream, shared: &Shared) -> io::Result<()> {
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
        let answer = match Request::parse(&line) {
            Err(error) => error.into(),
            Ok(Request::Observe(filters)) => match Filter::new(filters) {
                Err(error) => error.into(),
                Ok(filter) => return observe(reader, &mut writer, shared, filter),
            },
            Ok(request) => answer(request, shared),
        };
        write_line(&mut writer, &answer)?;
    }
}

fn answer(request: Request, shared: &Shared) -> Answer {
    let board = &shared.board;
    match request {
        Request::Status => Answer::result(&Status::of(board)),
        Request::Show(wanted) => match show(board, &wanted.what) {
            Ok(table) => Answer::Result(table),
            Err(error) => error.into(),
        },
        Request::Ready if board.is_ready() => Answer::Result(json!({})),
        Request::Ready => ApiError::new(ErrorKind::NotReady, "podgate is starting").into(),
        other => {
            let (sender, receiver) = channel();
            let events = shared.events.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let sent = events.send(Event::Request(other, sender)).is_ok();
            drop(events);
            match receiver.recv() {
                Ok(answer) if sent => answer,
                _ => ApiError::new(ErrorKind::NotReady, "podgate is ending").into(),
            }
        }
    }
}

/// Sends events until the switch or the observer ends, or there are no more to send.
fn observe(
    reader: BufReader<UnixStream>,
    writer: &mut UnixStream,
    shared: &Shared,
    filter: Filter,
) -> io::Result<()> {
    let mut peer = reader.into_inner();
    peer.set_nonblocking(false)?;
    peer.set_read_timeout(Some(Duration::from_millis(1)))?;
    let observer = shared.board.hub.observe(filter);
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

/// Whether the other side has closed; what it says meanwhile is of no interest.
fn has_left(peer: &mut UnixStream) -> bool {
    match peer.read(&mut [0; 64]) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut),
    }
}
