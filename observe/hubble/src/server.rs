//! Sockets, TLS, and the authentication of clients.
//!
//! | listener | clients that it serves |
//! |---|---|
//! | a unix socket | those that the file's mode permits to connect |
//! | an address, over TLS | a client with a certificate of a known authority, or with a token that the API server reviews |
//!
//! A token comes as `authorization: Bearer`, or as the password of `Basic`, which is what `hubble` can send.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, HeaderMap};
use telemetry::{Access, Admitted, Background, Connections, Credential, Guard, accepted};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::connection::{self, Call};
use crate::grpc::{Answer, Code, Status};
use crate::service::Observer;

/// ALPN protocols: gRPC clients insist on HTTP/2.
pub const PROTOCOLS: &[&[u8]] = &[b"h2"];

/// Where the server listens.
pub enum Endpoint {
    /// A unix socket, and its file, which is removed at the end.
    Unix(UnixListener, PathBuf),
    /// An address, over TLS.
    Tls(TcpListener, Guard),
}

/// Connections at a time.
const CONNECTIONS: usize = 32;
/// A running server; dropping it ends it.
#[derive(Debug)]
pub struct Server {
    address: Option<SocketAddr>,
    socket: Option<PathBuf>,
    _thread: Background,
}

/// The client of a connection.
#[derive(Clone)]
struct Client {
    admitted: Admitted,
    /// One token is reviewed at a time: few of a client's wait before those of others. `None`: it needs no token.
    review: Option<Arc<Semaphore>>,
}

/// State shared by all connections.
struct Site {
    observer: Observer,
    /// Where the server listens, for clients.
    address: String,
    guard: Option<Guard>,
}

impl Server {
    /// Answers on `endpoint`.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(endpoint: Endpoint, observer: Observer) -> io::Result<Self> {
        match endpoint {
            Endpoint::Unix(listener, path) => {
                listener.set_nonblocking(true)?;
                let address = format!("unix://{}", path.display());
                let site = Site { observer, address, guard: None };
                let thread = Background::start("hubble", accept_unix(listener, site.into()))?;
                Ok(Self { address: None, socket: Some(path), _thread: thread })
            }
            Endpoint::Tls(listener, guard) => {
                listener.set_nonblocking(true)?;
                let address = listener.local_addr()?;
                let site = Site { observer, address: address.to_string(), guard: Some(guard) };
                let thread = Background::start("hubble", accept_tls(listener, site.into()))?;
                Ok(Self { address: Some(address), socket: None, _thread: thread })
            }
        }
    }

    /// The address it listens on, if it is no unix socket.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.socket.as_ref().map(std::fs::remove_file) {
            tracing::debug!("hubble: remove the socket: {error}");
        }
    }
}

async fn accept_unix(listener: UnixListener, site: Arc<Site>) -> io::Result<()> {
    let listener = tokio::net::UnixListener::from_std(listener)?;
    let mut connections = Connections::new(CONNECTIONS);
    loop {
        let Some((stream, _)) = accepted(listener.accept().await).await else { continue };
        connections.begin(None, |admitted| {
            admitted.set();
            serve(stream, Arc::clone(&site), Client { admitted, review: None })
        });
    }
}

async fn accept_tls(listener: TcpListener, site: Arc<Site>) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let mut connections = Connections::new(CONNECTIONS);
    loop {
        let Some((stream, client)) = accepted(listener.accept().await).await else { continue };
        connections.begin(Some(client), |admitted| begin(stream, Arc::clone(&site), admitted));
    }
}

/// Serves a connection over TLS; a certificate of a known authority admits its client.
async fn begin(stream: TcpStream, site: Arc<Site>, admitted: Admitted) {
    let Some(guard) = &site.guard else { return };
    match guard.identity.accept(stream).await {
        Ok(stream) => {
            // The handshake fails if no known authority signed it.
            let has_certificate = stream.get_ref().1.peer_certificates().is_some();
            if has_certificate {
                admitted.set();
            }
            let review = (!has_certificate).then(|| Semaphore::new(1).into());
            serve(stream, Arc::clone(&site), Client { admitted, review }).await;
        }
        Err(error) => tracing::debug!("hubble: {error}"),
    }
}

