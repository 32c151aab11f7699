//! A pod's veth pair: names, creation, deletion.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use ipnet::IpNet;

use super::error::{CniError, Code};
use linux_net::MacAddress;
use linux_net::host_port::close_to_the_kernel;
use linux_net::sysctl::{self, Family};
use linux_net::{
    Link, Namespace, Netlink, Route, VethEnd, VethPair, fnv, switch_off_segmentation,
    switch_off_towards_switch, switch_on_offloads,
};
use local_api::Attachment;

/// The next hop of every pod, IPv4. The switch answers ARP for it; it is
/// link-local (RFC 3927), so it is never an address of anything else.
pub const GATEWAY_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 1, 1));
/// The next hop of every pod, IPv6; the switch answers neighbour discovery for it.
pub const GATEWAY_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1));

/// The default route's destinations.
const ANYWHERE: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];

/// Names derived from an attachment alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InterfaceNames {
    /// The switch's end: `pg` and 13 hex digits.
    pub host: String,
    pub host_mac: MacAddress,
    pub pod_mac: MacAddress,
}

impl InterfaceNames {
    pub(super) fn of(attachment: &Attachment) -> Self {
        let Attachment { container_id, interface } = attachment;
        let hash = |role| fnv::hash(&[role, container_id, interface]);
        Self {
            host: format!("{HOST_PREFIX}{:013x}", hash("name") >> 12),
            host_mac: MacAddress::local(hash("switch")),
            pod_mac: MacAddress::local(hash("pod")),
        }
    }
}

/// Prefix of the names of the switch's ends.
const HOST_PREFIX: &str = "pg";

/// Returns the alias of the switch's end. It names the attachment in `ip link`; DEL verifies it, and
/// GC finds leftovers by it.
pub(super) fn alias(network: &str, attachment: &Attachment) -> String {
    format!("podgate:{network}:{}:{}", attachment.container_id, attachment.interface)
}

/// The attachment of a switch's end that belongs to `network`.
pub(super) fn attachment_of(link: &Link, network: &str) -> Option<Attachment> {
    let rest = link.alias.strip_prefix("podgate:")?.strip_prefix(network)?.strip_prefix(':')?;
    let (container_id, interface) = rest.split_once(':')?;
    let attachment =
        Attachment { container_id: container_id.to_owned(), interface: interface.to_owned() };
    (link.kind == "veth" && link.name == InterfaceNames::of(&attachment).host).then_some(attachment)
}

/// The container's network namespace; `None` if `CNI_NETNS` names none.
pub(super) type OpenedContainer = Option<Result<Namespace, linux_net::Error>>;

/// Opens the container's namespace.
pub(super) fn open_container(variable: &impl Fn(&str) -> Option<String>) -> OpenedContainer {
    let path = variable("CNI_NETNS").filter(|path| path.starts_with('/'))?;
    Some(Namespace::open(Path::new(&path)))
}

/// The container's namespace and a netlink socket in it.
pub(super) fn container(
    opened: OpenedContainer,
    netns: &Path,
) -> Result<(Namespace, Netlink), CniError> {
    let opened = opened.unwrap_or_else(|| Namespace::open(netns));
    let namespace =
        opened.map_err(|error| CniError::new(Code::UnknownContainer, error.to_string()))?;
    // A default route created in the node's own namespace would cut it off.
    if namespace.is_current()? {
        let message = format!("CNI_NETNS '{}': it is the node's own", netns.display());
        return Err(CniError::new(Code::Environment, message));
    }
    let netlink = namespace.run(Netlink::open)??;
    Ok((namespace, netlink))
}

