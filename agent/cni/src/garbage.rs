//! GC: removes what belongs to attachments that the runtime no longer lists.

use super::config::Config;
use super::del::release;
use super::environment::Environment;
use super::error::{CniError, Code};
use super::interface::attachment_of;
use super::ipam::Ipam;
use super::turn::Turn;
use linux_net::Netlink;

/// Removes the interfaces of this network without a valid attachment, frees their addresses, and
/// calls the IPAM plugin's GC. Tries all of it; the first failure is the error.
pub(super) fn collect(config: &Config, environment: &Environment) -> Result<(), CniError> {
    // Without the list nothing would be valid, and every pod would lose its network.
    let missing = "network configuration: no cni.dev/valid-attachments";
    let valid = config.valid.as_ref().ok_or_else(|| CniError::new(Code::Config, missing))?;
    let ipam = Ipam::find(config, environment)?;
    let links = Netlink::open()?.links()?;
    let mut result = Ok(());
    for attachment in links.iter().filter_map(|link| attachment_of(link, &config.network)) {
        if valid.contains(&attachment) {
            continue;
        }
        let what = format!("collect container {}", attachment.container_id);
        let _turn = Turn::wait(config, &attachment);
        let removed = release(config, &attachment);
        let given_back = ipam.del_forgotten(&attachment);
        result = result.and(removed.and(given_back).map_err(|error| error.during(&what)));
    }
    result.and(ipam.collect())
}