/// Serves the calls of a connection.
async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send,
    site: Arc<Site>,
    client: Client,
) {
    let answer = |call| answer(Arc::clone(&site), call, client.clone());
    if let Err(error) = connection::serve(stream, answer).await {
        tracing::debug!("hubble: {error}");
    }
}

async fn answer(site: Arc<Site>, call: Call, client: Client) -> Result<Answer, Status> {
    let Call { path, headers, body } = call;
    let called: Result<Answer, Status> = async {
        if let Some(review) = &client.review {
            // Never closed.
            let _one = review.acquire().await;
            admit(&site, &headers, &path).await?;
            client.admitted.set();
        }
        site.observer.call(&path, &body?, &site.address)
    }
    .await;
    if let Err((_, text)) = &called {
        tracing::debug!("hubble: {path}: {text}");
    }
    called
}

/// Decides by the token of a call.
async fn admit(site: &Site, headers: &HeaderMap, path: &str) -> Result<(), Status> {
    let refused = |text: &str| (Code::Unauthenticated, text.to_owned());
    let authorize = site.guard.as_ref().and_then(|it| it.authorize.as_ref());
    let authorize = authorize.ok_or_else(|| refused("a client certificate is needed"))?;
    let credential = telemetry::credential(headers).or_else(|| password(headers));
    let credential =
        credential.ok_or_else(|| refused("a client certificate or a token is needed"))?;
    match authorize.authorize(credential, path.to_owned()).await {
        Access::Granted => Ok(()),
        Access::Unauthenticated(why) => Err((Code::Unauthenticated, why)),
        Access::Denied(why) => Err((Code::PermissionDenied, why)),
        Access::Unavailable(why) => Err((Code::Unavailable, why)),
    }
}

/// The password of `authorization: Basic` (RFC 7617), as a token.
fn password(headers: &HeaderMap) -> Option<Credential> {
    let (scheme, encoded) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let text = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    let (_, password) = text.split_once(':')?;
    (!password.is_empty()).then(|| Credential::Bearer(password.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use std::time::Duration;

    use super::*;
    use crate::connection::CALLS;
    use http::Request;
    use http::header::HeaderValue;
    use observe::verdicts::EventBroker;
    use telemetry::{Authorize, Identity};

    /// Reviews that are under way, and the most that there were.
    #[derive(Clone, Default)]
    struct Slow(Arc<[AtomicUsize; 2]>);

    impl Authorize for Slow {
        fn authorize(&self, _credential: Credential, _path: String) -> telemetry::Answer<'_> {
            Box::pin(async {
                let [now, most] = &*self.0;
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(10)).await;
                now.fetch_sub(1, Ordering::SeqCst);
                Access::Unauthenticated("the token is unknown".to_owned())
            })
        }
    }

    #[tokio::test]
    async fn a_client_has_one_token_reviewed_at_a_time() {
        let slow = Slow::default();
        let identity = Identity::new(None, "node-a", telemetry::TlsOptions::default()).unwrap();
        let guard = Guard { identity, authorize: Some(Box::new(slow.clone())) };
        let observer = Observer::new(EventBroker::new("node-a", 1), "node-a");
        let site = Site { observer, address: String::new(), guard: Some(guard) };
        let (near, far) = tokio::io::duplex(1 << 16);
        let review = Some(Semaphore::new(1).into());
        let client = Client { admitted: Admitted::default(), review };
        tokio::spawn(serve(far, Arc::new(site), client));
        let (client, connection) = h2::client::handshake(near).await.unwrap();
        tokio::spawn(connection);
        let mut client = client.ready().await.unwrap();
        let calls: Vec<_> = (0..CALLS)
            .map(|n| {
                let request = Request::post("http://localhost/observer.Observer/GetNodes")
                    .header("content-type", "application/grpc")
                    .header("authorization", format!("Bearer {n}"));
                client.send_request(request.body(()).unwrap(), true).unwrap().0
            })
            .collect();
        for call in calls {
            assert_eq!(call.await.unwrap().headers()["grpc-status"], "16");
        }
        assert_eq!(slow.0[1].load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_password_is_a_token() {
        let of = |value: &'static str| {
            password(&HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(value))]))
        };
        // user:token
        assert_eq!(of("Basic dXNlcjp0b2tlbg=="), Some(Credential::Bearer("token".to_owned())));
        for text in ["Basic dXNlcjo=", "Basic !", "Bearer x", "Basic"] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
