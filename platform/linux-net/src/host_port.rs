//! The host port: the link between the switch and the node's own kernel.
//!
//! ```text
//!   switch ══ AF_XDP ══ podgate0 ────veth──── podgate-host ── the kernel: kubelet, routes out
//!                       (no address)          (gateway address, routes to the pods)
//! ```
//!
//! To the kernel every pod is a neighbour on `podgate-host`: the routes have no next hop, and the
//! switch answers ARP and ND for each address behind it. The pair outlives the agent, for the next
//! start. Until then frames are dropped, since `podgate0` itself has no address, no ARP and no IPv6.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

use super::Link;
use super::address::LinkAddress;
use super::error::Error;
use super::netlink::Netlink;
use super::offload::{switch_off_segmentation, switch_off_towards_switch};
use super::route::Route;
use super::sysctl::{self, Family};

/// Name of the switch's end.
pub const SWITCH_END: &str = "podgate0";
/// Name of the kernel's end.
pub const KERNEL_END: &str = "podgate-host";
/// The kernel's address on the host port where the node has no pod
/// network of its own (RFC 3927: it is never routed).
pub const FALLBACK_GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);

/// The desired state of the host port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPortConfig {
    /// Name of the switch's end.
    pub switch_interface: String,
    /// Name of the kernel's end.
    pub host_interface: String,
    /// Largest packet in bytes, without the Ethernet header.
    pub mtu: u32,
    /// The kernel's addresses on it, at most one a family in practice: what pods
    /// see as the source of packets from their node. See [`gateways`].
    pub gateways: Vec<IpAddr>,
    /// Networks and single addresses of pods, routed to the switch.
    pub routes: Vec<IpNet>,
    /// The node's addresses. A process without a bound address sends from the first one of
    /// the family that the kernel has, else from the gateway's.
    pub node_addresses: Vec<IpAddr>,
    /// Those of `routes` where such a process sends from the gateway's address anyway.
    pub from_gateway: Vec<IpNet>,
}

impl Default for HostPortConfig {
    fn default() -> Self {
        Self {
            switch_interface: SWITCH_END.to_owned(),
            host_interface: KERNEL_END.to_owned(),
            mtu: 1500,
            gateways: gateways(&[]),
            routes: Vec::new(),
            node_addresses: Vec::new(),
            from_gateway: Vec::new(),
        }
    }
}

/// The host port as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    /// The switch's end; a new one is down until the switch serves it.
    pub switch: Link,
    /// The kernel's end; it is up.
    pub host: Link,
    /// Errors about addresses, routes and settings that the kernel refused to change; all others are as
    /// configured.
    pub refused: Vec<String>,
}

/// The gateway addresses that follow from the node's pod networks: the
/// first host address of each, or [`FALLBACK_GATEWAY`] if there are none.
pub fn gateways(pod_networks: &[IpNet]) -> Vec<IpAddr> {
    if pod_networks.is_empty() {
        return vec![IpAddr::V4(FALLBACK_GATEWAY)];
    }
    pod_networks.iter().filter_map(|network| network.hosts().next()).map(gateway).collect()
}

/// IPv6 counts the network's own address among its hosts; it is the
/// subnet-router anycast address (RFC 4291, section 2.6.1) and not ours to take.
fn gateway(first: IpAddr) -> IpAddr {
    match first {
        IpAddr::V4(_) => first,
        IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) | 1).into()),
    }
}

/// Creates the host port, or brings the existing one into this state: removes addresses and routes
/// on it that are not in `config`.
///
/// Acts in the calling thread's network namespace. Calling it again with the same configuration changes nothing. An
/// address or route that the kernel refuses stops no other ([`HostPort::refused`]).
///
/// # Errors
/// Fails if the pair cannot be made or set up, or an interface of one of the names exists
/// that is not the other one's peer.
pub fn set_up(config: &HostPortConfig) -> Result<HostPort, Error> {
    let mut netlink = Netlink::open()?;
    let names = [config.switch_interface.as_str(), &config.host_interface];
    let [switch, host] = netlink.own_pair("host port", names, 1, config.mtu)?;
    close_to_the_kernel(&config.switch_interface)?;
    netlink.switch_off_arp(switch.index)?;
    switch_off_segmentation(&config.switch_interface)?;
    switch_off_towards_switch(&config.host_interface, config.mtu)?;
    let mut results = Vec::new();
    for link in [&switch, &host] {
        if link.mtu != config.mtu {
            results.push(netlink.set_mtu(link.index, config.mtu));
        }
    }
    // The link has no other host, and duplicate address detection would delay the first packets.
    for setting in ["accept_ra", "accept_dad"] {
        results.push(sysctl::set_if_present(Family::V6, &config.host_interface, setting, "0"));
    }
    results.push(netlink.put_queue(host.index));
    netlink.set_up(host.index)?;
    let mut refused: Vec<Error> = results.into_iter().filter_map(Result::err).collect();
    refused.extend(addresses(&mut netlink, host.index, &config.gateways)?);
    refused.extend(routes(&mut netlink, host.index, config)?);
    Ok(HostPort {
        switch: netlink.link(&config.switch_interface)?,
        host: netlink.link(&config.host_interface)?,
        refused: refused.iter().map(Error::to_string).collect(),
    })
}

