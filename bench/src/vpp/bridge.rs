//! VPP's bridge between AF_XDP ports.

use std::path::Path;

use super::{Result, Vpp};

/// Starts a bridge between two interfaces of a namespace, the second of which is behind an ACL. That
/// port looks up a session for each packet, in both directions, as Podgate does; what begins behind it is
/// refused.
pub fn bridge(program: &Path, namespace: &str, interfaces: [&str; 2], acl: &str) -> Result<Vpp> {
    let mut vpp = Vpp::start(program, &["acl", "af_xdp"], 256, "")?;
    for name in interfaces {
        vpp.tell(&format!(
            "create interface af_xdp host-if {name} name {name} netns {namespace}
             set interface l2 bridge {name} 1
             set interface state {name} up"
        ))?;
    }
    let (to_pod, from_pod) = (vpp.add_acl(acl)?, vpp.add_acl("deny src 0.0.0.0/0")?);
    let receiver = interfaces[1];
    vpp.tell(&format!(
        "set acl-plugin interface {receiver} output acl {to_pod}
         set acl-plugin interface {receiver} input acl {from_pod}"
    ))?;
    Ok(vpp)
}
