//! Configuration of the HTTPS server for remote clients.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::Faults;
use super::options::Options;

/// Listener for remote clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metrics {
    /// Its address; `None`: no listener.
    pub listen: Option<SocketAddr>,
    /// Certificate chain and key, PEM; `None`: made at the start.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

impl Metrics {
    pub(super) fn resolve(options: &Options, faults: &mut Faults) -> Self {
        let (cert, key) = (&options.metrics_cert_file, &options.metrics_key_file);
        let certificate = certificate("metrics", cert, key, faults);
        let listen = options.metrics_listen;
        if listen.is_none() && certificate.is_some() {
            faults.add("metrics-cert-file", format_args!("goes with metrics-listen"));
        }
        Self { listen, certificate }
    }
}

/// The files of a server's certificate, whose options begin with `server`: both, or none.
pub(super) fn certificate(
    server: &str,
    cert: &Option<PathBuf>,
    key: &Option<PathBuf>,
    faults: &mut Faults,
) -> Option<(PathBuf, PathBuf)> {
    let (given, missing) = match (cert, key) {
        (Some(cert), Some(key)) => return Some((cert.clone(), key.clone())),
        (None, None) => return None,
        (Some(_), None) => ("cert", "key"),
        (None, Some(_)) => ("key", "cert"),
    };
    faults
        .add(&format!("{server}-{given}-file"), format_args!("goes with {server}-{missing}-file"));
    None
}
