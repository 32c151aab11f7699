//! `/healthz`, `/readyz` and `/metrics`: as much of HTTP/1.1 (RFC 9112) as a probe or a scraper
//! needs.
//!
//! One request a connection, read within a time and a size, answered, closed. Who asks for
//! anything else gets the status code for it.

mod metrics;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::run::Board;

/// Connections at a time; one more is closed at once.
const CONNECTIONS: usize = 32;
/// How long a request may take to arrive, and an answer to be taken.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest request, head and all.
const REQUEST_BYTES: usize = 8 * 1024;

/// The listening socket; dropping it ends the server.
pub(crate) struct Server {
    address: SocketAddr,
    listener: Arc<TcpListener>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// A socket at `address`, so that a taken port is found before anything else is done.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address)
}

impl Server {
    /// Answers on `listener`.
    pub(crate) fn start(listener: TcpListener, board: Arc<Board>) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let listener = Arc::new(listener);
        let (stopped, accepted) = (Arc::clone(&stop), Arc::clone(&listener));
        let accept = move || accept(&accepted, &board, &stopped);
        let thread = std::thread::Builder::new().name("http".into()).spawn(accept)?;
        Ok(Self { address, listener, stop, thread: Some(thread) })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Wakes the thread that accepts.
        let woken = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
    }
}

fn accept(listener: &TcpListener, board: &Arc<Board>, stop: &AtomicBool) {
    let connections = Arc::new(AtomicUsize::new(0));
    loop {
        let stream = listener.accept();
        if stop.load(Ordering::Acquire) {
            return;
        }
        let Ok((stream, _)) = stream else {
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        let count = Arc::clone(&connections);
        if count.fetch_add(1, Ordering::AcqRel) >= CONNECTIONS {
            count.fetch_sub(1, Ordering::AcqRel);
            continue;
        }
        let board = Arc::clone(board);
        let serve = move || {
            if let Err(error) = serve(stream, &board) {
                log::debug!("http: {error}");
            }
            count.fetch_sub(1, Ordering::AcqRel);
        };
        if let Err(error) = std::thread::Builder::new().name("http-connection".into()).spawn(serve)
        {
            log::warn!("http: start a thread: {error}");
            connections.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

fn serve(mut stream: TcpStream, board: &Board) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let head = read_head(&mut stream)?;
    let reply = match &head {
        None => Reply::text(431, "the request is too long\n"),
        Some(head) => answer(head, board),
    };
    let with_body = head.is_none_or(|head| !head.starts_with("HEAD "));
    reply.write(&mut stream, with_body)?;
    drain(&mut stream)
}

/// Takes what the other side still sends: closing before that could cost it the answer
/// (RFC 9112, section 9.6).
fn drain(stream: &mut TcpStream) -> io::Result<()> {
    stream.shutdown(std::net::Shutdown::Write)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    let mut buffer = [0; 1024];
    let mut left = 64_usize;
    while left > 0 && stream.read(&mut buffer)? > 0 {
        left -= 1;
    }
    Ok(())
}

/// Everything up to the empty line; `None` if it is too long.
fn read_head(stream: &mut TcpStream) -> io::Result<Option<String>> {
    let deadline = Instant::now() + PATIENCE;
    let mut head = Vec::new();
    let mut buffer = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() > REQUEST_BYTES {
            return Ok(None);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => head.extend_from_slice(&buffer[..count]),
        }
    }
    Ok(Some(String::from_utf8_lossy(&head).into_owned()))
}

fn answer(head: &str, board: &Board) -> Reply {
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    let (method, target, version) = (words.next(), words.next(), words.next());
    let (Some(method), Some(target), Some("HTTP/1.1" | "HTTP/1.0")) = (method, target, version)
    else {
        return Reply::text(400, "this is no HTTP/1.1 request\n");
    };
    if !matches!(method, "GET" | "HEAD") {
        return Reply::text(405, "only GET and HEAD\n");
    }
    let path = target.split(['?', '#']).next().unwrap_or_default();
    match path {
        "/healthz" => match board.ailments().as_slice() {
            [] => Reply::text(200, "ok\n"),
            ailments => Reply::text(503, &format!("{}\n", ailments.join("\n"))),
        },
        "/readyz" => match board.ailments().as_slice() {
            [] => match board.unready() {
                None => Reply::text(200, "ok\n"),
                Some(why) => Reply::text(503, &format!("{why}\n")),
            },
            ailments => Reply::text(503, &format!("{}\n", ailments.join("\n"))),
        },
        "/metrics" => Reply { code: 200, kind: metrics::CONTENT_TYPE, body: metrics::text(board) },
        "/" => Reply::text(200, "/healthz\n/readyz\n/metrics\n"),
        _ => Reply::text(404, "there are /healthz, /readyz and /metrics\n"),
    }
}

struct Reply {
    code: u16,
    kind: &'static str,
    body: String,
}

impl Reply {
    fn text(code: u16, body: &str) -> Self {
        Self { code, kind: "text/plain; charset=utf-8", body: body.to_owned() }
    }

    fn write(&self, stream: &mut impl Write, with_body: bool) -> io::Result<()> {
        let reason = match self.code {
            200 => "OK",
            400 => "Bad Request",
            404 => "Not Found",
            405 => "Method Not Allowed",
            431 => "Request Header Fields Too Large",
            _ => "Service Unavailable",
        };
        let allow = if self.code == 405 { "Allow: GET, HEAD\r\n" } else { "" };
        let head = format!(
            "HTTP/1.1 {} {reason}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{allow}\
             Connection: close\r\n\r\n",
            self.code,
            self.kind,
            self.body.len()
        );
        let body = if with_body { self.body.as_str() } else { "" };
        stream.write_all((head + body).as_bytes())?;
        stream.flush()
    }
}
