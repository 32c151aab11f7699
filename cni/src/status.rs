//! STATUS: can pods be attached now?

use super::config::Config;
use super::environment::Environment;
use super::error::{CniError, Code};
use super::ipam::Ipam;
use local_api::{Client, ClientError};

/// Asks the agent, then the IPAM plugin. An agent that is not there also means
/// that the pods it served are cut off.
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
