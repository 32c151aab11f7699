//! DEL: removes whatever is left of an attachment, in any state, any number of times.

use std::time::Duration;

use super::config::Config;
use super::environment::Environment;
use super::error::CniError;
use super::interface;
use super::ipam::Ipam;
use linux_net::Netlink;
use local_api::{Attachment, Client};

/// Timeout of detaching at the agent. After that the interface is deleted, which the agent notices.
const PATIENCE: Duration = Duration::from_secs(5);

/// Detaches the container. Tries every part, even if an earlier one failed; the runtime repeats a
/// failed DEL.
pub(super) fn del(config: &Config, environment: &Environment) -> Result<(), CniError> {
    let attachment = environment.attachment()?;
    let released = release(config, attachment);
    let given_back = Ipam::find(config, environment).and_then(|ipam| ipam.del());
    let what = format!("detach container {}", attachment.container_id);
    released.and(given_back).map_err(|error| error.during(&what))
}

/// Detaches the pod at the agent, if it runs, and removes the interface.
///
/// The agent comes first: it stops serving the interface before that is deleted. The address is
/// freed after both.
pub(super) fn release(config: &Config, attachment: &Attachment) -> Result<(), CniError> {
    // A failure does not keep the interface: without it there is nothing to serve.
    let _ = Client::connect(&config.socket, config.timeout.min(PATIENCE))
        .and_then(|mut agent| agent.detach_pod(attachment));
    interface::delete(&mut Netlink::open()?, &config.network, attachment).map(drop)
}
