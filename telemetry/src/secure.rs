//! HTTPS for clients elsewhere: each request is authenticated and authorized before it is answered.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

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
    certificate: Certificate,
    options: TlsOptions,
    current: Mutex<Current>,
}

/// Parameters of TLS beside the server's certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// Protocol names of ALPN (RFC 7301), the preferred first; empty: none is negotiated.
    pub protocols: &'static [&'static [u8]],
    /// PEM file with the authorities of clients' certificates. A client may show a certificate; one
    /// that these did not sign ends the handshake.
    pub client_ca: Option<PathBuf>,
}

enum Certificate {
    Files(PathBuf, PathBuf),
    Made(CertificateDer<'static>, PrivatePkcs8KeyDer<'static>),
}

struct Current {
    acceptor: TlsAcceptor,
    looked: Instant,
    changed: Vec<Option<SystemTime>>,
}

/// Interval of looking at the files.
const LOOK: Duration = Duration::from_secs(10);

impl Identity {
    /// From PEM files: a chain and its key. Without files this process signs a certificate for `name`
    /// itself, which encrypts; clients cannot tell it from another one's.
    ///
    /// # Errors
    /// When none can be made, and names the file that cannot be used.
    pub fn new(
        files: Option<&(PathBuf, PathBuf)>,
        name: &str,
        options: TlsOptions,
    ) -> Result<Self, String> {
        let certificate = match files {
            Some((cert, key)) => Certificate::Files(cert.clone(), key.clone()),
            None => {
                let names = [name.to_owned(), "localhost".to_owned()];
                let made = rcgen::generate_simple_self_signed(names)
                    .map_err(|error| format!("make a certificate: {error}"))?;
                let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
                Certificate::Made(made.cert.der().clone(), key)
            }
        };
        let changed = changes(&certificate, &options);
        let acceptor = load(&certificate, &options)?;
        let current = Mutex::new(Current { acceptor, looked: Instant::now(), changed });
        Ok(Self { certificate, options, current })
    }

    /// Accepts a TLS connection.
    ///
    /// # Errors
    /// When the handshake fails or takes too long.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        match tokio::time::timeout(HANDSHAKE, self.acceptor().accept(stream)).await {
            Ok(result) => result,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    fn acceptor(&self) -> TlsAcceptor {
        // Nothing that can panic runs under this lock.
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.looked.elapsed() >= LOOK {
            current.looked = Instant::now();
            let changed = changes(&self.certificate, &self.options);
            if changed != current.changed {
                match load(&self.certificate, &self.options) {
                    Ok(acceptor) => {
                        current.acceptor = acceptor;
                        current.changed = changed;
                        tracing::info!("https: the certificates are read again");
                    }
                    Err(error) => tracing::warn!("https: {error}; the last certificates stay"),
                }
            }
        }
        current.acceptor.clone()
    }
}

/// When the files changed.
fn changes(certificate: &Certificate, options: &TlsOptions) -> Vec<Option<SystemTime>> {
    let own = match certificate {
        Certificate::Files(cert, key) => vec![cert, key],
        Certificate::Made(..) => Vec::new(),
    };
    let changed = |path: &PathBuf| std::fs::metadata(path).and_then(|it| it.modified()).ok();
    own.into_iter().chain(&options.client_ca).map(changed).collect()
}

fn load(certificate: &Certificate, options: &TlsOptions) -> Result<TlsAcceptor, String> {
    let (chain, key) = match certificate {
        Certificate::Files(cert, key) => {
            let private = PrivateKeyDer::from_pem_slice(&read(key)?);
            let private = private.map_err(|error| format!("{}: {error}", key.display()))?;
            (certificates(cert)?, private)
        }
        Certificate::Made(cert, key) => (vec![cert.clone()], key.clone_key().into()),
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = match &options.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
            let mut roots = RootCertStore::empty();
            for authority in certificates(path)? {
                roots.add(authority).map_err(|error| failed(&error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .allow_unauthenticated()
                .build();
            builder.with_client_cert_verifier(verifier.map_err(|error| failed(&error))?)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| match certificate {
        Certificate::Files(cert, _) => format!("{}: {error}", cert.display()),
        Certificate::Made(..) => error.to_string(),
    })?;
    config.alpn_protocols = options.protocols.iter().map(|name| name.to_vec()).collect();
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// The certificates in a PEM file, one at least.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    let all = all.map_err(|error| format!("{}: {error}", path.display()))?;
    match all.is_empty() {
        true => Err(format!("{}: there is no certificate in it", path.display())),
        false => Ok(all),
    }
}

/// The credential of a request, if it has one.
pub fn credential(headers: &hyper::HeaderMap) -> Option<Credential> {
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
        f.debug_struct("Identity").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Ends a TLS handshake that takes longer.
const HANDSHAKE: Duration = Duration::from_secs(5);
