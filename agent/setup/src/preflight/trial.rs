//! A network namespace without a name, in which things are tried. It ends with the trial.

use linux_net::{MacAddress, Namespace, Netlink, VethEnd, VethPair};

use crate::preflight::has;

/// The two ends of [`veth_pair`].
pub(crate) const NEAR: &str = "pgcheck0";
pub(crate) const FAR: &str = "pgcheck1";

pub(crate) const NOT_ALLOWED: &str = "not tried: a network namespace needs SYS_ADMIN";

/// Runs `attempt` in a network namespace of its own; `None` without the capability that one needs.
pub(crate) fn run<T: Send + 'static>(
    capabilities: &[String],
    attempt: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Option<Result<T, String>> {
    let run = || {
        let namespace = Namespace::create().map_err(|error| error.to_string())?;
        namespace.run(attempt).map_err(|error| error.to_string()).flatten()
    };
    has(capabilities, "SYS_ADMIN").then(run)
}

/// Creates a veth pair that is up; returns the index of its far end.
pub(crate) fn veth_pair() -> Result<u32, String> {
    let words = |error: linux_net::Error| error.to_string();
    let mut netlink = Netlink::open().map_err(words)?;
    let end = |name: &str, last| VethEnd {
        name: name.to_owned(),
        mac: MacAddress([0x02, 0, 0, 0, 0, last]),
    };
    let (near, far) = (end(NEAR, 1), end(FAR, 2));
    let pair = VethPair { near, far, far_namespace: None, mtu: 1500 };
    netlink.create_veth(&pair).map_err(words)?;
    for name in ["lo", NEAR, FAR] {
        let link = netlink.link(name).map_err(words)?;
        netlink.set_up(link.index).map_err(words)?;
    }
    Ok(netlink.link(FAR).map_err(words)?.index)
}
