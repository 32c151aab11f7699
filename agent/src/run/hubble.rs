//! Starts the server of the Hubble Observer API.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use ::hubble::{Endpoint, Observer, Server};
use telemetry::{Authorize, Guard, Identity, TlsOptions};

use super::error::StartError;
use super::http::Reviews;
use super::shared_status::SharedStatus;
use super::socket;
use crate::config::{Config, HubbleAddress};

/// Starts the server, if one is configured.
///
/// # Errors
/// Names what cannot be used.
pub(super) fn start(shared: &Arc<SharedStatus>) -> Result<Option<Server>, StartError> {
    let config = &shared.config;
    let Some(address) = &config.hubble.listen else { return Ok(None) };
    let failed = |error| StartError::Failed(format!("hubble-listen: {address}: {error}"));
    let endpoint = match address {
        HubbleAddress::Unix(path) => {
            let listener = socket::listen(path).map_err(|error| failed(explained(error, config)));
            Endpoint::Unix(listener?, path.clone())
        }
        HubbleAddress::Tls(address) => {
            let guard = guard(config).map_err(StartError::Input)?;
            Endpoint::Tls(TcpListener::bind(address).map_err(failed)?, guard)
        }
    };
    let observer = Observer::new(Arc::clone(&shared.broker), &config.node_name);
    Server::start(endpoint, observer).map(Some).map_err(failed)
}

/// Names the folders that the switch may write to, where a socket is in none of them.
fn explained(error: io::Error, config: &Config) -> io::Error {
    if error.kind() != io::ErrorKind::PermissionDenied {
        return error;
    }
    let (socket, state) = (config.socket.parent(), Some(config.state_dir.as_path()));
    let mut folders: Vec<String> =
        [socket, state].into_iter().flatten().map(|it| it.display().to_string()).collect();
    folders.dedup();
    let folders = folders.join(" or ");
    io::Error::new(error.kind(), format!("{error}; the switch makes sockets below {folders} alone"))
}

/// Admission to an address: by certificate, by token, or by either.
fn guard(config: &Config) -> Result<Guard, String> {
    let hubble = &config.hubble;
    if hubble.client_ca.is_none() && config.api_server.is_none() {
        return Err("hubble-listen: needs hubble-client-ca-file, or an API server, which reviews \
                    the clients' tokens"
            .to_owned());
    }
    let options =
        TlsOptions { protocols: ::hubble::server::PROTOCOLS, client_ca: hubble.client_ca.clone() };
    let identity = Identity::new(hubble.certificate.as_ref(), &config.node_name, options);
    let reviews = |access| Box::new(Reviews::new(access, &config.node_name)) as Box<dyn Authorize>;
    Ok(Guard {
        identity: identity.map_err(|error| format!("hubble-listen: {error}"))?,
        authorize: config.api_server.clone().map(reviews),
    })
}