/// Deletes the host port; a missing one is no error.
///
/// # Errors
/// Fails if the kernel refuses.
pub fn remove(config: &HostPortConfig) -> Result<(), Error> {
    let mut netlink = Netlink::open()?;
    let Some(link) = netlink.find_link(&config.host_interface)? else { return Ok(()) };
    match netlink.delete_link(link.index) {
        Err(error) if error.is_not_found() => Ok(()),
        result => result,
    }
}

/// Disables the kernel's stack on an interface that only the switch may read: frames that reach the
/// kernel, while no switch serves the interface, are not answered, routed or forwarded.
///
/// # Errors
/// Names the setting that cannot be written.
pub fn close_to_the_kernel(interface: &str) -> Result<(), Error> {
    sysctl::set_if_present(Family::V6, interface, "disable_ipv6", "1")?;
    sysctl::set(Family::V4, interface, "forwarding", "0")?;
    // Drops sources without a route back through this interface, which no source has.
    sysctl::set(Family::V4, interface, "rp_filter", "1")?;
    // Never answer for addresses of other interfaces.
    sysctl::set(Family::V4, interface, "arp_ignore", "8")?;
    sysctl::set(Family::V4, interface, "proxy_arp", "0")
}

/// Returns what the kernel refused.
fn addresses(netlink: &mut Netlink, host: u32, gateways: &[IpAddr]) -> Result<Vec<Error>, Error> {
    let wanted: Vec<IpNet> = gateways.iter().copied().map(IpNet::from).collect();
    let present = netlink.addresses()?.into_iter().filter(|own| own.link == host);
    // The kernel's own link-local address, which neighbour discovery needs.
    let is_kernels =
        |own: &IpNet| matches!(own, IpNet::V6(v6) if v6.addr().is_unicast_link_local());
    // One that another program added in another way may stay tentative for ever: it is added anew.
    let is_right =
        |own: &LinkAddress| wanted.contains(&own.address) && own.peer.is_none() && !own.tentative;
    let (right, extra): (Vec<_>, Vec<_>) =
        present.filter(|own| !is_kernels(&own.address)).partition(is_right);
    let mut results: Vec<_> =
        extra.iter().map(|own| unless_gone(netlink.delete_address(own))).collect();
    let missing = wanted.iter().filter(|own| right.iter().all(|it| it.address != **own));
    results.extend(missing.map(|own| netlink.add_address(host, *own)));
    Ok(results.into_iter().filter_map(Result::err).collect())
}

/// Treats a deletion of a missing object as done: with an address or interface the kernel also deletes its dependants.
fn unless_gone(deleted: Result<(), Error>) -> Result<(), Error> {
    deleted.or_else(|error| if error.is_not_found() { Ok(()) } else { Err(error) })
}

/// Returns what the kernel refused.
fn routes(netlink: &mut Netlink, host: u32, config: &HostPortConfig) -> Result<Vec<Error>, Error> {
    let usable = netlink.addresses()?.into_iter().filter(|own| !own.tentative);
    let present: Vec<IpAddr> = usable.map(|own| own.address.addr()).collect();
    let known: Vec<IpAddr> =
        config.node_addresses.iter().copied().filter(|own| present.contains(own)).collect();
    let wanted: Vec<Route> = config
        .routes
        .iter()
        .map(|network| {
            let v4 = network.addr().is_ipv4();
            let known = if config.from_gateway.contains(network) { &[][..] } else { &known[..] };
            let mut sources = known.iter().chain(&config.gateways).copied();
            let source = sources.find(|address| address.is_ipv4() == v4);
            Route { source, ..Route::direct(network.trunc(), host) }
        })
        .collect();
    let present: Vec<Route> = netlink
        .routes()?
        .into_iter()
        .filter(|route| route.link == host && route.gateway.is_none())
        .filter(|route| !route.is_kernels())
        .collect();
    let is_wanted = |present: &Route| wanted.iter().any(|it| it.destination == present.destination);
    let extra = present.iter().filter(|route| !is_wanted(route));
    let mut results: Vec<_> = extra.map(|route| unless_gone(netlink.delete_route(route))).collect();
    let missing = wanted.iter().filter(|route| !present.contains(route));
    results.extend(missing.map(|route| netlink.put_route(route)));
    Ok(results.into_iter().filter_map(Result::err).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateways_follow_from_the_pod_networks() {
        let cases: [(&[&str], &[&str]); 4] = [
            (&[], &["169.254.1.1"]),
            (&["10.1.4.0/24"], &["10.1.4.1"]),
            (&["10.1.4.0/24", "fd00:1:4::/64"], &["10.1.4.1", "fd00:1:4::1"]),
            (&["10.1.4.9/32"], &["10.1.4.9"]),
        ];
        for (networks, expected) in cases {
            let networks: Vec<IpNet> = networks.iter().map(|n| n.parse().unwrap()).collect();
            let expected: Vec<IpAddr> = expected.iter().map(|a| a.parse().unwrap()).collect();
            assert_eq!(gateways(&networks), expected, "{networks:?}");
        }
    }
}
