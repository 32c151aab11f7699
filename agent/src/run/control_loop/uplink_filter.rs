//! The filter of an uplink that the kernel uses as well: the packets that the switch takes.

use acl::Address;
use control::ClusterNode;
use dataplane::Underlay;
use dataplane::port::af_xdp::{UplinkFilter, UplinkService};
use dataplane::services::{Scope, Services};
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
