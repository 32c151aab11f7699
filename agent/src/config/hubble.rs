//! Configuration of the Hubble Observer API.

use std::path::PathBuf;

use super::Faults;
use super::metrics::certificate;
use super::options::Options;
use super::text::HubbleAddress;

/// Listener of the Hubble Observer API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hubble {
    /// Its address; `None`: no listener.
    pub listen: Option<HubbleAddress>,
    /// Certificate chain and key, PEM; `None`: made at the start.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Authorities of clients' certificates, PEM.
    pub client_ca: Option<PathBuf>,
}

impl Hubble {
    pub(super) fn resolve(options: &Options, faults: &mut Faults) -> Self {
        let (cert, key) = (&options.hubble_cert_file, &options.hubble_key_file);
        let certificate = certificate("hubble", cert, key, faults);
        let (listen, client_ca) = (&options.hubble_listen, &options.hubble_client_ca_file);
        if !matches!(listen, Some(HubbleAddress::Tls(_))) {
            let needed = format_args!("goes with an address in hubble-listen");
            if certificate.is_some() {
                faults.add("hubble-cert-file", needed);
            }
            if client_ca.is_some() {
                faults.add("hubble-client-ca-file", needed);
            }
        }
        Self { listen: listen.clone(), certificate, client_ca: client_ca.clone() }
    }
}
