//! A network namespace without a name, in which things are tried. It ends with the trial.

use linux_net::{MacAddress, Namespace, Netlink, VethEnd, VethPair};

use crate::preflight::has;

/// The two ends of [`veth_pair`].
pub(crate) const NEAR: &str = "pgcheck0";
pub(crate) const FAR: &str = "pgcheck1";

pub(crate) const NOT_ALLOWED: &str = "not tried: a network namespace needs SYS_ADMIN";

/// The failure of a trial. A finding prints its text.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Runs `attempt` in a network namespace of its own; `None` without the capability that one needs.
pub(crate) fn run<T: Send + 'static>(
    capabilities: &[String],
    attempt: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Option<Result<T, Failure>> {
    has(capabilities, "SYS_ADMIN").then(|| Namespace::create()?.run(attempt)?)
}

/// Creates a veth pair that is up; returns the index of its far end.
pub(crate) fn veth_pair() -> Result<u32, linux_net::Error> {
    let mut netlink = Netlink::open()?;
    let end = |name: &str, last| VethEnd {
        name: name.to_owned(),
        mac: MacAddress([0x02, 0, 0, 0, 0, last]),
    };
    let (near, far) = (end(NEAR, 1), end(FAR, 2));
    let pair = VethPair { near, far, far_namespace: None, mtu: 1500 };
    netlink.create_veth(&pair)?;
    for name in ["lo", NEAR, FAR] {
        let link = netlink.link(name)?;
        netlink.set_up(link.index)?;
    }
    Ok(netlink.link(FAR)?.index)
}
