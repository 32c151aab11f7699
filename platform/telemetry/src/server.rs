//! The HTTP server behind `/healthz`, `/readyz` and `/metrics`.
//!
//! It has a thread of its own, so it answers whatever the rest of the process does. A connection
//! carries one request. Connections are bounded in number and time; a new one replaces the oldest of
//! the network with most of them, so slow clients never keep out a health probe.
//!
//! Clients call it by an address, `localhost`, or a name that its pages know ([`Pages::is_called`]).
//!
//! With a [`Guard`] it speaks TLS and answers only clients that may read a page; a new connection
//! then replaces none that was let in.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{
    ALLOW, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderValue, X_CONTENT_TYPE_OPTIONS,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::background::Background;
use crate::body::{Content, FEEDS};
use crate::connections::{Admitted, Connections, accepted};
use crate::page::{Page, Pages, Post};
use crate::secure::{self, Access, Authorize, Identity};

/// TLS, and the check of each request.
pub struct Guard {
    /// The server's certificate, and the authorities of clients' certificates.
    pub identity: Identity,
    /// Decides about credentials; `None`: HTTP answers every client, gRPC those with a certificate.
    pub authorize: Option<Box<dyn Authorize>>,
}

/// Content-Security-Policy of pages: own styles and scripts, answers of this server.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// Connections at a time.
const CONNECTIONS: usize = 32;
/// Time for a request to arrive, and for the whole connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest request head, the minimum that hyper accepts.
const MOST_HEAD: usize = 8 * 1024;
/// The same where a guard asks others about each request.
const GUARDED_PATIENCE: Duration = Duration::from_secs(20);
/// Longest body of a request: an API server sends two objects, each of at most 3 MiB.
const MOST_BODY: usize = 8 << 20;
/// Posts that are answered at a time: their threads go on when the client does not wait, and keep
/// their bodies.
const POSTS: usize = 16;

/// A running server; dropping it ends it.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    _thread: Background,
}

impl Server {
    /// Serves `pages` on `listener`.
    ///
    /// # Errors
    /// Fails if the thread cannot be started.
    pub fn start(listener: TcpListener, pages: Arc<dyn Pages>) -> io::Result<Self> {
        Self::launch(listener, pages, None, "http")
    }

    /// Serves `pages` on `listener` over TLS, to clients that `guard` lets in.
    ///
    /// # Errors
    /// Fails if the thread cannot be started.
    pub fn start_guarded(
        listener: TcpListener,
        pages: Arc<dyn Pages>,
        guard: Guard,
    ) -> io::Result<Self> {
        Self::launch(listener, pages, Some(guard), "https")
    }

