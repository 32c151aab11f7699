//! CHECK: compares the attachment with the result of ADD.

use super::config::{Config, Previous};
use super::environment::Environment;
use super::error::{CniError, Code};
use super::interface::{self, InterfaceNames, OpenedContainer};
use super::ipam::Ipam;
use linux_net::{Link, Netlink};
use local_api::{AttachPod, Client};

/// The first difference is the error.
pub(super) fn check(
    config: &Config,
    environment: &Environment,
    container: OpenedContainer,
) -> Result<(), CniError> {
    let attachment = environment.attachment()?;
    let (pod_name, netns) = environment.pod()?;
    let compare = || {
        let previous = config
            .previous
            .as_ref()
            .ok_or_else(|| CniError::new(Code::Config, "network configuration: no prevResult"))?;
        let names = InterfaceNames::of(attachment);
        let (_, mut pod_netlink) = interface::container(container, netns)?;
        let host = Netlink::open()?.find_link(&names.host)?;
        let host = host.ok_or_else(|| differs(format!("interface {} is gone", names.host)))?;
        let pod = pod_netlink.find_link(&attachment.interface)?.ok_or_else(|| {
            differs(format!("interface {} is gone from {}", attachment.interface, netns.display()))
        })?;
        pair(&host, &pod, previous)?;
        pod_end(&mut pod_netlink, &pod, previous)?;
        Ipam::find(config, environment)?.check()?;
        let served = Client::connect(&config.socket, config.timeout)?.check_pod(attachment)?;
        agents_port(&served, &names, previous)
    };
    compare().map_err(|error: CniError| error.during(&format!("check pod {pod_name}")))
}

fn pair(host: &Link, pod: &Link, previous: &Previous) -> Result<(), CniError> {
    if host.peer != Some(pod.index) || pod.peer != Some(host.index) {
        let message = format!("{} and {} are not the ends of one pair", host.name, pod.name);
        return Err(differs(message));
    }
    for link in [host, pod] {
        if !link.running {
            return Err(differs(format!("interface {} is down", link.name)));
        }
    }
    let Some((_, mac)) = previous.macs.iter().find(|(name, _)| *name == pod.name) else {
        return Err(differs(format!("prevResult has no interface {} in a sandbox", pod.name)));
    };
    if pod.mac != Some(*mac) {
        return Err(differs(format!("interface {} has another address than {mac}", pod.name)));
    }
    Ok(())
}

fn pod_end(netlink: &mut Netlink, pod: &Link, previous: &Previous) -> Result<(), CniError> {
    let present = netlink.addresses()?;
    for address in &previous.addresses {
        if !present.iter().any(|own| own.link == pod.index && own.address.addr() == *address) {
            return Err(differs(format!("interface {} has lost address {address}", pod.name)));
        }
    }
    let present = netlink.routes()?;
    for gateway in interface::gateways(&previous.addresses) {
        for route in interface::routes(gateway, pod.index) {
            let same = |one: &&linux_net::Route| {
                one.destination == route.destination
                    && one.gateway == route.gateway
                    && one.link == route.link
            };
            if !present.iter().any(|one| same(&one)) {
                let message = format!("the route to {} on {} is gone", route.destination, pod.name);
                return Err(differs(message));
            }
        }
    }
    Ok(())
}

fn agents_port(
    served: &AttachPod,
    names: &InterfaceNames,
    previous: &Previous,
) -> Result<(), CniError> {
    let mut addresses = served.addresses.clone();
    let mut expected = previous.addresses.clone();
    addresses.sort();
    expected.sort();
    if served.host_interface != names.host || served.mac != names.pod_mac || addresses != expected {
        let message = format!(
            "podgate serves {} with {} and {addresses:?}, not {} with {} and {expected:?}",
            served.host_interface, served.mac, names.host, names.pod_mac
        );
        return Err(differs(message));
    }
    Ok(())
}

fn differs(message: String) -> CniError {
    CniError::new(Code::Differs, message)
}