/// Calls `create` while IPv6 is disabled by default in the namespace, so that the new interface begins without it. A
/// write to the interface's own setting would spin instead: the kernel retries it until the RTNL lock is free.
pub(super) fn without_v6<T>(namespace: &Namespace, create: impl FnOnce() -> T) -> T {
    let set = |from: &str, to: &str| {
        namespace.run(|| match sysctl::read(Family::V6, "default", "disable_ipv6") {
            Ok(value) if value == from => {
                sysctl::set(Family::V6, "default", "disable_ipv6", to).is_ok()
            }
            _ => false,
        })
    };
    // Where it fails, the interface's own setting is written.
    let is_set = set("0", "1").unwrap_or(false);
    let created = create();
    if is_set {
        let _ = set("1", "0");
    }
    created
}

/// Creates the pair, which stays down.
pub(super) fn create(
    host: &mut Netlink,
    namespace: &Namespace,
    attachment: &Attachment,
    mtu: u32,
) -> Result<(), CniError> {
    let names = InterfaceNames::of(attachment);
    let pair = VethPair {
        near: VethEnd { name: names.host.clone(), mac: names.host_mac },
        far: VethEnd { name: attachment.interface.clone(), mac: names.pod_mac },
        far_namespace: Some(namespace),
        mtu,
    };
    host.create_veth(&pair).map_err(|error| {
        if !error.is_exists() {
            return error.into();
        }
        let Attachment { container_id, interface } = attachment;
        let taken = match host.find_link(&names.host) {
            Ok(Some(_)) => format!("interface {} serves it", names.host),
            _ => format!("{} has an interface {interface}", namespace.path().display()),
        };
        let message = format!("container {container_id} is attached as {interface}: {taken}");
        CniError::new(Code::Attached, message)
    })
}

/// The numbers of the switch's end and of the pod's, each in its namespace.
pub(super) fn ends(host: &mut Netlink, attachment: &Attachment) -> Result<[u32; 2], CniError> {
    let link = host.link(&InterfaceNames::of(attachment).host)?;
    let alone = || CniError::new(Code::Kernel, format!("interface {} has no peer", link.name));
    Ok([link.index, link.peer.ok_or_else(alone)?])
}

/// Disables the kernel's stack on the switch's end, sets its alias, and switches its offloads off.
pub(super) fn close_host_end(
    host: &mut Netlink,
    index: u32,
    network: &str,
    attachment: &Attachment,
) -> Result<(), CniError> {
    let name = InterfaceNames::of(attachment).host;
    host.set_alias_without_arp(index, &alias(network, attachment))?;
    close_to_the_kernel(&name)?;
    switch_off_segmentation(&name)?;
    Ok(())
}

/// Prepares the pod's end, which stays down: no offloads, no router advertisements, and a queue.
pub(super) fn prepare_pod_end(
    namespace: &Namespace,
    pod: &mut Netlink,
    interface: &str,
    index: u32,
    mtu: u32,
) -> Result<(), CniError> {
    namespace.run(|| {
        switch_off_towards_switch(interface, mtu)?;
        for (setting, value) in [("accept_ra", "0"), ("accept_dad", "0"), ("dad_transmits", "0")] {
            sysctl::set_if_present(Family::V6, interface, setting, value)?;
        }
        Ok::<_, linux_net::Error>(())
    })??;
    pod.put_queue(index)?;
    Ok(())
}

/// Switches the pod's end on, with its addresses and routes.
pub(super) fn configure_pod_end(
    namespace: &Namespace,
    pod: &mut Netlink,
    interface: &str,
    index: u32,
    addresses: &[IpAddr],
) -> Result<(), CniError> {
    let v6 = addresses.iter().any(IpAddr::is_ipv6);
    namespace.run(|| switch_v6(interface, v6))??;
    let own: Vec<IpNet> = addresses.iter().copied().map(IpNet::from).collect();
    let routes: Vec<Route> =
        gateways(addresses).flat_map(|gateway| routes(gateway, index)).collect();
    Ok(pod.set_up_with(index, &own, &routes)?)
}

/// Switches checksum and segmentation offloads of the pod's end on: with flow offload the receiving
/// kernels complete both.
pub(super) fn leave_offloads_on(namespace: &Namespace, interface: &str) -> Result<(), CniError> {
    Ok(namespace.run(|| switch_on_offloads(interface))??)
}

