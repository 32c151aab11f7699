//! STATUS: reports whether pods can be attached now.

use super::config::Config;
use super::environment::Environment;
use super::error::{CniError, Code};
use super::ipam::Ipam;
use local_api::{Client, ClientError};

/// Queries the agent, then the IPAM plugin. Without an agent, attached pods have no network either.
pub(super) fn status(config: &Config, environment: &Environment) -> Result<(), CniError> {
    let ready = Client::connect(&config.socket, config.timeout).and_then(|mut agent| agent.ready());
    ready.map_err(|error| {
        let code = match error {
            ClientError::Refused(_) => Code::Unavailable,
            _ => Code::UnavailableAndLimited,
        };
        CniError::new(code, error.to_string())
    })?;
    let ipam = Ipam::find(config, environment)
        .map_err(|error| CniError::new(Code::Unavailable, error.message))?;
    ipam.status()
}
