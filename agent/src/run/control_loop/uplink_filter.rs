//! The filter of an uplink that the kernel uses as well: the packets that the switch takes.

use std::collections::BTreeSet;

use acl::Address;
use control::ClusterNode;
use dataplane::Underlay;
use dataplane::port::af_xdp::{UplinkFilter, UplinkService};
use dataplane::services::{Scope, Services};
use dataplane::session::Sessions;
use snapshot::SWITCH_ADDRESSES;

use crate::config::Network;

/// Returns the filter that follows from the services and from the object of this node.
pub(super) fn filter(
    services: &Services,
    own: Option<&ClusterNode>,
    network: &Network,
) -> UplinkFilter {
    let mut filter = UplinkFilter::default();
    if let Some(own) = own {
        filter.node_addresses.extend(&own.addresses);
        // Also with an overlay: packets for pods outside of tunnels are dropped by the switch; the
        // kernel would forward them.
        filter.pod_networks.extend(&own.pod_cidrs);
        if let Underlay::Overlay(vxlan) = &network.underlay {
            filter.vxlan_port = Some(vxlan.port);
        }
    }
    let (first, last) = (network.translation_ports.start(), network.translation_ports.end());
    filter.masquerade_ports = Some((*first, *last));
    for (address, protocol, port, entry) in services.iter() {
        let is_inside = |it: &Address| SWITCH_ADDRESSES.contains(&it.to_ip());
        if entry.scope == Scope::Cluster || address.as_ref().is_some_and(is_inside) {
            continue;
        }
        let addresses = match address {
            Some(address) => vec![address.to_ip()],
            None => filter.node_addresses.iter().copied().collect(),
        };
        let service = |address| UplinkService { address, protocol, port };
        filter.services.extend(addresses.into_iter().map(service));
    }
    filter
}

/// Destinations of connections from outside that a service has translated.
pub(super) fn in_use(sessions: &Sessions) -> BTreeSet<UplinkService> {
    let translated = sessions.iter().filter(|(found, _)| found.translated);
    let destinations = translated.map(|(_, tuples)| UplinkService {
        address: tuples.initiator.destination.to_ip(),
        protocol: tuples.initiator.protocol,
        port: tuples.initiator.destination_port,
    });
    destinations.collect()
}

/// Adds those of the filter set last whose services are gone, but not their connections: the kernel
/// would reset these. Returns whether there are any.
pub(super) fn keep(
    filter: &mut UplinkFilter,
    last: &UplinkFilter,
    in_use: impl FnOnce() -> BTreeSet<UplinkService>,
) -> bool {
    let gone: BTreeSet<_> = last.services.difference(&filter.services).copied().collect();
    if gone.is_empty() {
        return false;
    }
    let before = filter.services.len();
    filter.services.extend(gone.intersection(&in_use()));
    filter.services.len() > before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_stays_the_switchs_while_it_has_connections() {
        let service =
            |port| UplinkService { address: "192.0.2.1".parse().unwrap(), protocol: 6, port };
        let of = |ports: &[u16]| UplinkFilter {
            services: ports.iter().map(|port| service(*port)).collect(),
            ..UplinkFilter::default()
        };
        let kept = |wanted: &[u16], last: &[u16], in_use: &[u16]| {
            let mut filter = of(wanted);
            let any = keep(&mut filter, &of(last), || of(in_use).services);
            (filter.services.iter().map(|it| it.port).collect::<Vec<_>>(), any)
        };
        assert_eq!(kept(&[1], &[1, 2, 3], &[1, 2, 9]), (vec![1, 2], true));
        assert_eq!(kept(&[1], &[1, 2], &[9]), (vec![1], false));
        assert_eq!(kept(&[1, 2], &[1, 2], &[9]), (vec![1, 2], false));
        assert_eq!(kept(&[], &[], &[9]), (vec![], false));
    }
}
