//! Configuration of the HTTPS server for clients elsewhere.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::Faults;
use super::options::Options;

/// Where clients elsewhere are answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metrics {
    /// The address; `None`: they are not.
    pub listen: Option<SocketAddr>,
    /// Certificate chain and key, PEM; `None`: made at the start.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

impl Metrics {
    pub(super) fn resolve(options: &Options, faults: &mut Faults) -> Self {
        let (cert, key) = (&options.metrics_cert_file, &options.metrics_key_file);
        let certificate = match (cert, key) {
            (Some(cert), Some(key)) => Some((cert.clone(), key.clone())),
            (None, None) => None,
            (Some(_), None) => {
                faults.add("metrics-cert-file", format_args!("goes with metrics-key-file"));
                None
            }
            (None, Some(_)) => {
                faults.add("metrics-key-file", format_args!("goes with metrics-cert-file"));
                None
            }
        };
        let listen = options.metrics_listen;
        if listen.is_none() && certificate.is_some() {
            faults.add("metrics-cert-file", format_args!("goes with metrics-listen"));
        }
        Self { listen, certificate }
    }

    pub(super) fn describe(&self) -> [(&'static str, String); 3] {
        let (cert, key) = self.certificate.as_ref().map_or(Default::default(), |(cert, key)| {
            (cert.display().to_string(), key.display().to_string())
        });
        let listen = self.listen.map(|it| it.to_string()).unwrap_or_default();
        [("metrics-listen", listen), ("metrics-cert-file", cert), ("metrics-key-file", key)]
    }
}
