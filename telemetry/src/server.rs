//! The HTTP server behind `/healthz`, `/readyz` and `/metrics`.
//!
//! It has a thread of its own, so it answers whatever the rest of the process does. A connection
//! carries one request. Connections are bounded in number and time; a new one replaces the oldest,
//! so slow clients never keep out a health probe.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{
    ALLOW, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinSet};

/// Answers paths.
pub trait Pages: Send + Sync + 'static {
    /// The page at `path`; `None` answers 404.
    fn page(&self, path: &str, query: &str) -> Option<Page>;
}

/// Status code, text and media type of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// HTTP status code.
    pub code: u16,
    /// The body.
    pub text: String,
    /// The body's media type.
    pub kind: &'static str,
}

const PLAIN: &str = "text/plain; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
/// What a page may load and run: its own styles and scripts, answers of this server.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

impl Page {
    /// A page of plain text with this code.
    pub fn new(code: u16, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), kind: PLAIN }
    }

    /// A page for browsers, which may load nothing from elsewhere.
    pub fn html(code: u16, text: impl Into<String>) -> Self {
        Self { kind: HTML, ..Self::new(code, text) }
    }

    /// An answer for scripts.
    pub fn json(text: impl Into<String>) -> Self {
        Self { kind: "application/json", ..Self::new(200, text) }
    }
}

/// Connections at a time.
const CONNECTIONS: usize = 32;
/// Time for a request to arrive, and for the whole connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest request head, the least hyper takes.
const MOST_HEAD: usize = 8 * 1024;
/// Wait after a failed accept, such as for want of a file descriptor.
const PAUSE: Duration = Duration::from_millis(50);

/// A running server; dropping it ends it.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves `pages` on `listener`.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(listener: TcpListener, pages: Arc<dyn Pages>) -> io::Result<Self> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let run = move || {
            runtime.block_on(async move {
                tokio::select! {
                    result = accept(listener, pages) => {
                        if let Err(error) = result {
                            tracing::error!("http {address}: {error}");
                        }
                    }
                    _ = stopped => {}
                }
            });
        };
        let thread = std::thread::Builder::new().name("http".into()).spawn(run)?;
        Ok(Self { address, stop: Some(stop), thread: Some(thread) })
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It has no result; a panic was reported by its thread.
            let _ = thread.join();
        }
    }
}

async fn accept(listener: TcpListener, pages: Arc<dyn Pages>) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let mut connections = JoinSet::new();
    let mut oldest_first: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!("http: accept: {error}");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        oldest_first.retain(|connection| !connection.is_finished());
        if oldest_first.len() >= CONNECTIONS
            && let Some(oldest) = oldest_first.pop_front()
        {
            oldest.abort();
        }
        oldest_first.push_back(connections.spawn(serve(stream, Arc::clone(&pages))));
    }
}

async fn serve(stream: TcpStream, pages: Arc<dyn Pages>) {
    let service = service_fn(|request: Request<Incoming>| {
        let response = answer(&*pages, &request);
        async move { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(MOST_HEAD)
        .keep_alive(false)
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(PATIENCE, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!("http: {error}"),
        Err(_) => tracing::debug!("http: a client was too slow"),
    }
}

fn answer(pages: &dyn Pages, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
    let read = matches!(*request.method(), Method::GET | Method::HEAD);
    let page = match read {
        true => pages.page(path, query).unwrap_or_else(|| Page::new(404, "404 page not found\n")),
        false => Page::new(405, "only GET and HEAD\n"),
    };
    let mut response = Response::new(Full::from(page.text));
    *response.status_mut() =
        StatusCode::from_u16(page.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let kind = match path {
        "/metrics" => "text/plain; version=0.0.4; charset=utf-8",
        _ => page.kind,
    };
    if page.kind == HTML {
        let headers = response.headers_mut();
        headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    }
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    if !read {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}
