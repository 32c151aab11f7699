//! Certificates and keys out of PEM files; errors name the file.

use std::fmt::Display;
use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The certificates in a file, one at least.
///
/// # Errors
/// Names the file.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match found {
        Ok(found) if found.is_empty() => Err(fault(path, "there is no certificate in it")),
        found => found.map_err(|error| fault(path, error)),
    }
}

/// The key in a file.
///
/// # Errors
/// Names the file.
pub fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| fault(path, error))
}

/// The authorities in a file, one at least.
///
/// # Errors
/// Names the file.
pub fn roots(path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| fault(path, error))?;
    }
    Ok(roots)
}

/// The error text of a file.
pub fn fault(path: &Path, why: impl Display) -> String {
    format!("{}: {why}", path.display())
}
