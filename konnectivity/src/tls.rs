//! TLS for both roles: files in, configurations out.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};

use telemetry::Reloaded;
use telemetry::pem::{certificates, fault, private_key, roots};

/// Certificate, key and the authority that the other side's certificate must be from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate chain of this side, PEM.
    pub cert: Option<PathBuf>,
    /// Its key, PEM.
    pub key: Option<PathBuf>,
    /// Authorities of the peer's certificates, PEM.
    pub ca: Option<PathBuf>,
}

impl TlsFiles {
    fn paths(&self) -> Vec<PathBuf> {
        [&self.cert, &self.key, &self.ca].into_iter().flatten().cloned().collect()
    }
}

/// Negotiable versions and cipher suites.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsPolicy {
    /// Nothing below TLS 1.3.
    pub only_1_3: bool,
    /// Cipher suites of TLS 1.2 by their IANA names; empty for all that are sound.
    pub ciphers: Vec<String>,
}

/// A server's configuration, as new as its files; `what` names it in the log.
///
/// # Errors
/// Names the file that cannot be used.
pub(crate) fn server_of_files(
    what: &'static str,
    files: &TlsFiles,
    policy: &TlsPolicy,
    alpn: &'static [&'static str],
) -> Result<Reloaded<ServerConfig>, String> {
    let (files, policy) = (files.clone(), policy.clone());
    Reloaded::new(what, files.paths(), move || server(&files, &policy, alpn))
}

/// A client's configuration, as new as its files.
///
/// # Errors
/// Names the file that cannot be used.
pub(crate) fn client_of_files(
    files: &TlsFiles,
    alpn: &[String],
) -> Result<Reloaded<ClientConfig>, String> {
    let (files, alpn) = (files.clone(), alpn.to_vec());
    Reloaded::new("certificates for servers", files.paths(), move || client(&files, &alpn))
}

