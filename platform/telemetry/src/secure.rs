//! HTTPS for remote clients: each request is authenticated and authorized before it is answered.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::pem;
use crate::reload::Reloaded;

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

/// Result of authorizing a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// The user may read the page.
    Granted,
    /// The token is not valid (401).
    Unauthenticated(String),
    /// The user may not (403).
    Denied(String),
    /// Authorization is unavailable (503).
    Unavailable(String),
}

/// The answer of [`Authorize`].
pub type Answer<'a> = Pin<Box<dyn Future<Output = Access> + Send + 'a>>;

/// Decides about requests; runs on the server's tokio runtime.
pub trait Authorize: Send + Sync + 'static {
    /// Returns whether the owner of the credential may read the page at `path`.
    fn authorize(&self, credential: Credential, path: String) -> Answer<'_>;
}

/// Certificate and key of a server: files, read again when they change, or made for this process.
#[derive(Debug)]
pub struct Identity(Reloaded<ServerConfig>);

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

impl Identity {
    /// From PEM files: a chain and its key. Without files this process signs a certificate for `name`
    /// itself, which encrypts; clients cannot tell it from another one's.
    ///
    /// # Errors
    /// Fails if none can be made, and names the file that cannot be used.
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
        let own = files.into_iter().flat_map(|(cert, key)| [cert, key]);
        let watched: Vec<_> = own.chain(&options.client_ca).cloned().collect();
        Reloaded::new("https", watched, move || load(&certificate, &options)).map(Self)
    }

    /// Accepts a TLS connection.
    ///
    /// # Errors
    /// Fails if the handshake fails or takes too long.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        match tokio::time::timeout(HANDSHAKE, TlsAcceptor::from(self.0.current()).accept(stream))
            .await
        {
            Ok(result) => result,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

fn load(certificate: &Certificate, options: &TlsOptions) -> Result<ServerConfig, String> {
    let (chain, key) = match certificate {
        Certificate::Files(cert, key) => (pem::certificates(cert)?, pem::private_key(key)?),
        Certificate::Made(cert, key) => (vec![cert.clone()], key.clone_key().into()),
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = match &options.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let roots = Arc::new(pem::roots(path)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider)
                .allow_unauthenticated()
                .build();
            builder.with_client_cert_verifier(verifier.map_err(|error| pem::fault(path, error))?)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| match certificate {
        Certificate::Files(cert, _) => pem::fault(cert, error),
        Certificate::Made(..) => error.to_string(),
    })?;
    config.alpn_protocols = options.protocols.iter().map(|name| name.to_vec()).collect();
    Ok(config)
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

/// Ends a TLS handshake that takes longer.
const HANDSHAKE: Duration = Duration::from_secs(5);
