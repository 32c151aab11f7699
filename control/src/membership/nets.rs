//! Networks with exceptions.

use std::net::IpAddr;

use ipnet::IpNet;

/// The networks of a peer set, each with its exceptions.
pub(crate) type Nets = Vec<(IpNet, Vec<IpNet>)>;

/// One address as a network without exceptions.
pub(super) fn host(address: IpAddr) -> (IpNet, Vec<IpNet>) {
    (IpNet::from(address), Vec::new())
}