/// A server's configuration. With `ca` set, clients have to show a certificate.
///
/// # Errors
/// Names the file that cannot be used.
pub(crate) fn server(
    files: &TlsFiles,
    policy: &TlsPolicy,
    alpn: &[&str],
) -> Result<ServerConfig, String> {
    let (Some(cert), Some(key)) = (&files.cert, &files.key) else {
        return Err("TLS: a server needs a certificate and a key".to_owned());
    };
    let provider = provider(&policy.ciphers)?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions(policy))
        .map_err(|error| format!("TLS versions: {error}"))?;
    let builder = match &files.ca {
        None => builder.with_no_client_auth(),
        Some(ca) => {
            let roots = Arc::new(roots(ca)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
            let verifier = verifier.map_err(|error| fault(ca, error))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder
        .with_single_cert(certificates(cert)?, private_key(key)?)
        .map_err(|error| fault(cert, error))?;
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    Ok(config)
}

/// A client's configuration. Without `ca`, the system's authorities count.
///
/// # Errors
/// Names the file that cannot be used.
pub(crate) fn client(files: &TlsFiles, alpn: &[String]) -> Result<ClientConfig, String> {
    let roots = match &files.ca {
        Some(ca) => roots(ca)?,
        None => {
            let mut roots = RootCertStore::empty();
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            roots
        }
    };
    let builder = ClientConfig::builder_with_provider(provider(&[])?)
        .with_protocol_versions(versions(&TlsPolicy::default()))
        .map_err(|error| format!("TLS versions: {error}"))?
        .with_root_certificates(roots);
    let mut config = match (&files.cert, &files.key) {
        (Some(cert), Some(key)) => builder
            .with_client_auth_cert(certificates(cert)?, private_key(key)?)
            .map_err(|error| fault(cert, error))?,
        _ => builder.with_no_client_auth(),
    };
    let protocols = alpn.iter().map(String::as_str).chain(["h2"]);
    config.alpn_protocols = protocols.map(|protocol| protocol.as_bytes().to_vec()).collect();
    Ok(config)
}

/// Names of cipher suites that can be chosen, in IANA's spelling.
pub fn cipher_names() -> Vec<String> {
    let suites = rustls::crypto::ring::default_provider().cipher_suites;
    suites.iter().map(|suite| iana_name(suite.suite())).collect()
}

fn iana_name(suite: rustls::CipherSuite) -> String {
    // TLS 1.3's are called TLS13_… there and TLS_… by IANA.
    format!("{suite:?}").replacen("TLS13_", "TLS_", 1)
}

fn provider(ciphers: &[String]) -> Result<Arc<CryptoProvider>, String> {
    let mut provider = rustls::crypto::ring::default_provider();
    if ciphers.is_empty() {
        return Ok(Arc::new(provider));
    }
    let known = cipher_names();
    if let Some(unknown) = ciphers.iter().find(|name| !known.contains(name)) {
        let known = known.join(", ");
        return Err(format!("cipher suite {unknown}: unknown or not sound; there are {known}"));
    }
    provider
        .cipher_suites
        .retain(|suite| suite.tls13().is_some() || ciphers.contains(&iana_name(suite.suite())));
    Ok(Arc::new(provider))
}

fn versions(policy: &TlsPolicy) -> &'static [&'static SupportedProtocolVersion] {
    static BOTH: [&SupportedProtocolVersion; 2] =
        [&rustls::version::TLS13, &rustls::version::TLS12];
    if policy.only_1_3 { &BOTH[..1] } else { &BOTH }
}

/// Describes which side refused a certificate, if that ended the connection. `peer` names the other
/// side, such as `the server`.
pub(crate) fn refusal(peer: &str, error: &std::io::Error) -> Option<String> {
    use rustls::AlertDescription as Alert;
    match error.get_ref()?.downcast_ref::<rustls::Error>()? {
        rustls::Error::AlertReceived(alert) => {
            let why = match alert {
                Alert::UnknownCA => "it is from an authority unknown there",
                Alert::CertificateExpired => "it has expired",
                Alert::CertificateRevoked => "it is revoked",
                Alert::CertificateRequired => "there was none",
                Alert::BadCertificate
                | Alert::CertificateUnknown
                | Alert::UnsupportedCertificate
                | Alert::AccessDenied
                | Alert::DecryptError => "it is not valid there",
                _ => return None,
            };
            Some(format!("{peer} refused our certificate: {why} ({alert:?})"))
        }
        rustls::Error::InvalidCertificate(why) => {
            Some(format!("we refused the certificate of {peer}: {why}"))
        }
        rustls::Error::NoCertificatesPresented => {
            Some(format!("we refused {peer}: it showed no certificate"))
        }
        _ => None,
    }
}

/// Returns the common name in a certificate's subject (RFC 5280, section 4.1.2.6), for logs: the
/// certificate was verified before.
pub(crate) fn common_name(certificate: &[u8]) -> Option<String> {
    // The subject is the fifth or sixth element of the inner sequence; its names carry the
    // object identifier 2.5.4.3 before the text.
    let (_, certificate, _) = element(certificate)?;
    let (_, inner, _) = element(certificate)?;
    let mut rest = inner;
    let mut elements = Vec::new();
    while let Some((tag, content, after)) = element(rest) {
        elements.push((tag, content));
        rest = after;
    }
    // An explicit version comes first, if there is one.
    let first = usize::from(elements.first()?.0 == 0xa0);
    let mut names = elements.get(first + 4)?.1;
    while let Some((_, set, after)) = element(names) {
        names = after;
        let (_, pair, _) = element(set)?;
        let (_, identifier, value) = element(pair)?;
        if identifier == [0x55, 0x04, 0x03] {
            let (_, text, _) = element(value)?;
            return Some(String::from_utf8_lossy(text).into_owned());
        }
    }
    None
}

/// Tag, content and what follows (X.690, section 8.1).
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = bytes.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match *first {
        short @ ..=0x7f => (usize::from(short), rest),
        long => {
            let count = usize::from(long & 0x7f);
            let (digits, rest) = rest.split_at_checked(count)?;
            if count > 4 {
                return None;
            }
            let fold = |length, digit: &u8| length << 8 | usize::from(*digit);
            (digits.iter().fold(0, fold), rest)
        }
    };
    let (content, after) = rest.split_at_checked(length)?;
    Some((*tag, content, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_in_a_certificate() {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:masters");
        params.distinguished_name.push(rcgen::DnType::CommonName, "kube-apiserver");
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        assert_eq!(common_name(certificate.der()).as_deref(), Some("kube-apiserver"));
        for cut in 0..certificate.der().len() {
            common_name(&certificate.der()[..cut]);
        }
    }

    /// Certificate, key and authority, below a folder.
    fn files(folder: &testkit::TempDir, name: &str) -> TlsFiles {
        let write = |file: String, text: String| {
            let path = folder.path().join(file);
            std::fs::write(&path, text).unwrap();
            Some(path)
        };
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        let authority = params.self_signed(&key).unwrap().pem();
        let issuer = rcgen::Issuer::new(params, key);
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["server".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap().pem();
        TlsFiles {
            cert: write(format!("{name}.crt"), certificate),
            key: write(format!("{name}.key"), key.serialize_pem()),
            ca: write(format!("{name}-ca.crt"), authority),
        }
    }

    /// Returns the errors of client and server on a connection between them.
    async fn refusals(ours: &TlsFiles, theirs: &TlsFiles) -> [Option<String>; 2] {
        use tokio::io::AsyncReadExt;
        let client = tokio_rustls::TlsConnector::from(Arc::new(client(ours, &[]).unwrap()));
        let server = server(theirs, &TlsPolicy::default(), &["h2"]).unwrap();
        let (near, far) = tokio::io::duplex(1 << 16);
        let served = tokio::spawn(async move {
            let accepted = tokio_rustls::TlsAcceptor::from(Arc::new(server)).accept(far).await;
            accepted.err().and_then(|error| refusal("the agent", &error))
        });
        let name = rustls::pki_types::ServerName::try_from("server").unwrap();
        let error = match client.connect(name, near).await {
            Err(error) => error,
            // In TLS 1.3 the server's refusal comes after the handshake.
            Ok(mut stream) => stream.read(&mut [0]).await.unwrap_err(),
        };
        [refusal("the server", &error), served.await.unwrap()]
    }

    #[tokio::test]
    async fn a_refused_certificate_is_told_with_the_side_that_refused() {
        let folder = testkit::TempDir::new("refusal");
        let (one, other) = (files(&folder, "one"), files(&folder, "other"));
        // A client of the other authority that trusts the server's.
        let stranger = TlsFiles { ca: one.ca.clone(), ..other.clone() };
        let [client, server] = refusals(&stranger, &one).await;
        let client = client.unwrap();
        assert!(client.starts_with("the server refused our certificate: "), "{client}");
        let server = server.unwrap();
        assert!(server.starts_with("we refused the certificate of the agent: "), "{server}");
        // No certificate at all.
        let bare = TlsFiles { cert: None, key: None, ca: one.ca.clone() };
        let [client, server] = refusals(&bare, &one).await;
        let wanted = "the server refused our certificate: there was none (CertificateRequired)";
        assert_eq!(client.as_deref(), Some(wanted));
        assert_eq!(server.as_deref(), Some("we refused the agent: it showed no certificate"));
        // A client that does not trust the server.
        let wary = TlsFiles { ca: other.ca.clone(), ..one.clone() };
        let [client, server] = refusals(&wary, &one).await;
        let client = client.unwrap();
        assert!(client.starts_with("we refused the certificate of the server: "), "{client}");
        let server = server.unwrap();
        assert!(server.starts_with("the agent refused our certificate: "), "{server}");
    }

    #[test]
    fn cipher_suites_by_their_names() {
        assert!(cipher_names().contains(&"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256".to_owned()));
        let error = provider(&["TLS_RSA_WITH_RC4_128_SHA".to_owned()]).unwrap_err();
        assert!(error.to_string().contains("TLS_RSA_WITH_RC4_128_SHA"), "{error}");
    }

    #[test]
    fn faults_name_the_file() {
        let absent = TlsFiles {
            cert: Some("/nowhere/cert.pem".into()),
            key: Some("/nowhere/key.pem".into()),
            ca: None,
        };
        let error = server(&absent, &TlsPolicy::default(), &["h2"]).unwrap_err().to_string();
        assert!(error.starts_with("/nowhere/cert.pem: "), "{error}");
    }
}