    fn launch(
        listener: TcpListener,
        pages: Arc<dyn Pages>,
        guard: Option<Guard>,
        name: &'static str,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let feeds = Arc::new(Semaphore::new(FEEDS));
        let posts = Arc::new(Semaphore::new(POSTS));
        let site = Arc::new(Site { pages, guard, feeds, posts });
        let thread = Background::start(name, accept(listener, site))?;
        Ok(Self { address, _thread: thread })
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// The pages, and the check of each request.
struct Site {
    pages: Arc<dyn Pages>,
    guard: Option<Guard>,
    feeds: Arc<Semaphore>,
    posts: Arc<Semaphore>,
}

async fn accept(listener: TcpListener, site: Arc<Site>) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let mut connections = Connections::new(CONNECTIONS);
    loop {
        let Some((stream, client)) = accepted(listener.accept().await).await else { continue };
        connections.begin(Some(client), |admitted| begin(stream, Arc::clone(&site), admitted));
    }
}

async fn begin(stream: TcpStream, site: Arc<Site>, admitted: Admitted) {
    match &site.guard {
        None => serve(stream, PATIENCE, &site, &admitted).await,
        Some(guard) => match guard.identity.accept(stream).await {
            Ok(stream) => serve(stream, GUARDED_PATIENCE, &site, &admitted).await,
            Err(error) => tracing::debug!("https: {error}"),
        },
    }
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    patience: Duration,
    site: &Site,
    admitted: &Admitted,
) {
    let is_feeding = AtomicBool::new(false);
    let service = service_fn(|request: Request<Incoming>| {
        let is_feeding = &is_feeding;
        async move { Ok::<_, Infallible>(answer(site, request, admitted, is_feeding).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(MOST_HEAD)
        .keep_alive(false)
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    loop {
        match tokio::time::timeout(patience, &mut connection).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!("http: {error}"),
            // Lines come as long as the client wants them.
            Err(_) if is_feeding.load(Ordering::Acquire) => continue,
            Err(_) => tracing::debug!("http: a client was too slow"),
        }
        return;
    }
}

/// The name in a `Host` header, without its port, if it is neither an address nor `localhost`.
fn foreign_name(host: &str) -> Option<&str> {
    let without_port = |(name, port): (_, &str)| port.parse::<u16>().is_ok().then_some(name);
    let name = host.rsplit_once(':').and_then(without_port).unwrap_or(host);
    let is_address = name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    (!is_address && !name.eq_ignore_ascii_case("localhost")).then_some(name)
}

/// Authorizes the client; returns the page of a refusal.
async fn admit(site: &Site, request: &Request<Incoming>) -> Result<(), Page> {
    let Some(guard) = &site.guard else {
        // HTTP/1.0 has none, and browsers do not speak it.
        let Some(host) = request.headers().get(HOST) else { return Ok(()) };
        let text = String::from_utf8_lossy(host.as_bytes());
        return match foreign_name(&text) {
            Some(name) if !site.pages.is_called(name, request.uri().path()) => {
                let text = format!("this server is not called '{}'\n", name.escape_debug());
                Err(Page::new(421, text))
            }
            _ => Ok(()),
        };
    };
    let Some(authorize) = &guard.authorize else { return Ok(()) };
    let Some(credential) = secure::credential(request.headers()) else {
        return Err(Page::new(401, "a bearer token is needed\n"));
    };
    let path = request.uri().path().to_owned();
    match authorize.authorize(credential, path).await {
        Access::Granted => Ok(()),
        Access::Unauthenticated(why) => Err(Page::new(401, why + "\n")),
        Access::Denied(why) => Err(Page::new(403, why + "\n")),
        Access::Unavailable(why) => Err(Page::new(503, why + "\n")),
    }
}

/// Passes the body of a request on, when it is its turn.
async fn posted(post: Post, body: Incoming, turns: Arc<Semaphore>) -> Page {
    let body = match Limited::new(body, MOST_BODY).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return Page::new(400, format!("body: {error}\n")),
    };
    let Ok(turn) = turns.acquire_owned().await else { return Page::new(503, "ends\n") };
    let answer = move || {
        let _turn = turn;
        post(&body)
    };
    let answered = tokio::task::spawn_blocking(answer).await;
    answered.unwrap_or_else(|error| Page::new(500, format!("{error}\n")))
}

async fn answer(
    site: &Site,
    request: Request<Incoming>,
    admitted: &Admitted,
    is_feeding: &AtomicBool,
) -> Response<Content> {
    let uri = request.uri().clone();
    let (path, query) = (uri.path(), uri.query().unwrap_or_default());
    let is_get = *request.method() == Method::GET;
    let read = is_get || *request.method() == Method::HEAD;
    let post = (*request.method() == Method::POST).then(|| site.pages.post(path)).flatten();
    let page = match (admit(site, &request).await, post) {
        (Err(refusal), _) => refusal,
        (Ok(()), Some(post)) => posted(post, request.into_body(), Arc::clone(&site.posts)).await,
        (Ok(()), None) => {
            if site.guard.is_some() {
                admitted.set();
            }
            let feed = site.pages.feed(path, query).filter(|_| is_get);
            match feed {
                Some(Ok(feed)) => match Content::of_feed(feed, &site.feeds) {
                    Ok(content) => {
                        is_feeding.store(true, Ordering::Release);
                        let mut response = Response::new(content);
                        let kind = HeaderValue::from_static("application/x-ndjson");
                        response.headers_mut().insert(CONTENT_TYPE, kind);
                        return response;
                    }
                    Err(refusal) => refusal,
                },
                Some(Err(refusal)) => refusal,
                None if read => {
                    let page = site.pages.page(path, query);
                    page.unwrap_or_else(|| Page::new(404, "404 page not found\n"))
                }
                None => Page::new(405, "only GET and HEAD\n"),
            }
        }
    };
    let kind = match path {
        "/metrics" => "text/plain; version=0.0.4; charset=utf-8",
        _ => page.kind,
    };
    let code = StatusCode::from_u16(page.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let is_html = page.is_html();
    let mut response = Response::new(Content::Page(Full::from(page.text)));
    *response.status_mut() = code;
    if is_html {
        let headers = response.headers_mut();
        headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    }
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    if code == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}