/// The gateways of the families that `addresses` have.
pub(super) fn gateways(addresses: &[IpAddr]) -> impl Iterator<Item = IpAddr> {
    let has = |gateway: &IpAddr| addresses.iter().any(|a| a.is_ipv4() == gateway.is_ipv4());
    [GATEWAY_V4, GATEWAY_V6].into_iter().filter(has)
}

/// A pod's two routes of one family: the gateway is on the link, and
/// everything goes through it.
pub(super) fn routes(gateway: IpAddr, link: u32) -> [Route; 2] {
    let [v4, v6] = ANYWHERE;
    let anywhere = if gateway.is_ipv4() { v4 } else { v6 };
    let default = IpNet::new_assert(anywhere, 0);
    [Route::direct(IpNet::from(gateway), link), Route::via(default, gateway, link)]
}

/// Deletes the switch's end of an attachment and with it the pod's; returns whether there was one.
pub(super) fn delete(
    host: &mut Netlink,
    network: &str,
    attachment: &Attachment,
) -> Result<bool, CniError> {
    let names = InterfaceNames::of(attachment);
    let Some(link) = host.find_link(&names.host)? else { return Ok(false) };
    // An ADD that was killed may have left it without an alias.
    if !link.alias.is_empty() && link.alias != alias(network, attachment) {
        let (name, alias) = (&names.host, link.alias.escape_debug());
        let message = format!("interface {name} belongs to '{alias}', not to this attachment");
        return Err(CniError::new(Code::Kernel, message));
    }
    match host.delete_link(link.index) {
        Err(error) if !error.is_not_found() => Err(error.into()),
        _ => Ok(true),
    }
}

/// Disables IPv6 on the pod's end, unless it has an IPv6 address: runtimes disable it in new namespaces.
fn switch_v6(interface: &str, on: bool) -> Result<(), linux_net::Error> {
    let wanted = if on { "0" } else { "1" };
    match sysctl::read(Family::V6, interface, "disable_ipv6") {
        Ok(value) if value == wanted => Ok(()),
        _ if on => sysctl::set(Family::V6, interface, "disable_ipv6", wanted),
        _ => sysctl::set_if_present(Family::V6, interface, "disable_ipv6", wanted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux_net::valid_name;

    fn attachment(container_id: &str, interface: &str) -> Attachment {
        Attachment { container_id: container_id.into(), interface: interface.into() }
    }

    #[test]
    fn names_are_the_same_for_ever() {
        let names = InterfaceNames::of(&attachment("c1", "eth0"));
        // Computed from the description, with another implementation.
        assert_eq!(names.host, "pge9b0e5f2332bf");
        assert_eq!(names.host_mac.to_string(), "ce:ca:a9:23:f3:28");
        assert_eq!(names.pod_mac.to_string(), "2a:63:72:8d:d3:0f");
        assert!(valid_name(&names.host));
        assert_ne!(names, InterfaceNames::of(&attachment("c1", "eth1")));
        assert_ne!(names, InterfaceNames::of(&attachment("c1e", "th0")));
    }

    #[test]
    fn an_alias_leads_back_to_its_attachment() {
        let attachment = attachment(&"c".repeat(128), "eth0");
        let mut link = Link {
            index: 1,
            name: InterfaceNames::of(&attachment).host,
            mac: None,
            mtu: 1500,
            up: false,
            running: false,
            arp: false,
            is_loopback: false,
            kind: "veth".into(),
            alias: alias(&"n".repeat(100), &attachment),
            peer: None,
            controller: None,
            filters_bridged: false,
            tunnel_port: None,
            xdp_program: None,
        };
        assert!(link.alias.len() <= 255);
        assert_eq!(attachment_of(&link, &"n".repeat(100)), Some(attachment));
        assert_eq!(attachment_of(&link, "n"), None);
        link.name = "eth0".into();
        assert_eq!(attachment_of(&link, &"n".repeat(100)), None);
    }
}
