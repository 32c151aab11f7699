//! HTTPS for clients elsewhere: each request is authenticated and authorized before it is answered.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::TlsAcceptor;

/// Identity of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// The token of the header `Authorization: Bearer`.
    Bearer(String),
    /// The token of the header [`FORWARDED`], which a proxy passes on where it takes the other one
    /// for itself.
    Forwarded(String),
}

/// The header of [`Credential::Forwarded`].
pub const FORWARDED: &str = "x-podgate-authorization";

/// Whether a client may have a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// It may.
    Granted,
    /// The token is not valid (401).
    Unauthenticated(String),
    /// The user may not (403).
    Denied(String),
    /// It could not be found out (503).
    Unavailable(String),
}

/// The answer of [`Authorize`].
pub type Answer<'a> = Pin<Box<dyn Future<Output = Access> + Send + 'a>>;

/// Decides about requests; runs on the server's tokio runtime.
pub trait Authorize: Send + Sync + 'static {
    /// Whether the owner of the credential may read the page at `path`.
    fn authorize(&self, credential: Credential, path: String) -> Answer<'_>;
}

/// Certificate and key of a server: files, read again when they change, or made for this process.
pub struct Identity {
    files: Option<(PathBuf, PathBuf)>,
    current: Mutex<Current>,
}

struct Current {
    acceptor: TlsAcceptor,
    looked: Instant,
    changed: Vec<Option<SystemTime>>,
}

/// Interval of looking at the files.
const LOOK: Duration = Duration::from_secs(10);

impl Identity {
    /// From PEM files: a chain and its key.
    ///
    /// # Errors
    /// Names the file that cannot be used.
    pub fn of_files(cert: &Path, key: &Path) -> Result<Self, String> {
        let acceptor = TlsAcceptor::from(of_files(cert, key)?);
        let files = (cert.to_owned(), key.to_owned());
        let changed = changes(&files);
        let current = Current { acceptor, looked: Instant::now(), changed };
        Ok(Self { files: Some(files), current: Mutex::new(current) })
    }

    /// A certificate for `name` that this process signs itself. It encrypts; clients cannot tell it
    /// from another one's.
    ///
    /// # Errors
    /// When none can be made.
    pub fn self_signed(name: &str) -> Result<Self, String> {
        let made = rcgen::generate_simple_self_signed([name.to_owned(), "localhost".to_owned()]);
        let made = made.map_err(|error| format!("make a certificate: {error}"))?;
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let config = config(vec![made.cert.der().clone()], key.into())?;
        let acceptor = TlsAcceptor::from(config);
        let current = Current { acceptor, looked: Instant::now(), changed: Vec::new() };
        Ok(Self { files: None, current: Mutex::new(current) })
    }

    /// Accepts the next connection.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        // Nothing that can panic runs under this lock.
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(files) = &self.files
            && current.looked.elapsed() >= LOOK
        {
            current.looked = Instant::now();
            let changed = changes(files);
            if changed != current.changed {
                match of_files(&files.0, &files.1) {
                    Ok(config) => {
                        current.acceptor = TlsAcceptor::from(config);
                        current.changed = changed;
                        tracing::info!("https: {} is read again", files.0.display());
                    }
                    Err(error) => tracing::warn!("https: {error}; the last certificate stays"),
                }
            }
        }
        current.acceptor.clone()
    }
}

fn changes((cert, key): &(PathBuf, PathBuf)) -> Vec<Option<SystemTime>> {
    let changed = |path: &PathBuf| std::fs::metadata(path).and_then(|it| it.modified()).ok();
    vec![changed(cert), changed(key)]
}

fn of_files(cert: &Path, key: &Path) -> Result<Arc<ServerConfig>, String> {
    let failed =
        |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read(cert).map_err(|error| failed(cert, &error))?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let chain = chain.map_err(|error| failed(cert, &error))?;
    if chain.is_empty() {
        return Err(failed(cert, &"there is no certificate in it"));
    }
    let text = std::fs::read(key).map_err(|error| failed(key, &error))?;
    let private = PrivateKeyDer::from_pem_slice(&text).map_err(|error| failed(key, &error))?;
    config(chain, private).map_err(|error| failed(cert, &error))
}

fn config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ServerConfig>, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| error.to_string())?.with_no_client_auth();
    let config = builder.with_single_cert(chain, key).map_err(|error| error.to_string())?;
    Ok(Arc::new(config))
}

/// The credential of a request, if it has one.
pub(crate) fn credential(headers: &hyper::HeaderMap) -> Option<Credential> {
    let token = |name: &str| {
        let (scheme, token) = headers.get(name)?.to_str().ok()?.split_once(' ')?;
        let is_token = scheme.eq_ignore_ascii_case("bearer") && !token.trim().is_empty();
        is_token.then(|| token.trim().to_owned())
    };
    let forwarded = token(FORWARDED).map(Credential::Forwarded);
    forwarded.or_else(|| token("authorization").map(Credential::Bearer))
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").field("files", &self.files).finish_non_exhaustive()
    }
}

/// Ends a TLS handshake that takes longer.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(5);

/// Accepts a TLS connection.
pub(crate) async fn accept(
    acceptor: TlsAcceptor,
    stream: tokio::net::TcpStream,
) -> io::Result<tokio_rustls::server::TlsStream<tokio::net::TcpStream>> {
    match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
        Ok(result) => result,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}
