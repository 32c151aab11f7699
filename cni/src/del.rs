//! DEL: whatever is left of an attachment is removed, in any state, any number of times.

use std::time::Duration;

use super::config::Config;
use super::environment::Environment;
use super::error::CniError;
use super::interface;
use super::ipam::Ipam;
use linux_net::Netlink;
use local_api::{Attachment, Client};

/// How long an agent may take to let a pod go. After that the interface
/// vanishes under it, and it notices.
const PATIENCE: Duration = Duration::from_secs(5);

/// Detaches the container. Every part is tried, even if one before it failed;
/// the runtime repeats a DEL that failed.
pub(super) fn del(config: &Config, environment: &Environment) -> Result<(), CniError> {
    let attachment = environment.attachment()?;
    let released = release(config, attachment);
    let given_back = Ipam::find(config, environment).and_then(|ipam| ipam.del());
    let what = format!("detach container {}", attachment.container_id);
    released.and(given_back).map_err(|error| error.during(&what))
}

/// Tells the agent, if there is one, and removes the interface.
///
/// The agent is told first, so that it stops serving the interface before it is
/// gone, and its address is free only after both.
pub(super) fn release(config: &Config, attachment: &Attachment) -> Result<(), CniError> {
    // A failure is no reason to keep the interface: without it there is nothing to serve.
    let _ = Client::connect(&config.socket, config.timeout.min(PATIENCE))
        .and_then(|mut agent| agent.detach_pod(attachment));
    interface::delete(&mut Netlink::open()?, &config.network, attachment).map(drop)
}
